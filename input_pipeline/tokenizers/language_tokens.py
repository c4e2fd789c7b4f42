"""Language tokens of translation models: which one begins or ends a text.

A text of mBART-50, M2M-100 or NLLB is `language text </s>`, as source and as target. A source of
mBART is `text </s> language`, and its decoder starts with the target's language in place of bos.
"""

from collections.abc import Mapping
from typing import Any

from experiment.schema import ConfigError, did_you_mean
from input_pipeline.tokenizers.special_tokens import Ids, Template
from input_pipeline.tokenizers.subword import SubwordTokenizer

# transformers' tokenizer classes: where the language is, and the default of src_lang.
CLASSES = {
    "mbart50": ("before", "en_XX"), "m2m100": ("before", "en"), "nllb": ("before", "eng_Latn"),
    "mbart": ("after", "en_XX"),
}  # fmt: skip
CLASS_OF_MODEL = {"m2m_100": "m2m100", "mbart": "mbart"}  # if the files name no class
# The languages of M2M-100's tokenizer, by language_codes in tokenizer_config.json. Its files do not
# have their ids, which follow those of vocab.json.
M2M_LANGUAGES = {
    "m2m100": (
        "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl "
        "gu ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml "
        "mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl "
        "tn tr uk ur uz vi wo xh yi yo zh zu"
    ),
    "wmt21": "en ha is ja cs ru zh de",
}


def m2m_token(language: str) -> str:
    """The token of a language in M2M-100's vocabulary."""
    return f"__{language}__"


def tokenizer_class(config: Mapping[str, Any], model_type: str) -> str:
    """The name of transformers' class without its ending, such as mbart50."""
    name = str(config.get("tokenizer_class") or CLASS_OF_MODEL.get(model_type, "")).lower()
    return name.removesuffix("fast").removesuffix("tokenizer")


def language_id(tokenizer: SubwordTokenizer, language: str, flag: str) -> int:
    """The id of a language's token, such as fr_XX, or fr for M2M-100's __fr__.

    Raises ConfigError, with the name of the flag, if the tokenizer has no such token.
    """
    pieces = {piece: id for id, piece in enumerate(tokenizer.pieces) if piece is not None}
    for name in (language, m2m_token(language)):
        id = pieces.get(name)
        if id is not None and tokenizer.is_control(id):
            return id
    names = [name for name, id in pieces.items() if tokenizer.is_control(id)]
    raise ConfigError(
        f"--{flag}={language} is not a special token of this tokenizer."
        f"{did_you_mean(language, names)} It has, among others: {', '.join(names[-8:])}"
    )


def with_source_language(
    tokenizer: SubwordTokenizer,
    template: Template,
    config: Mapping[str, Any],
    model_type: str,
    language: str = "",
) -> Template:
    """The special tokens around a source in a language; "": as the files say.

    template: what the tokenizer's post-processor adds. config: tokenizer_config.json.
    """
    known = CLASSES.get(tokenizer_class(config, model_type))
    if known and not (language or config.get("src_lang")):
        default = m2m_token(known[1]) if known[1] == "en" else known[1]
        known = known if default in tokenizer.pieces else None  # a vocabulary of another model
    if known:
        place, default = known
        language = language or str(config.get("src_lang") or default)
        id, end = language_id(tokenizer, language, "source_language"), tokenizer.eos_id
        if place == "before" and not config.get("legacy_behaviour"):
            return _single((id,), (end,))
        return _single((), (end, id))
    if not language:
        return template
    id = language_id(tokenizer, language, "source_language")
    usual = {tokenizer.bos_id, tokenizer.eos_id, tokenizer.cls_id, tokenizer.sep_id}
    others = [each for each in (*template.prefix, *template.suffix) if each not in usual]
    if len(others) != 1:
        raise ConfigError(
            f"--source_language={language}: this tokenizer puts no language beside a source; "
            "leave the flag out"
        )
    prefix, suffix = (
        tuple(id if each == others[0] else each for each in part)
        for part in (template.prefix, template.suffix)
    )
    return _single(prefix, suffix)


def _single(prefix: Ids, suffix: Ids) -> Template:
    """A template for one text; two are joined."""
    types = ((0,) * len(prefix), (), (0,) * len(suffix))
    return Template(prefix, suffix, (prefix, (), suffix), types, (0, 0))
