"""Checks a tokenizer's file for content on which the `tokenizers` library fails without an error.

A table of characters with a wrong length, or rules that replace characters by long texts, make the
library allocate gigabytes and end the process; some regular expressions take exponential time.
None of these can be caught, so they are found before.
"""

import base64
import binascii
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MOST_GROWTH = 1000  # how many characters one character of a text may become
TOO_MUCH_GROWTH = f"its rules can make a text more than {MOST_GROWTH} times as long"
LONG_PIECE = 100  # characters; longer pieces can be slow, in some kinds of vocabularies
LONG_WORD = 1000  # characters of a word; WordPiece takes quadratic time
MOST_IDS = 2**24  # files number pieces as they like, and the library has a row for each id
SHOWN = 60  # characters of an expression in a message


def require_safe(layout: Mapping[str, Any]) -> None:
    """Raises ValueError if a parsed tokenizer.json has such a table, rule, expression or id."""
    for parts in (("normalizer", "pre_tokenizer"), ("decoder",)):
        require_bounded_growth([rule for part in parts for rule in _rules(layout.get(part))])
    model, added = layout.get("model"), layout.get("added_tokens")
    vocab = model.get("vocab") if isinstance(model, Mapping) else None
    require_ids(vocab if isinstance(vocab, Mapping) else {})
    tokens = (
        [each for each in added if isinstance(each, Mapping)] if isinstance(added, list) else []
    )
    require_ids({str(each.get("content")): each.get("id") for each in tokens})
    for key, value in _entries(layout):
        if key == "precompiled_charsmap" and isinstance(value, str):
            require_charsmap(_decoded(value))
        if key == "Regex" and isinstance(value, str) and repeats_a_repeat(value):
            raise ValueError(
                f"its regular expression {value[:SHOWN]!r} repeats a group that has a repeat, "
                "which can take exponential time"
            )


def _decoded(charsmap: str) -> bytes:
    try:
        return base64.b64decode(charsmap, validate=True)
    except binascii.Error as error:
        raise ValueError(f"its precompiled_charsmap is not base64 ({error})") from error


def require_ids(vocab: Mapping[str, Any]) -> None:
    """Raises ValueError if an id is so large that a table of all ids would fill the memory."""
    for piece, id in vocab.items():
        if isinstance(id, int) and id >= MOST_IDS:
            raise ValueError(f"the id of {piece[:SHOWN]!r} is {id}; at most {MOST_IDS - 1} is read")


def require_charsmap(table: bytes) -> None:
    """Raises ValueError unless SentencePiece's table of characters has the length it states, and
    only short replacements.

    It is the size of a trie, the trie in units of four bytes, and the replacements.
    """
    if not table:
        return
    size = struct.unpack("<I", table[:4])[0] if len(table) >= 4 else 0
    if not size or size % 4 or size > len(table) - 4:
        raise ValueError("its precompiled_charsmap has not the length that it states")
    if _longest_replacement(table) > MOST_GROWTH:
        raise ValueError(TOO_MUCH_GROWTH)


def require_bounded_growth(rules: Sequence[Mapping[str, Any]]) -> None:
    """Raises ValueError if rules in this order can make a text more than MOST_GROWTH times as long.

    A rule multiplies what earlier ones wrote, unless it replaces a string whose characters they do
    not write.
    """
    growth, written = 1, set()
    for rule in rules:
        factor, pattern = _growth(rule)
        is_apart = pattern is not None and not written & set(pattern)
        growth = max(growth, factor) if is_apart else growth * factor
        written |= {*_text(rule, "content"), *_text(rule, "prepend")}
        if growth > MOST_GROWTH:
            raise ValueError(TOO_MUCH_GROWTH)


def _growth(rule: Mapping[str, Any]) -> tuple[int, str | None]:
    """How many characters a rule may write for one, and the string that it replaces, if one."""
    match rule.get("type"):
        case "Replace":
            pattern = rule.get("pattern")
            string = _text(pattern, "String") if isinstance(pattern, Mapping) else ""
            size = len(_text(rule, "content"))
            # An expression may match nothing, between any two characters.
            return (max(1, size), string) if string else (1 + size, None)
        case "Prepend":
            return 1 + len(_text(rule, "prepend")), None
        case "Precompiled":
            return _longest_replacement(_decoded(_text(rule, "precompiled_charsmap"))), None
        case "ByteLevel":
            return 2, None  # a letter of two bytes becomes two letters
    return 1, None


def _text(rule: Mapping[str, Any], key: str) -> str:
    value = rule.get(key)
    return value if isinstance(value, str) else ""


def _longest_replacement(table: bytes) -> int:
    """The bytes of the longest replacement in a SentencePiece table of characters."""
    start = 4 + int.from_bytes(table[:4], "little")
    return max(1, *map(len, table[start:].split(b"\0")))


def _rules(part: Any) -> Iterator[Mapping[str, Any]]:
    """The rules of a part of the layout in their order; they may be nested."""
    places = [part]
    while places:
        place = places.pop()
        if isinstance(place, list):
            places += reversed(place)
        elif isinstance(place, dict):
            inner = [each for each in place.values() if isinstance(each, list)]
            if place.get("type") == "Sequence":
                places += inner
            else:
                yield place


def may_be_slow(layout: Mapping[str, Any]) -> bool:
    """Whether a parsed tokenizer.json may need more than linear time to encode a text.

    Expressions may, and models that look up long pieces at each character.
    """
    model = layout["model"]
    if model.get("max_input_chars_per_word", 0) > LONG_WORD:
        return True
    if model.get("type") == "Unigram" and any(len(p) > LONG_PIECE for p, _ in model["vocab"]):
        return True
    return any(key == "Regex" for key, _ in _entries(layout))


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
