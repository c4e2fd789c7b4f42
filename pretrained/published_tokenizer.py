"""Reads the tokenizer of a published model, and writes the tokenizer of an exported model."""

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from absl import logging

from experiment.schema import ConfigError
from input_pipeline.tokenizers.added_tokens import CONFIG_FILE_NAME, with_covering_mask
from input_pipeline.tokenizers.id_tokenizer import IdTokenizer
from input_pipeline.tokenizers.language_tokens import language_id
from input_pipeline.tokenizers.published_files import (
    FILE_NAMES,
    NEEDED_BESIDE,
    TARGET_FILE_NAME,
    open_tokenizer,
)
from input_pipeline.tokenizers.published_specials import as_published
from input_pipeline.tokenizers.special_tokens import Template, with_template
from input_pipeline.tokenizers.subword import (
    CHAT_TEMPLATE,
    FILE_NAME,
    ROLES_FILE_NAME,
    TARGET_TOKENIZER,
    TEXT_START,
    SubwordTokenizer,
)
from input_pipeline.tokenizers.tokenizer import Tokenizer
from model.config import TransformerConfig
from pretrained import model_files, published
from pretrained.architecture import Specials
from pretrained.special_tokens_record import LENGTH, SpecialTokensRecord
from training.config import TaskConfig

NO_TOKENIZER = "none"  # the value of --tokenizer for a model without one


@dataclasses.dataclass(frozen=True)
class Languages:
    """The languages of a translation model, by their tokens or names; "": as its files say."""

    source: str = ""
    target: str = ""


AS_PUBLISHED = Languages()


def read(
    found: published.Published,
    path: str,
    *,
    source_eos: bool = True,
    languages: Languages = AS_PUBLISHED,
) -> SubwordTokenizer | IdTokenizer:
    """Reads the tokenizer in `path`, or else in the model's directory, with the special ids.

    Without `source_eos`, the source of an encoder-decoder does not end with eos.
    """
    with _in_terms_of_flags():
        return _read(found, path, source_eos=source_eos, languages=languages)


@contextlib.contextmanager
def _in_terms_of_flags() -> Iterator[None]:
    """Errors name the flag --tokenizer instead of the config key data.tokenizer."""
    try:
        yield
    except ConfigError as error:
        renamed = [each.replace("data.tokenizer=", "--tokenizer=") for each in error.problems]
        raise ConfigError(renamed) from error


def _read(
    found: published.Published, path: str, *, source_eos: bool, languages: Languages
) -> SubwordTokenizer | IdTokenizer:
    ids, kind = found.specials, found.architecture.model_type
    has_source = found.model["family"] == "encoder_decoder"
    if not source_eos and not has_source:
        raise ConfigError(
            "--nosource_eos is for encoder-decoders, and this model is none; leave it out"
        )
    if (languages.source or languages.target) and (not has_source or path == NO_TOKENIZER):
        raise ConfigError(
            "--source_language and --target_language are for encoder-decoders with a tokenizer; "
            "leave them out"
        )
    if languages.target and kind == "marian":
        raise ConfigError(
            f"--target_language={languages.target}: Marian reads the language of the target "
            "at the start of a source, such as >>fra<<; write it there, and leave the flag out"
        )
    roles = {"pad": ids.pad, "bos": ids.bos, "eos": ids.eos}
    if has_source:
        roles["bos"] = ids.decoder_start  # begins an output
    if kind in ("roberta", "xlm-roberta", "camembert", "mpnet", "bart"):
        roles |= {"cls": ids.bos, "sep": ids.eos}
    begins_with_language = kind in ("mbart", "m2m_100") and ids.decoder_start == ids.eos
    if kind == "bart" or (begins_with_language and not languages.target):
        roles[TEXT_START] = ids.forced_bos
    elif has_source and ids.forced_bos is not None and not languages.target:
        logging.warning(
            "forced_bos_token_id=%d is not forced here, because most models of the type %s were "
            "not trained so; if this one was, give that token with --target_language",
            ids.forced_bos, kind,
        )  # fmt: skip
    size = found.model["vocab_size"]
    banned = [id for id in ids.banned if id < size]
    if path == NO_TOKENIZER:
        return IdTokenizer(
            roles, size, more_eos_ids=ids.more_eos, forced_eos=ids.forced_eos, banned_ids=banned
        )
    own, file = _own_file(found.directory), _file(found, path)
    if kind in ("pegasus", "albert") and file.suffix == ".model":
        raise ConfigError(
            f"{file}: {kind} reads the pieces of this file in its own way, which is missing here; "
            "write a tokenizer.json with transformers: tokenizer.save_pretrained(DIR)"
        )
    tokenizer = open_tokenizer(file, limit=size)
    ends = [id for id in (ids.eos, *ids.more_eos) if id is not None]
    if tokenizer.eos_id in ends:  # prefer the tokenizer's own id
        roles["eos"] = tokenizer.eos_id
    if languages.target:
        id = language_id(tokenizer, languages.target, "target_language")
        # mBART's decoder starts with the language in place of bos.
        starts = has_source and kind == "mbart" and not begins_with_language
        roles["bos" if starts else TEXT_START] = id
    elif begins_with_language and ids.forced_bos is None:
        logging.warning(
            "outputs of this model begin with the token of a language, and its files name none: "
            "give --target_language, or generate.py --prefix for each language"
        )
    tokenizer = tokenizer.with_roles({role: id for role, id in roles.items() if id is not None})
    named = {role: getattr(tokenizer, f"{role}_id") for role in ("pad", "bos", "eos")}
    for role, id in [*named.items(), *((TEXT_START, id) for id in tokenizer.text_start_ids)]:
        if id is not None and id >= size:
            raise ConfigError(
                f"{found.directory}: the id of {role}, {id}, is not below vocab_size={size}"
            )
    replaces_own = path and own and not own.samefile(file)
    if tokenizer.vocab_size > size:
        instead = f"leave it out, to use {own}" if replaces_own else "give the model's own"
        raise ConfigError(
            f"{found.directory}: the tokenizer has {tokenizer.vocab_size} ids, but the model's "
            f"vocab_size is {size}; --tokenizer={path or 'FILE'}: {instead}"
        )
    if replaces_own:
        logging.warning("%s", _taken_instead(tokenizer, file, own))
    more_eos = [id for id in ends if id != tokenizer.eos_id]
    tokenizer = as_published(
        tokenizer, file, kind, source_eos=source_eos, more_eos=more_eos,
        forced_eos=ids.forced_eos, banned=banned, model_class=found.tokenizer_class,
        source_language=languages.source,
    )  # fmt: skip
    if tokenizer.template.is_empty and found.model["family"] != "decoder" and source_eos:
        logging.warning(
            "the tokenizer adds no special tokens, such as [CLS] or </s>, to a text; that is rare "
            "for %s: compare its ids with those of the published model",
            kind,
        )
    return tokenizer


