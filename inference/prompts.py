"""Prompts: turns text, and files of images, sounds or series, into rows of ids or numbers.

Special ids have the same places as in training. The text of a prompt marks gaps with [MASK] for a
masked LM, and with <extra_id_0>, <extra_id_1>, ... or [MASK] for span corruption. For
fill-in-the-middle, [MASK] marks the one gap, unless it is at the end of the prompt.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from absl import logging

from experiment.schema import ConfigError, did_you_mean, refuse_remote
from experiment.untrusted_files import require_regular
from input_pipeline.config import DataConfig, source_table
from input_pipeline.objectives import OBJECTIVES
from input_pipeline.objectives.affixes import between, between_separators
from input_pipeline.objectives.classify_images import classify_images
from input_pipeline.objectives.fill_in_middle import infilling_prompt
from input_pipeline.row_layout import RowLayout
from input_pipeline.rows import Fields, fit
from input_pipeline.sources.image_decoding import ImageSpec, read
from input_pipeline.tokenizers.id_tokenizer import IdTokenizer
from input_pipeline.tokenizers.tokenizer import Tokenizer

MASK = "[MASK]"
SENTINEL = "<extra_id_{}>"
SMALLEST_BUCKET = 16


class TooLongError(ConfigError):
    """A line that does not fit into the model; `remedy` follows "shorten it" in the message."""

    def __init__(self, reason: str, remedy: str = ""):
        super().__init__(f"{reason}; shorten it{remedy}")
        self._reason, self._remedy = reason, remedy

    def with_others(self, count: int) -> ConfigError:
        """The same error, with the number of further lines that are too long."""
        if not count:
            return self
        others = "1 other line is" if count == 1 else f"{count:,} other lines are"
        return ConfigError(
            f"{self._reason}, and {others} too long as well; shorten them{self._remedy}"
        )


def prompt_rows(
    prompt: Callable[[str, str], Fields], lines: Sequence[str], names: Sequence[str]
) -> list[Fields]:
    """The rows of all lines. An error about a line that is too long counts the other ones."""
    rows, first, others = [], None, 0
    for line, name in zip(lines, names, strict=True):
        try:
            rows.append(prompt(line, name))
        except TooLongError as error:
            others += first is not None
            first = first or error
        except ConfigError:
            if first is None:
                raise
    if first is not None:
        raise first.with_others(others)
    return rows


class TextPrompts:
    """Turns texts into the fields of their rows, without padding.

    `kind` is the kind of examples in training. With `takes_two`, a tab separates two texts.
    `begin_with` is the beginning of every output of an encoder-decoder. Text that the vocabulary
    cannot spell becomes its unknown token and is listed in `unknown`; `strict` refuses such text.
    Texts to embed are truncated so that their rows have at most `longest` ids; 0: no limit.
    `needs_mask` refuses texts for a masked LM that have no [MASK]. For fill-in-the-middle, `suffix`
    follows the gap, which is at the end of every text; `suffix_first`: the model has read it first.
    """

    def __init__(
        self,
        objective: str,
        kind: str,
        tokenizer: Tokenizer,
        *,
        takes_two: bool = False,
        begin_with: str = "",
        strict: bool = False,
        longest: int = 0,
        needs_mask: bool = True,
        suffix: str = "",
        suffix_first: bool = False,
    ):
        self._objective, self._kind, self._tokenizer = OBJECTIVES[objective], kind, tokenizer
        self._takes_two, self._strict, self._longest = takes_two, strict, longest
        self._needs_mask = needs_mask
        self._suffix, self._suffix_first = suffix, suffix_first
        self.unknown: dict[str, str] = {}  # name of a text -> its first unknown part
        start = list(tokenizer.causal_prefix)
        if self._objective.has_source:
            start = [tokenizer.bos_id, *tokenizer.text_start_ids]
        self._has_sentinels = "sentinels" in self._objective.specials
        if self._has_sentinels:
            begin = self._with_sentinels(begin_with, "--prefix")
        else:
            begin = self._encode(begin_with, "--prefix", tokenizer.target)
        self._start = np.array([*start, *begin], np.int32)

    def __call__(self, text: str, name: str) -> Fields:
        """The fields of a text's row; `name` is its name in error messages, such as "line 3"."""
        tokenizer = self._tokenizer
        match self._objective.head:
            case "language_model" if self._objective.has_source:
                encode = self._with_sentinels if self._has_sentinels else self._encode
                source = between(tokenizer.source_affixes, encode(text, name))
                if self._has_sentinels:
                    _refuse_without(tokenizer.sentinel_ids, source, SENTINEL.format(0), name)
                return {"encoder_inputs": source, "inputs": self._start}
            case "language_model" if self._kind == "pairs":
                source = np.append(self._encode(text, name), tokenizer.sep_id)
                return {"inputs": np.concatenate([self._start, source])}
            case "language_model":
                affixes = self._start, tokenizer.causal_suffix
                may_have_gap = self._objective.reads_suffix and tokenizer.sentinel_count
                encode = self._with_gap if may_have_gap else self._encode
                inputs = between(affixes, encode(text, name))
                return {"inputs": inputs if len(inputs) else self._empty_prompt(name)}
            case "masked_language_model":
                texts = [self._with_masks(part, name) for part in self._parts(text, name)]
                fields = between_separators(texts, tokenizer)
                if self._needs_mask:
                    _refuse_without([tokenizer.mask_id], fields["inputs"], MASK, name)
                return fields
        texts = [self._encode(part, name) for part in self._parts(text, name)]
        if self._objective.head == "embedder" and self._longest:
            texts = self._cut(texts, name)
        return between_separators(texts, tokenizer)

    def _cut(self, texts: list[np.ndarray], name: str) -> list[np.ndarray]:
        room = self._longest - self._tokenizer.encoder_template.added(len(texts))
        cut = fit(texts, max(room, 0), keep_end=self._tokenizer.truncates_left)
        if sum(map(len, cut)) < sum(map(len, texts)):
            logging.warning(
                "%s has %d tokens; the %s %d are read, as many as the published model takes",
                name, sum(map(len, texts)), "last" if self._tokenizer.truncates_left else "first",
                room,
            )  # fmt: skip
        return cut

    def _parts(self, text: str, name: str) -> list[str]:
        parts = text.split("\t") if self._takes_two else [text]
        if len(parts) > 2:
            raise ConfigError(
                f"{name} has {len(parts)} columns; give one text, or two with a tab between them"
            )
        return parts

    def _empty_prompt(self, name: str) -> np.ndarray:
        """The row of an empty prompt when the tokenizer adds no start: bos, if there is one."""
        if self._tokenizer.bos_id is None or isinstance(self._tokenizer, IdTokenizer):
            raise ConfigError(
                f"{name} is empty, and this model has no start token to begin with; write something"
            )
        return np.array([self._tokenizer.bos_id], np.int32)

    def _encode(self, text: str, name: str, tokenizer: Tokenizer | None = None) -> np.ndarray:
        tokenizer = tokenizer or self._tokenizer
        if unspelt := tokenizer.unspelt(text):
            if self._strict:
                raise ConfigError(
                    f"{name}: the vocabulary of the model's tokenizer cannot spell {unspelt!r}; "
                    "replace it, or leave --strict out"
                )
            self.unknown.setdefault(name, unspelt)
        try:
            return tokenizer.encode(text)
        except ConfigError as error:  # with --ids
            raise ConfigError(f"{name}: {error}") from error

    def _with_gap(self, text: str, name: str) -> np.ndarray:
        parts = text.split(MASK) + ([self._suffix] if self._suffix else [])
        if len(parts) > 2:
            raise ConfigError(
                f"{name} has {len(parts) - 1} gaps, counting --suffix, and this model fills one; "
                f"leave one {MASK}, or --suffix"
            )
        ids = [self._encode(part, name) for part in parts]
        if len(ids) == 1:
            return ids[0]
        return infilling_prompt(*ids, self._tokenizer, suffix_first=self._suffix_first)

    def _with_masks(self, text: str, name: str) -> np.ndarray:
        if self._tokenizer.reads_mask:
            return self._encode(text.replace(MASK, self._tokenizer.mask_name), name)
        marks = [re.escape(mark) for mark in (MASK, self._tokenizer.mask_name) if mark]
        parts = self._split_at(marks, text)
        ids = [self._encode(part, name) for part in parts[0::2]]
        return _joined(ids, [self._tokenizer.mask_id] * len(parts[1::2]))

    def _with_sentinels(self, text: str, name: str) -> np.ndarray:
        parts = self._split_at([re.escape(MASK), SENTINEL.format(r"\d+")], text)
        numbers = [
            place if mark == MASK else int(re.sub(r"\D", "", mark))
            for place, mark in enumerate(parts[1::2])
        ]
        if len(set(numbers)) < len(numbers):
            raise ConfigError(
                f"{name} has two gaps with the same number; give each its own, or write "
                f"{MASK} for all"
            )
        known = self._tokenizer.sentinel_count
        if max(numbers, default=0) >= known:
            raise ConfigError(
                f"{name}: {SENTINEL.format(max(numbers))} is unknown to the model's tokenizer; "
                f"the last that it knows is {SENTINEL.format(known - 1)}"
            )
        ids = [self._encode(part, name) for part in parts[0::2]]
        return _joined(ids, self._tokenizer.sentinel_ids[numbers])

    def _split_at(self, marks: list[str], text: str) -> list[str]:
        """The text split at marks (regular expressions): text, mark, text, ..., mark, text."""
        # A mask of training covers the space before the word, unless spaces are tokens.
        space = "" if self._tokenizer.space_is_a_token else " ?"
        return re.split(f"{space}({'|'.join(marks)})", text)


