"""The special tokens that transformers' tokenizer classes add to a text by themselves.

A published tokenizer.json has a post-processor that adds them. Other files have none, and some
classes replace that of a tokenizer.json.
"""

from collections.abc import Mapping
from typing import Any

from input_pipeline.tokenizers.special_tokens import Ids, SpecialTokens, Template, bert_like

FRAMES = {
    "bert": "bert", "distilbert": "bert", "roberta": "roberta", "bart": "roberta",
    "electra": "bert", "albert": "bert", "mpnet": "roberta", "xlm-roberta": "roberta",
    "xlmroberta": "roberta", "camembert": "roberta", "esm": "esm",
    "t5": "eos", "mt5": "eos", "umt5": "eos", "pegasus": "eos", "marian": "eos",
}  # fmt: skip
# The classes that transformers takes for models with token types whose files name none.
ENCODER_CLASSES = {
    "bert": "BertTokenizer", "roberta": "RobertaTokenizer", "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer", "electra": "BertTokenizer",
    "albert": "AlbertTokenizer",
}  # fmt: skip
# transformers' classes that give a model the token types of two texts, if the files do not say.
WITH_TOKEN_TYPES = frozenset(
    (
        "BertTokenizer", "MobileBertTokenizer", "SqueezeBertTokenizer", "DebertaTokenizer",
        "DebertaV2Tokenizer",
        "ElectraTokenizer", "FNetTokenizer", "CanineTokenizer", "TapasTokenizer",
        "MarkupLMTokenizer", "LayoutLMv2Tokenizer",
    )
)  # fmt: skip
# This class adds special tokens only if add_bos_token or add_eos_token in tokenizer_config.json
# asks for them, whatever the post-processor of a tokenizer.json adds. The models of the last line
# get no class, or another one than their files name.
NEOX_CLASS, NEOX_MODEL = "GPTNeoXTokenizer", "gpt_neox"
WITHOUT_CLASS = ("granite", "mistral", "mixtral", "olmo2", "phi3", "qwen2", "stablelm")


def class_template(
    tokenizer: SpecialTokens,
    own: Template,
    config: Mapping[str, Any],
    model_type: str,
    *,
    model_class: str,
    is_library_file: bool,
) -> Template:
    """The special tokens around texts, and the token types, that transformers gives a model.

    own: what the post-processor of the file adds. config: tokenizer_config.json. model_class:
    tokenizer_class in the model's config.
    """
    template = own
    if is_library_file and _is_neox(config, model_type, model_class):
        template = own if config.get("add_bos_token") or config.get("add_eos_token") else Template()
    elif own.is_empty:
        template = _frame(tokenizer, config, model_type, is_library_file=is_library_file) or own
    if _gives_token_types(config, model_type, model_class):
        return template
    return template.without_types()


def _is_neox(config: Mapping[str, Any], model_type: str, model_class: str) -> bool:
    name = str(config.get("tokenizer_class") or model_class).removesuffix("Fast")
    named = name == NEOX_CLASS or (not name and model_type == NEOX_MODEL)
    return named and model_type not in WITHOUT_CLASS


def _gives_token_types(config: Mapping, model_type: str, model_class: str) -> bool:
    """Whether transformers gives the model token types; without them it reads zeros."""
    if model_type not in ENCODER_CLASSES:
        return True  # other models have no token types
    if isinstance(names := config.get("model_input_names"), list):
        return "token_type_ids" in names
    name = config.get("tokenizer_class") or model_class or ENCODER_CLASSES[model_type]
    return str(name).removesuffix("Fast") in WITH_TOKEN_TYPES


def _frame(
    tokenizer: SpecialTokens, config: Mapping[str, Any], model_type: str, *, is_library_file: bool
) -> Template | None:
    """The special tokens that transformers' tokenizer class adds by itself, or None."""
    name = str(config.get("tokenizer_class") or model_type).lower()
    name = name.removesuffix("fast").removesuffix("tokenizer")
    bos, eos, cls, sep = tokenizer.bos_id, tokenizer.eos_id, tokenizer.cls_id, tokenizer.sep_id
    match FRAMES.get(name):
        case "bert" if cls is not None and sep is not None:
            return bert_like(cls, sep)
        case "roberta" if bos is not None and eos is not None:
            start, end = (bos if cls is None else cls,), (eos if sep is None else sep,)
            return Template(start, end, (start, end + end, end), ((0,), (0, 0), (0,)), (0, 0))
        case "esm" if cls is not None and eos is not None:
            start, end = (cls,), (eos,)
            return Template(start, end, (start, end, end), ((0,), (0,), (0,)), (0, 0))
        case "eos" if eos is not None:
            end = (eos,)
            return Template((), end, ((), end, end), ((), (0,), (0,)), (0, 0))
    if is_library_file:
        return None  # its post-processor adds all special tokens
    return _by_flags(tokenizer, config)


def _by_flags(tokenizer: SpecialTokens, config: Mapping[str, Any]) -> Template:
    """bos before and eos after each text, as tokenizer_config.json says."""
    bos, eos = tokenizer.bos_id, tokenizer.eos_id
    start: Ids = (bos,) if config.get("add_bos_token") and bos is not None else ()
    end: Ids = (eos,) if config.get("add_eos_token") and eos is not None else ()
    types = ((0,) * len(start), (0,) * len(end) + (1,) * len(start), (1,) * len(end))
    return Template(start, end, (start, end + start, end), types)