def published_file(found: published.Published, path: str) -> Path | None:
    """The published file that `read` reads; None without a tokenizer, or with one of a run."""
    file = None if path == NO_TOKENIZER else _file(found, path)
    return None if file is None or file.with_name(ROLES_FILE_NAME).exists() else file


def _file(found: published.Published, path: str) -> Path:
    own = _own_file(found.directory)
    file = Path(path) if path else _inside(own or _refuse_missing(found.directory))
    return file / FILE_NAME if file.is_dir() else file


def describe(tokenizer: SubwordTokenizer | IdTokenizer) -> str:
    """A line on the special tokens before and after a text, and on the end tokens."""
    if isinstance(tokenizer, IdTokenizer):
        return "without a tokenizer: give generate.py --ids"
    # A model may have more ids than its tokenizer has pieces.
    pieces, template = dict(enumerate(tokenizer.pieces)), tokenizer.template
    before, after = ([pieces[id] for id in ids] for ids in (template.prefix, template.suffix))
    tokens = [*before, "TEXT", *after]
    ends = (tokenizer.eos_id, *tokenizer.more_eos_ids)
    ends = " or ".join(pieces.get(id) or f"the id {id}" for id in ends if id is not None)
    return f"a text is read as {' '.join(tokens)}; eos is {ends or 'missing'}"


def _taken_instead(tokenizer: SubwordTokenizer, file: Path, own: Path) -> str:
    """A warning if --tokenizer=FILE replaces the directory's own tokenizer."""
    line = f"--tokenizer={file} is taken instead of {own}"
    try:
        pieces = open_tokenizer(_inside(own)).pieces
    except ConfigError:
        return f"{line}, which cannot be read"
    pairs = list(itertools.zip_longest(tokenizer.pieces, pieces))
    others = sum(given != theirs for given, theirs in pairs)
    if not others:
        return f"{line}; they have the same {len(pairs):,} ids"
    return (
        f"{line}; {others:,} of {len(pairs):,} ids stand for other text, which is wrong unless the "
        "model was trained with this file"
    )


def _own_file(directory: Path) -> Path | None:
    """The tokenizer's file in a model's directory; None if there is none."""
    for name in FILE_NAMES:
        path = directory / name
        if path.is_file() and (directory / NEEDED_BESIDE.get(name, name)).is_file():
            return path
    return None


def _inside(file: Path) -> Path:
    return model_files.inside(file.parent, file.name)


