"""Subword tokenizers: the `tokenizers` library encodes; this class adds special ids by role.

A tokenizer is the library's JSON plus the roles, which that JSON lacks. Both are saved, and the
digest covers both.
"""

import contextlib
import functools
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tokenizers import Encoding, Tokenizer, models

from experiment.schema import ConfigError
from experiment.untrusted_files import no_panic, require_regular
from input_pipeline.tokenizers import bounded_encoding
from input_pipeline.tokenizers.file_checks import may_be_slow
from input_pipeline.tokenizers.special_tokens import SpecialTokens, Template, read_template

FILE_NAME, ROLES_FILE_NAME = "tokenizer.json", "tokenizer_roles.json"
ROLES = ("pad", "bos", "eos", "mask", "cls", "sep")
# BART: begins both texts of an encoder-decoder, after bos in the decoder. It enters the digest only
# if it is set, so older digests stay valid.
TEXT_START = "text_start"
# Keys of a published tokenizer: whether its post-processor adds the special tokens, its chat
# template (for export), further ids that end an answer, whether an answer of the maximum length
# is forced to end, the tokenizer.json that encodes targets if they are split differently, whether
# long texts lose their beginning (truncation_side=left), and ids that are never generated.
POST_PROCESSOR, CHAT_TEMPLATE, MORE_EOS = "post_processor", "chat_template", "more_eos"
FORCED_EOS, TARGET_TOKENIZER = "forced_eos", "target_tokenizer"
TRUNCATES_LEFT, BANNED = "truncates_left", "banned_ids"
# The special tokens by role that a chat template gets, if they are not those of the roles here.
CHAT_TOKENS = "chat_tokens"
PUBLISHED_KEYS = (
    POST_PROCESSOR, CHAT_TEMPLATE, MORE_EOS, FORCED_EOS, TARGET_TOKENIZER, TRUNCATES_LEFT, BANNED,
    CHAT_TOKENS,
)  # fmt: skip


