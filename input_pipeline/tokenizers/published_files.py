"""Reads published tokenizers; they give the ids that transformers gives.

    tokenizer.json    the `tokenizers` library's own format
    *.model           SentencePiece: Unigram as T5's tokenizer reads it, BPE as Llama's does;
                      sentencepiece.bpe.model as XLM-R's or CamemBERT's does
    vocab.txt         BERT, or ESM if the files beside it name that
    encoder.json      GPT-2, with vocab.bpe beside it; or vocab.json with merges.txt
    source.spm        Marian, with vocab.json and target.spm beside it; vocab.json may be named too

As in transformers, the name of a special token in a text (<|endoftext|>) becomes that token.
"""

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from absl import logging
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from experiment.schema import ConfigError
from experiment.untrusted_files import no_panic, require_regular
from input_pipeline.tokenizers import (
    bounded_encoding,
    byte_level,
    esm_vocabulary,
    sentencepiece,
)
from input_pipeline.tokenizers.added_tokens import (
    CONFIG_FILE_NAME,
    FILES_BESIDE,
    add_special,
    add_tokens,
    config_beside,
    named_tokens,
)
from input_pipeline.tokenizers.file_checks import require_safe
from input_pipeline.tokenizers.language_tokens import M2M_LANGUAGES, m2m_token, tokenizer_class
from input_pipeline.tokenizers.subword import (
    FILE_NAME,
    ROLES,
    ROLES_FILE_NAME,
    TARGET_TOKENIZER,
    SubwordTokenizer,
)

KNOWN = "tokenizer.json, a SentencePiece .model, vocab.txt, encoder.json, vocab.json or source.spm"
FAIRSEQ_NAME = "sentencepiece.bpe.model"  # of XLM-R and CamemBERT: unigram, in spite of its name
MARIAN_SOURCE, MARIAN_TARGET, MARIAN_VOCAB = "source.spm", "target.spm", "vocab.json"
# In exported models: how targets are split, if they are split differently.
TARGET_FILE_NAME = "target_tokenizer.json"
NEEDED_BESIDE = {**byte_level.MERGES_BESIDE, MARIAN_SOURCE: MARIAN_VOCAB}
MODEL_CONFIG_NAME = "config.json"
PREFIX_SPACE = "add_prefix_space"
CHAT_FILE_NAME = "chat_template.jinja"
LARGEST = 2**26  # bytes of a file
TRIAL = "Aé ß 1 ﬁ中\t\n"  # encoded once, because some damage shows only then

# Names of special tokens in published vocabularies, if there is no tokenizer_config.json.
NAMES = {
    "pad": ("[PAD]", "<pad>"),
    "bos": ("<s>", "<bos>", "<|endoftext|>", "<|begin_of_text|>"),
    "eos": ("</s>", "<eos>", "<|endoftext|>", "<|end_of_text|>"),
    "mask": ("[MASK]", "<mask>"),
    "cls": ("[CLS]",),
    "sep": ("[SEP]",),
}


# Tokenizer files of published models, the best first.
FILE_NAMES = (
    FILE_NAME, "spiece.model", FAIRSEQ_NAME, "tokenizer.model", "vocab.txt", MARIAN_SOURCE,
    "vocab.json", "encoder.json",
)  # fmt: skip


@dataclasses.dataclass
class Opened:
    """What the files of a tokenizer have."""

    tokenizer: Tokenizer
    roles: Mapping[str, int] = dataclasses.field(default_factory=dict)  # which the file itself says
    target: Tokenizer | None = None  # encodes targets, if it is another one than that of sources


def open_tokenizer(path: str | Path, limit: int | None = None) -> SubwordTokenizer:
    """The tokenizer in a file, or in the tokenizer.json of a directory.

    limit: the vocab_size of its model, if that is known.
    """
    path = Path(path)
    path = path / FILE_NAME if path.is_dir() else path
    if path.name == FILE_NAME and (path.parent / ROLES_FILE_NAME).exists():
        return SubwordTokenizer.load(path.parent)
    if not path.is_file():
        raise ConfigError(f"data.tokenizer={str(path)!r} is no file; name one of: {KNOWN}")
    _refuse_huge(path)
    with named_refusals(path):
        opened = _open(path)
        for each in filter(None, (opened.tokenizer, opened.target)):
            add_tokens(each, path, limit)
            bounded_encoding.encode(each, TRIAL)
        return _with_roles(opened, named_tokens(config_beside(path)))