class ItemPrompts:
    """Turns baskets into rows that end in a masked item.

    Items that are not in the vocabulary are left out and listed in `unknown`; `strict` refuses
    them.
    """

    def __init__(self, tokenizer: Tokenizer, *, strict: bool = False):
        self._tokenizer, self._strict = tokenizer, strict
        self.unknown: dict[str, str] = {}  # name of a basket -> its first unknown item

    def __call__(self, text: str, name: str) -> Fields:
        tokenizer = self._tokenizer
        items = tokenizer.encode(text)
        if not len(items):
            raise ConfigError(f"{name} has no item; write at least one")
        known = items[items != tokenizer.unknown_id]
        if len(known) < len(items):
            item = tokenizer.unspelt(text)
            hint = did_you_mean(item, (tokenizer.pieces[id] for id in tokenizer.text_ids))
            if self._strict:
                raise ConfigError(
                    f"{name}: the item {item!r} did not occur in training; leave it out, or leave "
                    f"--strict out.{hint}"
                )
            if not len(known):
                raise ConfigError(
                    f"{name} has no item that occurred in training: {item!r} did not.{hint}"
                )
            self.unknown.setdefault(name, item)
        items = np.append(known, tokenizer.mask_id)
        return {"inputs": between_separators([items], tokenizer)["inputs"]}


