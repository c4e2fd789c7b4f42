"""What transformers' tokenizer classes add to the files: special tokens, token types, templates."""

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from absl import logging
from tokenizers import Tokenizer

from input_pipeline.tokenizers import byte_level
from input_pipeline.tokenizers.added_tokens import config_beside, named_tokens, with_strips
from input_pipeline.tokenizers.class_template import class_template
from input_pipeline.tokenizers.language_tokens import with_source_language
from input_pipeline.tokenizers.published_files import (
    CHAT_FILE_NAME,
    PREFIX_SPACE,
    is_marian,
    named_refusals,
)
from input_pipeline.tokenizers.special_tokens import read_template, with_template
from input_pipeline.tokenizers.subword import (
    CHAT_TEMPLATE,
    CHAT_TOKENS,
    FILE_NAME,
    SubwordTokenizer,
)


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
    source_language: str = "",
) -> SubwordTokenizer:
    """The tokenizer with the special tokens and the chat template of its published model.

    path: the tokenizer's file. model_type: as in the model's config. source_eos: False removes eos
    from the source of an encoder-decoder, whatever the files say. more_eos: further ids that end
    an answer. forced_eos: an answer of maximum length ends in eos. banned: ids that are never
    generated. model_class: tokenizer_class in the model's config, for a tokenizer that names none
    itself. source_language: the language of the source, if the files have another one.
    """
    path = Path(path)
    path = path / FILE_NAME if path.is_dir() else path
    with named_refusals(path):
        config, content = config_beside(path), tokenizer.content
        if path.name in byte_level.MERGES_BESIDE and not is_marian(path):
            if not byte_level.is_class_known(config, model_type):
                logging.warning(
                    "%s does not say how a text of %s is split into words: it is split as by "
                    "GPT-2, which may be wrong; give the model's %s", path, model_type, FILE_NAME,
                )  # fmt: skip
            backend, prefix_space = Tokenizer.from_str(content), bool(config.get(PREFIX_SPACE))
            byte_level.set_class(backend, config, model_type, prefix_space=prefix_space)
            content = backend.to_str(pretty=True)
        content = with_strips(content, config, is_library_file=path.name == FILE_NAME)
        template = read_template(Tokenizer.from_str(content))
        if tokenizer.template is None:  # it is not from another run
            template = class_template(
                tokenizer, template, config, model_type, model_class=model_class,
                is_library_file=path.name == FILE_NAME,
            )  # fmt: skip
            template = with_source_language(
                tokenizer, template, config, model_type, source_language
            )
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


def _chat_template(path: Path, config: Mapping) -> Any:
    """The chat template, from its file or the tokenizer's config: a string, or several by name."""
    file = path.with_name(CHAT_FILE_NAME)
    if file.is_file():
        return file.read_text(encoding="utf-8")
    return config.get("chat_template")