def _open(path: Path) -> Opened:
    if path.name == FAIRSEQ_NAME and _class_beside(path) == "m2m100":
        return _m2m(path)
    if path.name == FAIRSEQ_NAME:
        return Opened(*sentencepiece.read_as_fairseq(path.read_bytes(), _fairseq_kind(path)))
    if path.suffix == ".model":
        says = config_beside(path)
        says = {key: says[key] for key in (PREFIX_SPACE, "legacy") if says.get(key) is not None}
        return Opened(*sentencepiece.read(path.read_bytes(), **says))
    if path.name == "vocab.txt":
        config = config_beside(path)
        if esm_vocabulary.is_esm(config, _model_type_beside(path)):
            return Opened(*esm_vocabulary.read(path.read_text(encoding="utf-8"), config))
        return _bert(path)
    if is_marian(path):
        return _marian(path)
    if path.name in byte_level.MERGES_BESIDE:
        return Opened(byte_level.read(path, config_beside(path), _model_type_beside(path)))
    if path.suffix == ".json":
        return _library(path)
    raise ConfigError(f"data.tokenizer={str(path)!r} has an unknown name; give one of: {KNOWN}")


def is_marian(path: Path) -> bool:
    """Whether a file belongs to Marian's tokenizer."""
    named = path.name in (MARIAN_SOURCE, MARIAN_VOCAB)
    return named and path.with_name(MARIAN_SOURCE).is_file()


@contextlib.contextmanager
def named_refusals(path: Path) -> Iterator[None]:
    """Turns any error into a ConfigError that names the file."""
    try:
        with no_panic():
            yield
    except ConfigError:
        raise
    except Exception as error:  # the library's errors have no class of their own
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"{path} cannot be read as a tokenizer ({reason}); restore it, or name another file"
        ) from error


def _refuse_huge(path: Path) -> None:
    """Raises ConfigError before a huge file is read; large tokenizers have half of LARGEST."""
    beside = [*FILES_BESIDE, CHAT_FILE_NAME, MARIAN_VOCAB, MARIAN_TARGET, TARGET_FILE_NAME]
    beside.append(MODEL_CONFIG_NAME)
    for name in (path.name, *beside):
        each = require_regular(path.with_name(name))
        if each.is_file() and each.stat().st_size > LARGEST:
            raise ConfigError(
                f"{each} has {each.stat().st_size:,} bytes, more than a tokenizer's "
                f"{LARGEST:,}; name another file"
            )


def _library(path: Path) -> Opened:
    content = path.read_text(encoding="utf-8")
    layout = json.loads(content)
    if not isinstance(layout, dict) or "model" not in layout:
        raise ValueError("it has no model section; give a file that the tokenizers library wrote")
    require_safe(layout)
    tokenizer = Tokenizer.from_str(content)
    return Opened(tokenizer, target=_library_target(path, tokenizer))


def _library_target(path: Path, tokenizer: Tokenizer) -> Tokenizer | None:
    file = path.with_name(TARGET_FILE_NAME)
    if not file.is_file():
        return None
    with named_refusals(file):
        content = file.read_text(encoding="utf-8")
        require_safe(json.loads(content))
        target = Tokenizer.from_str(content)
        if target.get_vocab() != tokenizer.get_vocab():
            raise ValueError(f"its ids are not those of {path.name}")
    return target


def _fairseq_kind(path: Path) -> str:
    """Which of fairseq's models a file belongs to, by the configs beside it."""
    name = str(config_beside(path).get("tokenizer_class") or _model_type_beside(path))
    known = {"camembert": "camembert", "xlmroberta": "xlm-roberta", "": "xlm-roberta"}
    name = name.removesuffix("Fast").removesuffix("Tokenizer").lower().replace("-", "")
    if name not in known:
        raise ValueError(f"it is read for XLM-R and CamemBERT, not for {name}")
    return known[name]


def _class_beside(path: Path) -> str:
    return tokenizer_class(config_beside(path), _model_type_beside(path))


def _m2m(path: Path) -> Opened:
    """M2M-100's tokenizer: vocab.json has the ids of pieces, and its class those of languages."""
    vocab_path, config = path.with_name(MARIAN_VOCAB), config_beside(path)
    if not vocab_path.is_file():
        raise ValueError(f"it needs {vocab_path.name} beside it")
    vocab = json.loads(vocab_path.read_text(encoding="utf-8"))
    codes = config.get("language_codes", "m2m100")
    if codes not in M2M_LANGUAGES:
        raise ValueError(f"{CONFIG_FILE_NAME} has language_codes={codes!r}, which is not known")
    languages = [m2m_token(language) for language in M2M_LANGUAGES[codes].split()]
    unknown = named_tokens(config).get("unk", "<unk>")
    tokenizer, missing = sentencepiece.read_m2m(path.read_bytes(), vocab, unknown, languages)
    if missing:
        logging.warning(
            "%d pieces of %s are not in %s, so smaller pieces spell them: %s",
            len(missing), path, MARIAN_VOCAB, " ".join(missing[:10]),
        )  # fmt: skip
    return Opened(tokenizer)