def _refuse_without(marks: Sequence[int], ids: np.ndarray, mark: str, name: str) -> None:
    if not np.isin(ids, marks).any():
        raise ConfigError(f"{name} has no gap to fill in; put {mark} where a gap is")


def _joined(texts: Sequence[np.ndarray], marks: Sequence[int]) -> np.ndarray:
    """Texts with one mark between each two: text, mark, text, ..., mark, text."""
    first, *others = texts
    rest = (part for mark, text in zip(marks, others, strict=True) for part in ([mark], text))
    return np.concatenate([first, *rest]).astype(np.int32)


class ImagePrompts:
    """Reads image files into rows as in training, resized if necessary."""

    def __init__(self, size: int, channels: int, data: DataConfig):
        mode = "L" if channels == 1 else "RGB"
        self._spec = ImageSpec.resizing(mode, size, data)
        self._mean, self._std = data.image_mean, data.image_std

    def __call__(self, path: str, name: str) -> Fields:
        refuse_remote(name, path)
        if not Path(path).is_file():
            raise ConfigError(f"{name}: {path!r} is no file; give the path of an image")
        row = {"image": read(require_regular(path), self._spec), "label": 0}
        rng = np.random.default_rng(0)  # the objective takes one, but draws nothing
        fields = classify_images(row, rng, mean=self._mean, std=self._std)
        return {"images": fields["images"]}


class SignalPrompts:
    """Reads files of sounds or series into rows as in training. The model normalises them."""

    def __init__(self, data: DataConfig):
        self._data, self._read = data, source_table()[data.source].read

    def __call__(self, path: str, name: str) -> Fields:
        refuse_remote(name, path)
        if not Path(path).is_file():
            raise ConfigError(f"{name}: {path!r} is no file; give the path of one")
        try:
            found = self._read(self._data, require_regular(path))
        except ConfigError as error:
            raise ConfigError([f"{name}: {each}" for each in error.problems]) from error
        offset = {"offset": np.float64(found["offset"])} if "offset" in found else {}
        return {"signals": found["signal"], **offset}


def bucket(length: int, longest: int = 0) -> int:
    """The padded length of a row: a power of two, at most `longest`; 0: no limit."""
    size = max(SMALLEST_BUCKET, 1 << (length - 1).bit_length())
    return min(size, longest) if longest else size


def in_batches(
    rows: Sequence[Fields], size: int, longest: int = 0
) -> Iterator[tuple[list[int], dict[str, np.ndarray]]]:
    """Yields batches of `size` rows as (row numbers, fields), ordered by their first row.

    So all rows before the first one of a batch are in earlier batches. The padded length of a row
    depends on that row alone, so outputs do not depend on other rows.
    Copies of a row fill up an incomplete batch, so few shapes compile.
    """
    groups = defaultdict(list)  # by padded sizes and fields: only pairs of texts have token types
    for number, row in enumerate(rows):
        groups[_padded_sizes(row, longest), tuple(row)].append(number)
    batches = [
        (numbers[start : start + size], sizes)
        for (sizes, _), numbers in groups.items()
        for start in range(0, len(numbers), size)
    ]
    for chosen, sizes in sorted(batches, key=lambda each: each[0]):
        layout = RowLayout(*sizes, segments=True, packed=False)
        filled = chosen + chosen[:1] * (size - len(chosen))
        padded = [_padded(rows[number], layout) for number in filled]
        yield chosen, {name: np.stack([row[name] for row in padded]) for name in padded[0]}


def _padded_sizes(row: Fields, longest: int) -> tuple[int, int]:
    """(decoder length, encoder length). With a source, the decoder's prompt is not padded."""
    if "inputs" not in row:  # patches
        return 0, 0
    if "encoder_inputs" in row:
        return len(row["inputs"]), bucket(len(row["encoder_inputs"]), longest)
    return bucket(len(row["inputs"]), longest), 0


def _padded(row: Fields, layout: RowLayout) -> Fields:
    return layout.row([row]) if "inputs" in row else row
