"""Makes fixtures/: tiny vocabularies in published formats, 1,000 strings, and their ids.

    pip install -e '.[oracle]'
    python -m tests.input_pipeline.tokenizers.make_tokenizer_fixtures

The ids are transformers' own. The strings are stored with them, because Babel's data changes from
version to version.
"""

import io
import json
import tempfile
from pathlib import Path

import numpy as np
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from tests.input_pipeline.tokenizers.varied_strings import LOCALES, make_strings, names

FIXTURES = Path(__file__).parent / "fixtures"
IDS = FIXTURES / "ids.npz"
# Where each vocabulary is, in the format that open_tokenizer knows by this name.
PATHS = {
    "library": FIXTURES / "library" / "tokenizer.json",
    "t5": FIXTURES / "t5" / "spiece.model",
    "llama": FIXTURES / "llama" / "tokenizer.model",
    "bert_cased": FIXTURES / "bert_cased" / "vocab.txt",
    "bert_uncased": FIXTURES / "bert_uncased" / "vocab.txt",
    "gpt2": FIXTURES / "gpt2" / "encoder.json",
}
SIZE = 700


def make_vocabularies() -> None:
    for path in PATHS.values():
        path.parent.mkdir(parents=True, exist_ok=True)
    texts = [name for locale in LOCALES for name in names(locale)]
    _make_gpt2(texts)
    _make_bert(texts, lowercase=False)
    _make_bert(texts, lowercase=True)
    _make_library(texts)
    t5 = dict(model_type="unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as rules:
        rules.write(_normalization_rules())
        rules.flush()
        _make_sentencepiece("t5", texts, normalization_rule_tsv=rules.name, **t5)
    llama = dict(model_type="bpe", byte_fallback=True, split_digits=True)
    llama |= dict(normalization_rule_name="identity", remove_extra_whitespaces=False)
    llama |= dict(allow_whitespace_only_pieces=True, user_defined_symbols=["<note>"])
    _make_sentencepiece("llama", texts, **llama)


def _make_gpt2(texts: list[str]) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=SIZE, initial_alphabet=alphabet, show_progress=False)
    )
    model = json.loads(tokenizer.to_str())["model"]
    vocab = {**model["vocab"], "<|endoftext|>": len(model["vocab"])}
    merges = "".join(f"{left} {right}\n" for left, right in model["merges"])
    PATHS["gpt2"].write_text(json.dumps(vocab))
    PATHS["gpt2"].with_name("vocab.bpe").write_text("#version: 0.2\n" + merges, encoding="utf-8")


def _make_bert(texts: list[str], *, lowercase: bool) -> None:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    options = dict(vocab_size=2 * SIZE, limit_alphabet=400, show_progress=False)
    tokenizer.train_from_iterator(
        texts, trainers.WordPieceTrainer(special_tokens=special, **options)
    )
    vocab = tokenizer.get_vocab()
    lines = "".join(f"{piece}\n" for piece in sorted(vocab, key=vocab.get))
    name = "bert_uncased" if lowercase else "bert_cased"
    PATHS[name].write_text(lines, encoding="utf-8")


def _make_library(texts: list[str]) -> None:
    """Neither GPT-2's nor BERT's; with all that a file can switch on and `encode` must not do."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Metaspace()]
    )
    tokenizer.decoder = decoders.Metaspace()
    special = ["<unk>", "<s>", "</s>", "<pad>", "<mask>"]
    options = dict(vocab_size=2 * SIZE, limit_alphabet=500, show_progress=False)
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(special_tokens=special, **options))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(pad_id=3, pad_token="<pad>", length=8)
    tokenizer.save(str(PATHS["library"]), pretty=False)


def _normalization_rules() -> str:
    """A part of NFKC, and whitespace made spaces: T5's own rules would take 240 kB."""
    blocks = [(0xA0, 0x180), (0x2000, 0x2030), (0x2150, 0x2190), (0x2460, 0x2480)]
    blocks += [(0x3000, 0x3001), (0xFB00, 0xFB07), (0xFF01, 0xFF5F)]
    characters = [chr(code) for start, stop in blocks for code in range(start, stop)]
    rules = {"\t": " ", "\n": " ", "\r": " "}
    rules |= {c: normalizers.NFKC().normalize_str(c) for c in characters}
    rules |= {normalizers.NFD().normalize_str(c): c for c in characters if rules[c] == c}

    def codes(text: str) -> str:
        return " ".join(f"{ord(character):X}" for character in text)

    return "".join(f"{codes(old)}\t{codes(new)}\n" for old, new in rules.items() if old != new)


def _make_sentencepiece(name: str, texts: list[str], **options) -> None:
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        vocab_size=1800,
        character_coverage=0.98,
        num_threads=1,
        minloglevel=2,
        **options,
    )
    PATHS[name].write_bytes(model.getvalue())


def transformers_tokenizer(name: str):
    """transformers' own tokenizer for one of PATHS."""
    import transformers

    path = PATHS[name]
    match name:
        case "library":
            return transformers.PreTrainedTokenizerFast(tokenizer_file=str(path))
        case "t5":
            return transformers.T5Tokenizer.from_pretrained(path.parent)
        case "llama":
            return transformers.LlamaTokenizer.from_pretrained(path.parent)
        case "bert_cased" | "bert_uncased":
            lower = name == "bert_uncased"
            return transformers.BertTokenizer(vocab=str(path), do_lower_case=lower)
        case "gpt2":
            merges = path.with_name("vocab.bpe")
            return transformers.GPT2Tokenizer(vocab=str(path), merges=str(merges))


def transformers_ids(name: str, strings: list[str]) -> list[list[int]]:
    tokenizer = transformers_tokenizer(name)
    return [tokenizer.encode(string, add_special_tokens=False) for string in strings]


def read_strings() -> list[str]:
    with np.load(IDS) as stored:
        return [string.tobytes().decode() for string in _split(stored, "strings")]


def read_ids(name: str) -> list[list[int]]:
    with np.load(IDS) as stored:
        return [ids.tolist() for ids in _split(stored, name)]


def _split(stored, name: str) -> list[np.ndarray]:
    ends = np.cumsum(stored[f"{name}_lengths"])[:-1]
    return np.split(stored[name], ends)


def main() -> None:
    make_vocabularies()
    strings = make_strings()
    rows = {"strings": [np.frombuffer(s.encode(), np.uint8) for s in strings]}
    for name in PATHS:
        rows[name] = [np.array(ids, np.uint16) for ids in transformers_ids(name, strings)]
    flat = {name: np.concatenate(values) for name, values in rows.items()}
    lengths = {f"{n}_lengths": np.array([len(v) for v in vs], np.uint16) for n, vs in rows.items()}
    np.savez_compressed(IDS, **flat, **lengths)


if __name__ == "__main__":
    main()