def _refuse_missing(directory: Path) -> NoReturn:
    others = sorted(p.name for p in directory.iterdir() if p.suffix in (".spm", ".model"))
    named = f"; {', '.join(others)} cannot be read" if others else ""
    known = [f"{n} with {NEEDED_BESIDE[n]}" if n in NEEDED_BESIDE else n for n in FILE_NAMES]
    raise ConfigError(
        f"{directory} has none of {', '.join(known)}{named}; give one with --tokenizer=FILE, or "
        f"--tokenizer={NO_TOKENIZER} to use the model with ids alone"
    )


def special_ids(tokenizer: Tokenizer | None, model: TransformerConfig) -> Specials:
    """The special ids that an exported config has."""
    if tokenizer is None:
        return Specials()
    pad, bos, eos = tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id
    if isinstance(tokenizer, IdTokenizer):  # which may not know all special ids
        pad, bos, eos = (tokenizer.roles[role] for role in ("pad", "bos", "eos"))
    more = tokenizer.more_eos_ids
    if model.family == "encoder_decoder":
        start = next(iter(tokenizer.text_start_ids), None)
        # BART's own bos; mBART-50 begins targets with a language.
        named = start if start in (None, tokenizer.cls_id) else tokenizer.cls_id
        return Specials(pad, named, eos, decoder_start=bos, more_eos=more, forced_bos=start)
    return Specials(pad, bos, eos, more_eos=more)


def write(
    directory: Path,
    tokenizer: SubwordTokenizer,
    model: TransformerConfig,
    task: TaskConfig,
    record: SpecialTokensRecord | None = None,
    chat_template: str | None = None,
) -> None:
    """Writes tokenizer.json, with a post-processor, and tokenizer_config.json.

    The special tokens, the maximum length, the side of padding etc. are those of `record`, if it
    has them. `chat_template` takes the place of the tokenizer's own.
    """
    template = _template(tokenizer, model, task)
    content = with_template(tokenizer.content, template)
    # Prompts of an imported model read its mask as its files say; those of a run trained here let
    # the mask cover the space before it, as in training.
    is_masked_lm = task.objective_spec.head == "masked_language_model"
    if is_masked_lm and not tokenizer.reads_mask and tokenizer.mask_name is not None:
        content = with_covering_mask(content, tokenizer.mask_name)
    (directory / FILE_NAME).write_text(content, encoding="utf-8")
    if target := tokenizer.published.get(TARGET_TOKENIZER):
        (directory / TARGET_FILE_NAME).write_text(target, encoding="utf-8")
        logging.warning(
            "transformers reads one %s, which splits targets as a source is split; only convert.py "
            "reads %s", FILE_NAME, TARGET_FILE_NAME,
        )  # fmt: skip
    config = {"tokenizer_class": "PreTrainedTokenizerFast"}
    if record is not None and record.tokens is not None:
        config |= record.tokenizer_config
    else:
        config |= {f"{role}_token": name for role, name in _names(tokenizer, model).items()}
        if model.position == "learned":
            config[LENGTH] = model.max_length
    if model.token_types and template.token_types > 1:  # which this class else leaves out
        config["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    if chat_template := chat_template or tokenizer.published.get(CHAT_TEMPLATE):
        config[CHAT_TEMPLATE] = chat_template
    model_files.write_json(directory / CONFIG_FILE_NAME, config)


def _names(tokenizer: SubwordTokenizer, model: TransformerConfig) -> dict[str, str]:
    """The special tokens by role, as in the model's training."""
    names = tokenizer.role_names
    start = names.pop(TEXT_START, None)
    if start is not None:
        names["bos"] = start
    elif model.family == "encoder_decoder" and list(names.values()).count(names.get("bos")) > 1:
        del names["bos"]  # such as T5's padding, with which the decoder starts
    if tokenizer.unknown_id is not None:
        names["unk"] = tokenizer.pieces[tokenizer.unknown_id]
    return names


def _template(tokenizer: SubwordTokenizer, model: TransformerConfig, task: TaskConfig) -> Template:
    """The special tokens before and after texts, as in the model's training."""
    if tokenizer.template is not None:
        return tokenizer.template
    if not tokenizer.own_template.is_empty:  # an earlier version imported the model
        return tokenizer.own_template
    if model.family == "encoder_decoder":
        start, end = tokenizer.source_affixes
        types = ((0,) * len(start), (0,) * len(end), (0,) * len(end))
        return Template(start, end, (start, end, end), types, (0, 0))
    if model.family == "decoder" and task.objective_spec.head == "language_model":
        start = tokenizer.causal_prefix
        return Template(start, (), (start, (), ()), ((0,), (), ()), (0, 0))
    return tokenizer.encoder_template
