"""What transformers' tokenizer classes add to the files: special tokens, token types, templates."""

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from input_pipeline.tokenizers.added_tokens import (
    config_beside,
    named_tokens,
    with_strips,
)
from input_pipeline.tokenizers.published_files import (
    CHAT_FILE_NAME,
    MERGES_BESIDE,
    add_special,
    named_refusals,
)
from input_pipeline.tokenizers.special_tokens import (
    Template,
    bert_like,
    read_template,
    with_template,
)
from input_pipeline.tokenizers.subword import (
    CHAT_TEMPLATE,
    CHAT_TOKENS,
    FILE_NAME,
    SubwordTokenizer,
)

# The special tokens that transformers' tokenizer classes add, if the files do not say which.
FRAMES = {
    "bert": "bert", "distilbert": "bert", "roberta": "roberta", "bart": "roberta",
    "electra": "bert", "mpnet": "roberta", "xlm-roberta": "roberta", "xlmroberta": "roberta",
    "camembert": "roberta",
    "t5": "eos", "mt5": "eos", "umt5": "eos", "pegasus": "eos", "marian": "eos",
}  # fmt: skip


ROBERTA_SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def as_published(
    tokenizer: SubwordTokenizer,
    path: str | Path,
    model_type: str,
    *,
    source_eos: bool = True,
    more_eos: Iterable[int] = (),
    forced_eos: bool = False,
    banned: Iterable[int] = (),
    model_class: str = "",
) -> SubwordTokenizer:
    """The tokenizer with the special tokens and the chat template of its published model.

    path: the tokenizer's file. model_type: as in the model's config. source_eos: False removes eos
    from the source of an encoder-decoder, whatever the files say. more_eos: further ids that end
    an answer. forced_eos: an answer of maximum length ends in eos. banned: ids that are never
    generated. model_class: tokenizer_class in the model's config, for a tokenizer that names none
    itself.
    """
    path = Path(path)
    path = path / FILE_NAME if path.is_dir() else path
    with named_refusals(path):
        config, content = config_beside(path), tokenizer.content
        if path.name in MERGES_BESIDE:
            backend = Tokenizer.from_str(content)
            add_special(backend, ROBERTA_SPECIALS)
            if config.get("add_prefix_space"):
                backend.pre_tokenizer.add_prefix_space = True
            content = backend.to_str(pretty=True)
        content = with_strips(content, config, is_library_file=path.name == FILE_NAME)
        template = read_template(Tokenizer.from_str(content))
        if template.is_empty and tokenizer.template is None:
            template = _frame(tokenizer, path, config, model_type) or template
        is_from_hub = tokenizer.template is None  # not from another run
        if is_from_hub and not _gives_token_types(config, model_type, model_class):
            template = template.without_types()
        if not source_eos and template.suffix[-1:] == (tokenizer.eos_id,):
            template = dataclasses.replace(template, suffix=template.suffix[:-1])
        content = with_template(content, template)
        # A tokenizer of another run has its chat template in tokenizer_roles.json.
        chat, tokens = _chat_template(path, config), named_tokens(config)
        if not chat:
            chat = tokenizer.published.get(CHAT_TEMPLATE)
            tokens = tokenizer.published.get(CHAT_TOKENS, tokens)
        truncation = config.get("truncation_side")
        truncates_left = tokenizer.truncates_left if truncation is None else truncation == "left"
        return tokenizer.as_published(
            content, chat, more_eos, forced_eos=forced_eos, truncates_left=truncates_left,
            banned=banned, chat_tokens=tokens,
        )  # fmt: skip


def with_chat_template(tokenizer: SubwordTokenizer, path: str | Path) -> SubwordTokenizer:
    """The tokenizer of a file with the chat template beside that file, if there is one."""
    path = Path(path)
    path = path / FILE_NAME if path.is_dir() else path
    with named_refusals(path):
        config = config_beside(path)
        chat = _chat_template(path, config)
        if not chat or CHAT_TEMPLATE in tokenizer.published:
            return tokenizer
        return tokenizer.with_chat_template(chat, named_tokens(config))


# The classes that transformers takes for models with token types whose files name none.
ENCODER_CLASSES = {
    "bert": "BertTokenizer", "roberta": "RobertaTokenizer", "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer", "electra": "BertTokenizer",
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


def _gives_token_types(config: Mapping, model_type: str, model_class: str) -> bool:
    """Whether transformers gives the model token types; without them it reads zeros."""
    if model_type not in ENCODER_CLASSES:
        return True  # other models have no token types
    if isinstance(names := config.get("model_input_names"), list):
        return "token_type_ids" in names
    name = config.get("tokenizer_class") or model_class or ENCODER_CLASSES[model_type]
    return str(name).removesuffix("Fast") in WITH_TOKEN_TYPES


def _frame(
    tokenizer: SubwordTokenizer, path: Path, config: Mapping, model_type: str
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
        case "eos" if eos is not None:
            end = (eos,)
            return Template((), end, ((), end, end), ((), (0,), (0,)), (0, 0))
    if path.name == FILE_NAME:
        return None  # its post-processor adds all special tokens
    start = (bos,) if config.get("add_bos_token") and bos is not None else ()
    end = (eos,) if config.get("add_eos_token") and eos is not None else ()
    types = ((0,) * len(start), (0,) * len(end) + (1,) * len(start), (1,) * len(end))
    return Template(start, end, (start, end + start, end), types)


def _chat_template(path: Path, config: Mapping) -> Any:
    """The chat template, from its file or the tokenizer's config: a string, or several by name."""
    file = path.with_name(CHAT_FILE_NAME)
    if file.is_file():
        return file.read_text(encoding="utf-8")
    return config.get("chat_template")
