"""Language tokens beside texts: the ids are those of transformers' tokenizers for made files."""

import io
import json

import pytest

from experiment.schema import ConfigError
from input_pipeline.objectives.affixes import between
from input_pipeline.tokenizers.language_tokens import M2M_LANGUAGES, language_id, m2m_token
from input_pipeline.tokenizers.published_files import open_tokenizer
from input_pipeline.tokenizers.published_specials import as_published

TEXTS = (
    "the cat sat", "  a   mat ", "Ünïcode ß straße", "sat,the;cat!", "日本 cat", "", "x1y22z",
    "the</s>cat", "ﬁne ½ ①",
)  # fmt: skip
CORPUS = ["the cat sat on the mat", "a straße in München", "x1 y22, z! (cat); sat", "日 本 the"] * 9
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
ROLES = dict(pad=1, bos=2, eos=2)


def trained(kind):
    """A SentencePiece model of CORPUS, and its pieces with their scores."""
    library = pytest.importorskip("sentencepiece")
    found = io.BytesIO()
    library.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=found, vocab_size=64, model_type=kind,
        hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    model = library.SentencePieceProcessor(model_proto=found.getvalue())
    size = model.get_piece_size()
    return found.getvalue(), [(model.id_to_piece(n), model.get_score(n)) for n in range(size)]


def write_m2m(directory, languages="m2m100"):
    """M2M-100's files; the order of vocab.json is not that of the pieces."""
    data, pieces = trained("bpe")
    names = sorted({piece for piece, _ in pieces} - set(SPECIAL), key=lambda name: name[::-1])
    vocab = {name: id for id, name in enumerate([*SPECIAL, *names])}
    directory.mkdir()
    (directory / "sentencepiece.bpe.model").write_bytes(data)
    (directory / "vocab.json").write_text(json.dumps(vocab))
    listed = [m2m_token(code) for code in M2M_LANGUAGES[languages].split()]
    config = dict(tokenizer_class="M2M100Tokenizer", language_codes=languages)
    config["additional_special_tokens"] = listed  # as published files have it
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def write(kind, hf, directory):
    """The files of a tokenizer class of transformers, with a vocabulary of CORPUS."""
    if kind == "M2M100":
        return write_m2m(directory)
    if kind == "Nllb":
        names = [piece for piece, _ in trained("bpe")[1][3:]]
        merges = [
            (a[:cut], a[cut:]) for a in names for cut in range(1, len(a))
            if a[:cut] in names and a[cut:] in names
        ]  # fmt: skip
        vocab = {name: id for id, name in enumerate([*SPECIAL, *names])}
        theirs = hf.NllbTokenizer(vocab=vocab, merges=merges)
    elif kind == "MBart50":
        theirs = hf.MBart50Tokenizer(vocab=trained("unigram")[1])
    else:
        words = [(name, 0.0) for name in SPECIAL] + trained("unigram")[1][3:]
        words += [(name, 0.0) for name in ("en_XX", "ro_RO", "<mask>")]
        theirs = hf.MBartTokenizer(vocab=words)
    theirs.save_pretrained(directory)
    return directory


CASES = {
    "M2M100": ("en", "fr"), "Nllb": ("eng_Latn", "fra_Latn"), "MBart50": ("en_XX", "fr_XX"),
    "MBart": ("en_XX", "ro_RO"),
}  # fmt: skip
MODEL_TYPES = {"M2M100": "m2m_100", "Nllb": "m2m_100"}


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("swapped", [False, True])
def test_sources_and_targets_have_the_ids_of_transformers(kind, swapped, tmp_path):
    hf = pytest.importorskip("transformers")
    directory = write(kind, hf, tmp_path / "files")
    source, target = reversed(CASES[kind]) if swapped else CASES[kind]
    theirs = getattr(hf, f"{kind}Tokenizer").from_pretrained(
        directory, src_lang=source, tgt_lang=target
    )
    file = "sentencepiece.bpe.model" if kind == "M2M100" else "tokenizer.json"
    ours = open_tokenizer(directory / file).with_roles(ROLES)
    ours = as_published(
        ours, directory / file, MODEL_TYPES.get(kind, "mbart"),
        source_language=source if swapped else "",
    )  # fmt: skip
    if kind != "MBart":
        ours = ours.with_roles({"text_start": language_id(ours, target, "target_language")})
    for text in TEXTS:
        ids = ours.encode(text)
        assert between(ours.source_affixes, ids).tolist() == theirs(text)["input_ids"], text
        labels = theirs(text_target=text)["input_ids"]
        if kind == "MBart":  # its labels also have the language behind </s>, which is not learned
            assert labels.pop() == language_id(ours, target, "target_language")
        assert between(ours.target_affixes, ids).tolist() == labels, text
        if "</s>" not in text:
            assert ours.decode(labels) == theirs.decode(labels, skip_special_tokens=True), text


@pytest.mark.oracle
def test_the_languages_of_m2m_are_those_of_transformers():
    module = pytest.importorskip("transformers.models.m2m_100.tokenization_m2m_100")
    theirs = module.FAIRSEQ_LANGUAGE_CODES
    assert {name: codes.split() for name, codes in M2M_LANGUAGES.items()} == theirs


def test_a_language_that_the_tokenizer_lacks_is_refused(tmp_path):
    directory = write_m2m(tmp_path / "files", "wmt21")
    tokenizer = open_tokenizer(directory / "sentencepiece.bpe.model")
    assert language_id(tokenizer, "de", "x") == language_id(tokenizer, "__de__", "x")
    with pytest.raises(ConfigError, match=r"--target_language=fr is not .* __zh__, __de__"):
        language_id(tokenizer, "fr", "target_language")
    with pytest.raises(ConfigError, match="--target_language=▁the is not a special token"):
        language_id(tokenizer, "▁the", "target_language")
