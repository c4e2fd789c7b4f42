"""Reads byte-level BPE from a vocabulary and a list of merges, as GPT-2 was published.

How a text is split before merging, and which tokens are special, is not in these files: it depends
on the tokenizer class of transformers, which tokenizer_config.json names, or else on the model.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from input_pipeline.tokenizers.added_tokens import add_special, named_tokens
from input_pipeline.tokenizers.file_checks import require_ids

MERGES_BESIDE = {"encoder.json": "vocab.bpe", "vocab.json": "merges.txt"}
GPT2 = "GPT2Tokenizer"
END_OF_TEXT = "<|endoftext|>"
QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclasses.dataclass(frozen=True)
class ByteLevelClass:
    """special: tokens by role, if the files do not name others. words: a regular expression for
    the parts into which a text is split, or "" for GPT-2's. digits: each digit is a part.
    """

    special: Mapping[str, str]
    composes: bool = False  # Unicode's NFC
    digits: bool = False
    words: str = ""
    always_special: tuple[str, ...] = ()  # whatever the files name


ROBERTA_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
CLASSES = {
    GPT2: ByteLevelClass(dict.fromkeys(("bos", "eos", "unk"), END_OF_TEXT)),
    "RobertaTokenizer": ByteLevelClass({}, always_special=ROBERTA_SPECIALS),
    "BartTokenizer": ByteLevelClass({}, always_special=ROBERTA_SPECIALS),
    "GPTNeoXTokenizer": ByteLevelClass(
        dict.fromkeys(("bos", "eos", "unk"), END_OF_TEXT) | {"pad": "<|padding|>"}, composes=True
    ),
    "Qwen2Tokenizer": ByteLevelClass(
        dict.fromkeys(("eos", "unk", "pad"), END_OF_TEXT), composes=True, words=QWEN_WORDS
    ),
    "CohereTokenizer": ByteLevelClass(
        dict(
            bos="<BOS_TOKEN>", eos="<|END_OF_TURN_TOKEN|>", unk="<UNK>", pad="<PAD>", cls="<CLS>",
            sep="<SEP>", mask="<MASK_TOKEN>",
        ),
        composes=True, digits=True,
    ),
}  # fmt: skip
CLASS_OF_MODEL = {
    "roberta": "RobertaTokenizer", "bart": "BartTokenizer", "gpt_neox": "GPTNeoXTokenizer",
    "qwen2": "Qwen2Tokenizer", "qwen3": "Qwen2Tokenizer", "qwen3_moe": "Qwen2Tokenizer",
    "cohere": "CohereTokenizer", "gpt2": GPT2, "opt": GPT2, "starcoder2": GPT2,
}  # fmt: skip
# transformers reads a tokenizer.json of these models, but no merges: they split texts otherwise.
ONLY_LIBRARY_FILES = ("granite", "olmo2", "stablelm", "mistral", "mixtral", "phi3")


def read(path: Path, config: Mapping[str, Any], model_type: str) -> Tokenizer:
    """`path` is the vocabulary; `config` is the tokenizer_config.json beside it."""
    merges_path = path.with_name(MERGES_BESIDE[path.name])
    if not merges_path.is_file():
        raise ValueError(f"it needs {merges_path.name} beside it")
    vocab, merges = models.BPE.read_file(str(path), str(merges_path))
    require_ids(vocab)
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.decoder = decoders.ByteLevel()
    set_class(tokenizer, config, model_type)
    return tokenizer


def set_class(
    tokenizer: Tokenizer, config: Mapping[str, Any], model_type: str, *, prefix_space: bool = False
) -> None:
    """Splits texts, and finds special tokens in them, as the class of this model does."""
    its_class = CLASSES[_class_name(config, model_type) or GPT2]
    tokenizer.normalizer = normalizers.NFC() if its_class.composes else None
    steps = [pre_tokenizers.Digits(individual_digits=True)] if its_class.digits else []
    if its_class.words:
        steps.append(pre_tokenizers.Split(Regex(its_class.words), "isolated"))
    steps.append(
        pre_tokenizers.ByteLevel(add_prefix_space=prefix_space, use_regex=not its_class.words)
    )
    tokenizer.pre_tokenizer = steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)
    special = {**its_class.special, **named_tokens(config)}.values()
    add_special(tokenizer, [*special, *its_class.always_special])


def is_class_known(config: Mapping[str, Any], model_type: str) -> bool:
    """Whether the files or the model say how a text is split; else it is split as by GPT-2."""
    return model_type not in ONLY_LIBRARY_FILES and bool(_class_name(config, model_type))


def _class_name(config: Mapping[str, Any], model_type: str) -> str:
    name = str(config.get("tokenizer_class") or "").removesuffix("Fast")
    # As in transformers, Qwen 2 gets its own class whatever its files name.
    is_named = name in CLASSES and model_type != "qwen2"
    return name if is_named else CLASS_OF_MODEL.get(model_type, "")
