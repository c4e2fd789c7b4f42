"""Every importable decoder reads the ids that transformers gives, from the files that its kind has.

The models are small and random, and the vocabularies are our fixtures. What is published about them
is which files there are, what these files say, and how they split a text.
"""

import json
import shutil

import numpy as np
import pytest
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    normalizers,
    pre_tokenizers,
    processors,
)

import convert
import generate
from checkpointing import loaded_run
from inference import predictors
from tests.input_pipeline.tokenizers.make_tokenizer_fixtures import PATHS, read_strings
from tests.pretrained.test_published_ids import (
    TEXTS,
    TOKENIZER_CONFIG,
    as_text,
    byte_level,
    gpt2_files,
    round_trip,
)
from tests.pretrained.transformers_models import LIKE_LLAMA, Draw, like_llama, oracle, randomize

LIBRARY_FILE, MODEL_FILE = "tokenizer.json", "tokenizer.model"
MORE_TEXTS = [
    " ", "\n\n\n x", "a\t\tb   c", "   ", "</s>a", "</s> a", "<s> a <s>a", "<pad>x<mask> y",
    "12345 a1b2 3.14", "don't CAN'T we'LL 123abc", "e\u0301 ﬁ ①", "\u200b\u00a0x", "<unk> ▁a",
    "<note>x <note> x", "<|endoftext|>a <|endoftext|> b", "🙂👩‍👩‍👧", "السلام שלום नमस्ते",
    "if x:\n    return  1\r\n",
]  # fmt: skip
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN = CL100K.replace("{1,3}", "")
END = "<|endoftext|>"
ENDS = dict(bos_token=END, eos_token=END, unk_token=END)
LLAMA = dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>", tokenizer_class="LlamaTokenizer")
GEMMA = dict(
    bos_token="<bos>", eos_token="<eos>", unk_token="<unk>", pad_token="<pad>",
    tokenizer_class="GemmaTokenizer",
)  # fmt: skip
COHERE = ["<PAD>", "<UNK>", "<CLS>", "<SEP>", "<MASK_TOKEN>", "<BOS_TOKEN>", "<EOS_TOKEN>"]


def begins_with(name, id):
    return processors.TemplateProcessing(
        single=f"{name} $A", pair=f"{name} $A {name}:1 $B:1", special_tokens=[(name, id)]
    )


def gpt2_library(directory, *steps, special=(END,), composes=False, bos=None):
    """A tokenizer.json of byte-level BPE; `steps` come before the bytes."""
    path = directory / LIBRARY_FILE
    byte_level(path, special=special)
    tokenizer = Tokenizer.from_file(str(path))
    if steps:
        has_words = any(isinstance(step, pre_tokenizers.Split) for step in steps)
        bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not has_words)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, bytes_of])
    if composes:
        tokenizer.normalizer = normalizers.NFC()
    if bos:
        tokenizer.post_processor = begins_with(bos, tokenizer.token_to_id(bos))
    tokenizer.save(str(path))