def _model_type_beside(path: Path) -> str:
    """The model_type in the model's config.json beside a file; "" without one."""
    config = path.with_name(MODEL_CONFIG_NAME)
    found = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
    return str(found.get("model_type") or "")


def _bert(path: Path) -> Opened:
    vocab = models.WordPiece.read_file(str(path))
    if "[UNK]" not in vocab:
        raise ValueError("it has no [UNK], so it is not a vocabulary of BERT")
    config = config_beside(path)
    is_lower = not any(piece != piece.lower() for piece in vocab if not piece.startswith("["))
    if config.get("do_lower_case") is None:
        logging.info(
            "%s does not say whether to lower-case texts (do_lower_case in %s): %s, because the "
            "vocabulary has %s upper-case letters",
            path, CONFIG_FILE_NAME, "yes" if is_lower else "no", "no" if is_lower else "some",
        )  # fmt: skip
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=config.get("do_lower_case", is_lower),
        strip_accents=config.get("strip_accents"),
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    usual = {role: f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}
    add_special(tokenizer, [*(usual | named_tokens(config)).values()])
    return Opened(tokenizer)


def _marian(path: Path) -> Opened:
    """Marian's tokenizer: one vocabulary, and one way to split texts for each language."""
    source, target = path.with_name(MARIAN_SOURCE), path.with_name(MARIAN_TARGET)
    vocab_path = path.with_name(MARIAN_VOCAB)
    if not vocab_path.is_file():
        raise ValueError(f"it needs {vocab_path.name} beside it")
    vocab, config = json.loads(vocab_path.read_text(encoding="utf-8")), config_beside(path)
    if config.get("separate_vocabs"):
        raise ValueError(f"{CONFIG_FILE_NAME} has separate_vocabs; only a shared one is read")
    names = {"unk": "<unk>", "eos": "</s>", "pad": "<pad>"}
    names |= {role: name for role, name in named_tokens(config).items() if role in names}
    of_source = _marian_language(source, vocab, names)
    of_target = None
    if not target.is_file():
        logging.warning(
            "%s is missing, so targets are split as a source is; scores of targets and training "
            "on them need it",
            target,
        )
    elif target.read_bytes() != source.read_bytes():
        with named_refusals(target):
            of_target = _marian_language(target, vocab, names)
    roles = {role: vocab.get(names[role]) for role in ("eos", "pad")}
    roles = {role: id for role, id in roles.items() if id is not None}
    return Opened(of_source, roles, of_target)


def _marian_language(path: Path, vocab: Mapping[str, int], special: Mapping[str, str]) -> Tokenizer:
    """Splits texts as one .spm does, with the ids of both. `special`: names by role."""
    tokenizer, missing = sentencepiece.read_with_vocabulary(
        path.read_bytes(), vocab, special["unk"]
    )
    if missing:
        logging.warning(
            "%d pieces of %s are not in %s, so smaller pieces spell them: %s",
            len(missing), path, MARIAN_VOCAB, " ".join(missing[:10]),
        )  # fmt: skip
    add_special(tokenizer, list(special.values()))
    return tokenizer


def _with_roles(opened: Opened, named: Mapping[str, str]) -> SubwordTokenizer:
    """Adds roles: by the names that the files beside give, else as the file itself says, else by
    the usual names. The rest is filled as the models do it: BERT's cls and sep are bos and eos,
    T5's pad begins a decoder's text, GPT-2's eos is all three.
    """
    vocab = opened.tokenizer.get_vocab()
    ids = {
        role: next((vocab[n] for n in names if n in vocab), None) for role, names in NAMES.items()
    }
    ids |= opened.roles
    ids |= {role: vocab[name] for role, name in named.items() if role in ROLES and name in vocab}
    ids["eos"] = _first(ids["eos"], ids["sep"])
    ids["bos"] = _first(ids["bos"], ids["cls"], ids["pad"], ids["eos"])
    ids["pad"] = _first(ids["pad"], ids["eos"])
    sentinels = [vocab.get(f"<extra_id_{number}>") for number in range(100)]
    sentinels = [id for id in sentinels if id is not None]
    published = {TARGET_TOKENIZER: opened.target.to_str()} if opened.target else {}
    return SubwordTokenizer(opened.tokenizer.to_str(pretty=True), ids, sentinels, published)


def _first(*ids: int | None) -> int | None:
    return next((id for id in ids if id is not None), None)