class SubwordTokenizer(SpecialTokens):
    """A tokenizer with a vocabulary of pieces.

    content: a tokenizer.json. roles: the id of each role, or None if the vocabulary lacks it.
    published: what only a published tokenizer has, by PUBLISHED_KEYS.
    """

    space_is_a_token = False  # a space belongs to the next piece, or separates two pieces

    def __init__(
        self,
        content: str,
        roles: Mapping[str, int | None],
        sentinel_ids: Iterable[int] = (),
        published: Mapping[str, Any] | None = None,
    ):
        self.content = content
        self.published = dict(published or {})
        self._tokenizer = Tokenizer.from_str(content)
        # The pipeline truncates and pads rows.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._roles = {role: roles[role] for role in ROLES}
        if roles.get(TEXT_START) is not None:
            self._roles[TEXT_START] = roles[TEXT_START]
        self.text_start_ids = (self._roles[TEXT_START],) if TEXT_START in self._roles else ()
        for role in ROLES:
            setattr(self, f"{role}_id", roles[role])
        self.sentinel_ids = np.array(list(sentinel_ids), np.int32)
        self.sentinel_count = len(self.sentinel_ids)
        # The mask's name. Only published tokenizers encode it as the mask id; see `reads_mask`.
        self.mask_name = None if self.mask_id is None else self._tokenizer.id_to_token(self.mask_id)

        pieces = {id: piece for piece, id in self._tokenizer.get_vocab().items()}
        self.vocab_size = max(pieces) + 1
        added = self._tokenizer.get_added_tokens_decoder()
        special = {id for id, token in added.items() if token.special}
        self.more_eos_ids = tuple(self.published.get(MORE_EOS, ()))
        self.forced_eos = bool(self.published.get(FORCED_EOS))
        self.banned_ids = tuple(self.published.get(BANNED, ()))
        self.truncates_left = bool(self.published.get(TRUNCATES_LEFT))
        special |= set(self.more_eos_ids)
        self._added_ids = np.array(sorted(added), np.int64)
        special |= {id for id in roles.values() if id is not None} | set(self.sentinel_ids.tolist())
        self._is_special = np.isin(np.arange(self.vocab_size), list(special))
        layout = json.loads(content)
        self.unknown_id = _unknown_id(layout, pieces)
        self._may_be_slow = may_be_slow(layout)
        if self.published.get(POST_PROCESSOR):
            self.template = self.own_template
            self.reads_mask = self.mask_id in added
        text_ids = sorted(pieces.keys() - special - {self.unknown_id})
        # The ids of text, which masked_lm draws random replacements from.
        self.text_ids = np.array(text_ids, np.int32)

        # Ids that are not text separate words.
        self._begins, self._ends = np.ones((2, self.vocab_size), bool)
        self.style = _style(self._tokenizer)
        for id in text_ids:
            self._begins[id], self._ends[id] = _spaces(pieces[id], self.style)

    def with_roles(self, roles: Mapping[str, int]) -> "SubwordTokenizer":
        """The same vocabulary with other ids in some roles."""
        return SubwordTokenizer(
            self.content, {**self._roles, **roles}, self.sentinel_ids, self.published
        )

    def as_published(
        self,
        content: str,
        chat_template: Any = None,
        more_eos: Iterable[int] = (),
        *,
        forced_eos: bool = False,
        truncates_left: bool = False,
        banned: Iterable[int] = (),
        chat_tokens: Mapping[str, str] | None = None,
    ) -> "SubwordTokenizer":
        """The same vocabulary with the special tokens that `content`'s post-processor adds."""
        published = {CHAT_TEMPLATE: chat_template, MORE_EOS: list(more_eos)}
        if chat_template and chat_tokens:
            published |= self._chat_tokens(chat_tokens)
        published |= {FORCED_EOS: forced_eos, TRUNCATES_LEFT: truncates_left, BANNED: list(banned)}
        published[TARGET_TOKENIZER] = self.published.get(TARGET_TOKENIZER)
        published = {key: value for key, value in published.items() if value}
        published[POST_PROCESSOR] = True
        return SubwordTokenizer(content, self._roles, self.sentinel_ids, published)

    @functools.cached_property
    def own_template(self) -> Template:
        """The special ids that the post-processor would add, even if this tokenizer ignores it."""
        return read_template(self._tokenizer)

    @functools.cached_property
    def target(self) -> "SubwordTokenizer":
        """Encodes targets with the same ids. Special ids around a target come from `self`."""
        content = self.published.get(TARGET_TOKENIZER)
        return SubwordTokenizer(content, self._roles, self.sentinel_ids) if content else self

    @property
    def role_names(self) -> dict[str, str]:
        """The tokens of the ids with a role; without ids that the vocabulary lacks."""
        ids = {role: id for role, id in self._roles.items() if id is not None}
        names = {role: self._tokenizer.id_to_token(id) for role, id in ids.items()}
        return {role: name for role, name in names.items() if name is not None}

    def encode(self, text: str) -> np.ndarray:
        """The ids of a text, without special ids: objectives add those."""
        return np.array(self._encode(text).ids, np.int32)

    def _encode(self, text: str) -> Encoding:
        with _named_faults(text):
            if self._may_be_slow:
                return bounded_encoding.encode(self._tokenizer, text, add_special_tokens=False)
            return self._tokenizer.encode(text, add_special_tokens=False)

    def encode_with_spans(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """The ids of a text, and the first character and the end of each: (n,), (n, 2)."""
        encoding = self._encode(text)
        spans = np.array(encoding.offsets, np.int64).reshape(-1, 2)
        return np.array(encoding.ids, np.int32), spans

    def is_control(self, ids: np.ndarray) -> np.ndarray:
        """Whether ids are special or were added to the vocabulary, as those of chat models are."""
        return self._is_special[ids] | np.isin(ids, self._added_ids)

    def with_chat_template(self, template: Any, tokens: Mapping[str, str]) -> "SubwordTokenizer":
        """The same tokenizer with a chat template; `tokens`: the special tokens that it names."""
        published = self.published | {CHAT_TEMPLATE: template} | self._chat_tokens(tokens)
        return SubwordTokenizer(self.content, self._roles, self.sentinel_ids, published)

    def with_more_ends(self, ids: Iterable[int]) -> "SubwordTokenizer":
        """The same tokenizer with further ids that end an answer."""
        more = dict.fromkeys((*self.more_eos_ids, *ids))
        more = [id for id in more if id != self.eos_id]
        published = self.published | ({MORE_EOS: more} if more else {})
        return SubwordTokenizer(self.content, self._roles, self.sentinel_ids, published)

    def _chat_tokens(self, tokens: Mapping[str, str]) -> dict[str, dict[str, str]]:
        """The record of the tokens that a template gets; empty if they are those of the roles."""
        tokens = dict(sorted(tokens.items()))
        is_as_here = {role: tokens.get(role) for role in self.role_names} == self.role_names
        return {} if is_as_here else {CHAT_TOKENS: tokens}

    def encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        """`encode` for many texts, on all cores."""
        with _named_faults(*texts[:1]):
            if self._may_be_slow:
                encode = functools.partial(bounded_encoding.encode_batch, self._tokenizer)
            else:
                encode = self._tokenizer.encode_batch_fast
            encodings = encode(texts, add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def byte_sizes(self, text: str) -> np.ndarray:
        """How many bytes of the text each of its ids covers; the sum is all bytes.

        Text that the tokenizer drops, such as white space, counts for the next id, or for the last
        one at the end. A character of several ids counts for the first.
        """
        stops = [stop for _, stop in self._encode(text).offsets]
        characters = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        sizes = 1 + np.sum([characters >= first for first in (0x80, 0x800, 0x10000)], axis=0)
        covered = np.maximum.accumulate(np.cumsum([0, *sizes])[stops])
        covered[-1:] = sizes.sum()
        return np.diff(covered, prepend=0)

    def decode(self, ids: np.ndarray) -> str:
        """The text of ids, without special ids and ids beyond the vocabulary."""
        ids = np.asarray(ids, np.int64)
        ids = ids[ids < self.vocab_size]
        ids = ids[~self._is_special[ids]].tolist()
        with _named_faults():
            if self._may_be_slow:
                return bounded_encoding.decode(self._tokenizer, ids)
            return self._tokenizer.decode(ids)

    def unspelt(self, text: str) -> str:
        """The first character, or else the first word, that becomes the unknown id; "" if none."""
        encoding = self._encode(text)
        if self.unknown_id not in encoding.ids:
            return ""
        start, stop = encoding.offsets[encoding.ids.index(self.unknown_id)]
        word = text[start:stop]
        if isinstance(self._tokenizer.model, models.WordLevel):
            return word
        # WordPiece makes a whole word unknown if one character is unknown or the word is too long.
        return next((c for c in word if self.unknown_id in self.encode(c)), word)

    def word_starts(self, ids: np.ndarray) -> np.ndarray:
        """True at the first id, at ids that begin with a space, and after ids that end in one.

        In WordPiece, where no piece has a space: at ids that do not begin with ##.
        """
        ids = np.asarray(ids)
        return self._begins[ids] | np.concatenate([[True], self._ends[ids[:-1]]])[: len(ids)]

    @property
    def pieces(self) -> list[str | None]:
        """The piece of each id; None for ids that the vocabulary lacks."""
        return [self._tokenizer.id_to_token(id) for id in range(self.vocab_size)]

    @functools.cached_property
    def digest(self) -> str:
        everything = [self.content, self._roles, self.sentinel_ids.tolist()]
        everything += [sorted(self.published.items())] if self.published else []
        return hashlib.sha256(json.dumps(everything).encode()).hexdigest()

    def save(self, directory: str | Path) -> None:
        beside = {**self._roles, "sentinels": self.sentinel_ids.tolist(), **self.published}
        beside["digest"] = self.digest
        Path(directory, FILE_NAME).write_text(self.content, encoding="utf-8")
        Path(directory, ROLES_FILE_NAME).write_text(json.dumps(beside) + "\n")

    @classmethod
    def load(cls, directory: str | Path) -> "SubwordTokenizer":
        """The tokenizer that `save` wrote; raises ConfigError if a file has changed."""
        path, roles_path = (
            require_regular(Path(directory, name)) for name in (FILE_NAME, ROLES_FILE_NAME)
        )
        try:
            roles = json.loads(roles_path.read_text())
            sentinels, digest = roles.pop("sentinels"), roles.pop("digest")
            keys = roles.keys() & set(PUBLISHED_KEYS)
            published = {key: roles.pop(key) for key in sorted(keys)}
            tokenizer = cls(path.read_text(encoding="utf-8"), roles, sentinels, published)
        except Exception as error:  # the library's errors have no class of their own
            reason = " ".join(str(error).split())
            raise ConfigError(
                f"{path} and {ROLES_FILE_NAME} beside it cannot be read as a tokenizer ({reason}); "
                "restore both, or start again in an empty directory"
            ) from error
        if tokenizer.digest != digest:
            raise ConfigError(
                f"{path} or {ROLES_FILE_NAME} beside it has changed since it was saved; "
                "restore both, or start again in an empty directory"
            )
        return tokenizer


@contextlib.contextmanager
def _named_faults(text: str = "") -> Iterator[None]:
    """Raises ConfigError for panics of the library, and when its time is over."""
    try:
        with no_panic():
            yield
    except ValueError as error:
        raise ConfigError(
            f"the tokenizer cannot encode {text[:40]!r} or a text after it ({error}); if its file "
            "is damaged, fetch it again, or name another"
        ) from error


Style = Literal["wordpiece", "byte_level", "metaspace"]


def _style(tokenizer: Tokenizer) -> Style:
    """How pieces mark spaces."""
    if isinstance(tokenizer.model, models.WordPiece | models.WordLevel):
        return "wordpiece"
    stages = f"{tokenizer.pre_tokenizer} {tokenizer.decoder}"
    return "byte_level" if "ByteLevel" in stages else "metaspace"


def _spaces(piece: str, style: Style) -> tuple[bool, bool]:
    """Whether a piece begins with a space, and whether it ends in one."""
    match style:
        case "wordpiece":
            return not piece.startswith("##"), False
        case "byte_level":  # one character per byte; these are white space
            spaces = "ĉĊċČčĠ"
        case "metaspace":
            spaces = "▁ \t\n\v\f\r"
    return piece[0] in spaces, piece[-1] in spaces


def _unknown_id(layout: dict, pieces: Mapping[int, str]) -> int | None:
    model = layout["model"]
    unknown = model.get("unk_token")
    return next((id for id, piece in pieces.items() if piece == unknown), model.get("unk_id"))
