"""Checks a tokenizer's file for content on which the `tokenizers` library fails without an error.

A table of characters with a wrong length makes the library allocate gigabytes and end the process;
some regular expressions take exponential time. Neither can be caught, so both are found before.
"""

import base64
import binascii
import struct
from collections.abc import Iterator, Mapping
from typing import Any

MOST_IDS = 2**24  # files number pieces as they like, and the library has a row for each id
SHOWN = 60  # characters of an expression in a message


def require_safe(layout: Mapping[str, Any]) -> None:
    """Raises ValueError if a parsed tokenizer.json has such a table, expression or id."""
    model, added = layout.get("model"), layout.get("added_tokens")
    vocab = model.get("vocab") if isinstance(model, Mapping) else None
    require_ids(vocab if isinstance(vocab, Mapping) else {})
    tokens = (
        [each for each in added if isinstance(each, Mapping)] if isinstance(added, list) else []
    )
    require_ids({str(each.get("content")): each.get("id") for each in tokens})
    for key, value in _entries(layout):
        if key == "precompiled_charsmap" and isinstance(value, str):
            try:
                require_charsmap(base64.b64decode(value, validate=True))
            except binascii.Error as error:
                raise ValueError(f"its precompiled_charsmap is not base64 ({error})") from error
        if key == "Regex" and isinstance(value, str) and repeats_a_repeat(value):
            raise ValueError(
                f"its regular expression {value[:SHOWN]!r} repeats a group that has a repeat, "
                "which can take exponential time"
            )


def require_ids(vocab: Mapping[str, Any]) -> None:
    """Raises ValueError if an id is so large that a table of all ids would fill the memory."""
    for piece, id in vocab.items():
        if isinstance(id, int) and id >= MOST_IDS:
            raise ValueError(f"the id of {piece[:SHOWN]!r} is {id}; at most {MOST_IDS - 1} is read")


def require_charsmap(table: bytes) -> None:
    """Raises ValueError unless SentencePiece's table of characters has the length it states.

    It is the size of a trie, the trie in units of four bytes, and the replacements.
    """
    if not table:
        return
    size = struct.unpack("<I", table[:4])[0] if len(table) >= 4 else 0
    if not size or size % 4 or size > len(table) - 4:
        raise ValueError("its precompiled_charsmap has not the length that it states")


def repeats_a_repeat(pattern: str) -> bool:
    """Whether a group with an unbounded repeat is itself repeated without bound, as in (a+)+."""
    has_repeat = [False]  # for each open group; the first is the whole expression
    index, closed = 0, None  # closed: whether the group that ends here has a repeat
    while index < len(pattern):
        character = pattern[index]
        repeat = _unbounded_repeat(pattern, index)
        if repeat:
            if closed:
                return True
            has_repeat[-1], closed = True, None
            index += repeat
            continue
        closed = None
        if character == "\\":
            index += 2
        elif character == "[":
            index = _end_of_class(pattern, index)
        elif character == "(":
            has_repeat.append(False)
            index += 1
        else:
            if character == ")" and len(has_repeat) > 1:
                closed = has_repeat.pop()
                has_repeat[-1] |= closed
            index += 1
    return False


def _unbounded_repeat(pattern: str, index: int) -> int:
    """The length of *, + or {n,} at this place; 0 if there is none."""
    if pattern[index] in "*+":
        return 1
    end = pattern.find("}", index)
    is_open = pattern[index] == "{" and pattern[index + 1 : end].removesuffix(",").isdecimal()
    return end + 1 - index if is_open and pattern[end - 1] == "," else 0


def _end_of_class(pattern: str, index: int) -> int:
    """The place after a class of characters. Classes may contain others, as in [a[^b]]."""
    depth = 0
    while index < len(pattern):
        character = pattern[index]
        depth += (character == "[") - (character == "]")
        index += 2 if character == "\\" else 1
        if depth == 0:
            break
    return index


def _entries(content: Any) -> Iterator[tuple[str, Any]]:
    """All keys with their values, at any depth."""
    places = [content]
    while places:
        place = places.pop()
        # The vocabulary has no such keys, and hundreds of thousands of entries.
        named = place.items() if isinstance(place, dict) else ()
        for key, value in named:
            yield key, value
            if isinstance(value, dict | list) and key not in ("vocab", "merges", "added_tokens"):
                places.append(value)
        if isinstance(place, list):
            places += [each for each in place if isinstance(each, dict | list)]