def words(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def digits():
    return pre_tokenizers.Digits(individual_digits=True)


def llama_library(directory, *, bos=True, added=()):
    """A tokenizer.json as transformers 4 made it of Llama's tokenizer.model."""
    _, hf = oracle()
    shutil.copy(PATHS["llama"], directory / MODEL_FILE)
    tokenizer = hf.LlamaTokenizer.from_pretrained(directory).backend_tokenizer
    (directory / MODEL_FILE).unlink()
    steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.add_special_tokens([AddedToken(n, rstrip=True, normalized=False) for n in added])
    if bos:
        tokenizer.post_processor = begins_with("<s>", 1)
    layout = json.loads(tokenizer.to_str())
    layout["pre_tokenizer"] = None
    (directory / LIBRARY_FILE).write_text(json.dumps(layout))


def llama_model(directory):
    shutil.copy(PATHS["llama"], directory / MODEL_FILE)


def gemma_model(directory):
    """Llama's fixture with the special tokens of Gemma, which puts no space before a text."""
    oracle()
    from transformers.convert_slow_tokenizer import import_protobuf

    proto = import_protobuf().ModelProto()
    proto.ParseFromString(PATHS["llama"].read_bytes())
    pieces = [(piece.piece, piece.score, piece.type) for piece in proto.pieces[3:]]
    first = [("<pad>", 3), ("<eos>", 3), ("<bos>", 3), ("<unk>", 2), ("<mask>", 4)]
    first += [("<start_of_turn>", 4), ("\n\n", 4)]
    pieces = [*((name, 0.0, type) for name, type in first), *pieces]
    del proto.pieces[:]
    for text, score, type in pieces:
        proto.pieces.add(piece=text, score=score, type=type)
    for id, name in enumerate(("pad", "eos", "bos", "unk")):
        setattr(proto.trainer_spec, f"{name}_id", id)
        setattr(proto.trainer_spec, f"{name}_piece", f"<{name}>")
    proto.normalizer_spec.add_dummy_prefix = False
    (directory / MODEL_FILE).write_bytes(proto.SerializeToString())


def gemma_library(directory):
    _, hf = oracle()
    gemma_model(directory)
    tokenizer = hf.GemmaTokenizer.from_pretrained(directory).backend_tokenizer
    tokenizer.post_processor = begins_with("<bos>", 2)
    tokenizer.save(str(directory / LIBRARY_FILE))
    (directory / MODEL_FILE).unlink()


def opt_files(directory):
    gpt2_files(directory, ("<s>", "<pad>", "</s>", "<unk>", "<mask>"))


def token(content):
    flags = dict(lstrip=False, rstrip=False, single_word=False, normalized=True)
    return dict(content=content, __type="AddedToken", **flags)


QWEN_TOKENS = dict(
    tokenizer_class="Qwen2Tokenizer", bos_token=None, eos_token="<|im_end|>", pad_token=END,
    unk_token=None, add_prefix_space=False, add_bos_token=False,
)  # fmt: skip
CHAT = (END, "<|im_start|>", "<|im_end|>")
OPT = dict(
    tokenizer_class="GPT2Tokenizer", add_bos_token=True, add_prefix_space=False, errors="replace",
    bos_token=token("</s>"), eos_token=token("</s>"), unk_token=token("</s>"), pad_token="<pad>",
)  # fmt: skip
NEOX = dict(ENDS, tokenizer_class="GPTNeoXTokenizer")
GPT2 = dict(ENDS, tokenizer_class="GPT2Tokenizer", add_prefix_space=False)


def qwen(directory):
    gpt2_library(directory, words(QWEN), special=CHAT, composes=True)


def neox(directory, **more):
    gpt2_library(directory, composes=True, **more)


# By case: the model, its tokenizer's files, tokenizer_config.json, and how transformers reads them:
# as AutoTokenizer chooses, or with a class where docs/published.md says that we differ from it.
CASES = {
    "opt": ("opt", opt_files, OPT, None),
    "llama2": (
        "llama", llama_library, dict(LLAMA, legacy=False, add_bos_token=True),
        "PreTrainedTokenizerFast",
    ),
    "llama_model_legacy": (
        "llama", llama_model, dict(LLAMA, legacy=True, add_bos_token=True), None,
    ),
    "llama_model_no_space": ("llama", llama_model, dict(LLAMA, add_prefix_space=False), None),
    "llama_model_bare": ("llama", llama_model, {}, "LlamaTokenizer"),
    "mistral": ("mistral", llama_library, dict(LLAMA, legacy=True, add_bos_token=True), None),
    "mistral_model": (
        "mistral", llama_model, dict(LLAMA, legacy=True, add_bos_token=True), "LlamaTokenizer",
    ),
    "mistral_model_bare": ("mistral", llama_model, {}, "LlamaTokenizer"),
    "mixtral": ("mixtral", llama_library, dict(LLAMA, legacy=False, add_bos_token=True), None),
    "phi3": (
        "phi3", lambda d: llama_library(d, bos=False, added=("<|user|>", "<|end|>")),
        dict(LLAMA, legacy=False, add_bos_token=False, eos_token="<|end|>"), None,
    ),
    "phi3_model": (
        "phi3", llama_model, dict(LLAMA, legacy=False, add_bos_token=False), "LlamaTokenizer",
    ),
    "gemma": ("gemma", gemma_library, GEMMA, None),
    "gemma_model": ("gemma", gemma_model, dict(GEMMA, add_bos_token=True), None),
    "gemma2": ("gemma2", gemma_library, GEMMA, None),
    "gemma3": ("gemma3", gemma_library, GEMMA, None),
    "qwen2": ("qwen2", qwen, QWEN_TOKENS, None),
    "qwen2_merges": ("qwen2", gpt2_files, dict(QWEN_TOKENS, eos_token=END), None),
    "qwen3": ("qwen3", qwen, QWEN_TOKENS, None),
    "qwen3_moe": ("qwen3_moe", qwen, QWEN_TOKENS, None),
    "gpt_neox": ("gpt_neox", neox, NEOX, None),
    "gpt_neox_bos": ("gpt_neox", lambda d: neox(d, bos=END), NEOX, None),
    "gpt_neox_unnamed_bos": ("gpt_neox", lambda d: neox(d, bos=END), ENDS, None),
    "gpt_neox_bos_asked": (
        "gpt_neox", lambda d: neox(d, bos=END), dict(NEOX, add_bos_token=True),
        "PreTrainedTokenizerFast",
    ),
    "gpt_neox_merges": ("gpt_neox", gpt2_files, dict(NEOX, add_bos_token=True), None),
    "falcon": (
        "falcon",
        lambda d: gpt2_library(
            d, pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(False),
            pre_tokenizers.Digits(False), words("[0-9][0-9][0-9]"), special=(">>TITLE<<", END),
        ),
        dict(tokenizer_class="PreTrainedTokenizerFast", eos_token=END), None,
    ),
    "stablelm": ("stablelm", neox, NEOX, None),
    "stablelm_bos": ("stablelm", lambda d: neox(d, bos=END), NEOX, None),
    "starcoder2": ("starcoder2", lambda d: gpt2_library(d, digits()), GPT2, None),
    "starcoder2_merges": ("starcoder2", gpt2_files, GPT2, None),
    "olmo2": (
        "olmo2", lambda d: gpt2_library(d, words(CL100K), special=(END, "<|im_start|>")), GPT2,
        None,
    ),
    "cohere": (
        "cohere",
        lambda d: gpt2_library(
            d, digits(), special=(*COHERE, "<|END_OF_TURN_TOKEN|>"), composes=True,
            bos="<BOS_TOKEN>",
        ),
        dict(
            tokenizer_class="CohereTokenizerFast", bos_token="<BOS_TOKEN>", pad_token="<PAD>",
            eos_token="<|END_OF_TURN_TOKEN|>", add_bos_token=True, add_eos_token=False,
        ), None,
    ),
    "granite": (
        "granite", lambda d: gpt2_library(d, digits()), dict(GPT2, add_bos_token=False), None,
    ),
    "smollm3": (
        "smollm3", lambda d: gpt2_library(d, words(CL100K), special=CHAT),
        dict(tokenizer_class="PreTrainedTokenizerFast", bos_token=None, eos_token="<|im_end|>"),
        None,
    ),
}  # fmt: skip
# Text is also compared for one of each kind of files: every greedy answer compiles two programs.
GENERATED = ["opt", "mistral_model", "gemma", "qwen3", "gpt_neox_bos", "cohere"]
PLAIN = {  # of which the builders in transformers_models.py have no simple one
    "llama": like_llama("Llama"),
    "phi3": like_llama("Phi3", hidden_size=24, head_dim=None),
}


def write_model(kind, directory, tokenizer):
    """A random model with the vocabulary and the special ids of the tokenizer."""
    _, hf = oracle()
    config = (PLAIN | LIKE_LLAMA)[kind](hf, Draw(3)).config
    config.vocab_size, config.max_position_embeddings = len(tokenizer), 256
    for role in ("bos", "eos", "pad"):
        setattr(config, f"{role}_token_id", getattr(tokenizer, f"{role}_token_id"))
    model = randomize(hf.AutoModelForCausalLM.from_config(config), 5)
    model.save_pretrained(directory)
    return model


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES)
def test_the_ids_of_a_text_are_those_of_transformers(case, tmp_path):
    _, hf = oracle()
    kind, write_files, config, class_name = CASES[case]
    source = tmp_path / "source"
    source.mkdir()
    write_files(source)
    if config:
        (source / TOKENIZER_CONFIG).write_text(json.dumps(config))
    model_type = "gemma3_text" if kind == "gemma3" else kind
    (source / "config.json").write_text(json.dumps({"model_type": model_type}))
    theirs = getattr(hf, class_name or "AutoTokenizer").from_pretrained(source)
    model = write_model(kind, source, theirs)
    convert.convert(str(source), str(tmp_path / "in"))
    texts = [*TEXTS, *MORE_TEXTS, *read_strings()[:200:20]]
    texts = [text for text in texts if theirs(text)["input_ids"]]  # ours then begin with bos
    assert len(texts) >= 40
    expected = [theirs(text)["input_ids"] for text in texts]
    loaded = loaded_run.load(tmp_path / "in")
    prompt = predictors.make_predictor(loaded, dict(max_new_tokens=32), 1).prompt
    for text, ids in zip(texts, expected, strict=True):
        assert prompt(text, "")["inputs"].tolist() == ids, repr(text)
    round_trip(tmp_path, theirs, texts)
    if case in GENERATED:
        compare_answers(tmp_path / "in", model, theirs, [texts[0], texts[-1]])


def compare_answers(workdir, model, theirs, lines):
    torch, _ = oracle()
    tokenizer = loaded_run.load(workdir).tokenizer
    found = generate.generate(workdir, lines, max_new_tokens=32)
    for line, (output,) in zip(lines, found, strict=True):
        prompt = theirs(line, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            written = model.generate(
                prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=32, do_sample=False
            )
        tokens = written[0, prompt.shape[1] :].numpy()
        assert output["tokens"] == len(tokens) > 4
        assert output["text"] == as_text(tokenizer, prompt[0].numpy(), tokens)
        ended = np.isin(tokens, [theirs.eos_token_id, theirs.pad_token_id])
        assert theirs.decode(tokens[~ended]).strip() == output["text"].strip()
