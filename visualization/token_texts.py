"""Each token as text that a person can read.

A space that belongs to a token is a space, bytes that are only part of a character are written as
<0xE2>, and special tokens have their names. WordPiece's ## stays: it says that a word goes on.
"""

import functools
import re
from collections.abc import Iterable

from input_pipeline.tokenizers.id_tokenizer import IdTokenizer
from input_pipeline.tokenizers.subword import ROLES, SubwordTokenizer
from input_pipeline.tokenizers.tokenizer import ByteTokenizer, Tokenizer

SPACE = "▁"  # how SentencePiece spells a space
# White space that can be seen; page/token_text.js has the same.
PICTURES = {" ": "␣", "\n": "⏎", "\r": "␍", "\t": "⇥", "\u00a0": "⍽"}
BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")  # how it spells a byte without a piece of its own


def token_texts(ids: Iterable[int], tokenizer: Tokenizer) -> tuple[str, ...]:
    """The text of each id."""
    names = special_names(tokenizer)
    return tuple(names[id] if id in names else _text(id, tokenizer) for id in map(int, ids))


def in_a_sentence(text: str) -> str:
    """A token's text without the spaces around it; one that is all white space becomes visible."""
    return text.strip() or "".join(PICTURES.get(letter, letter) for letter in text)


def special_names(tokenizer: Tokenizer) -> dict[int, str]:
    """The names of special ids."""
    names = {int(id): f"<extra_id_{n}>" for n, id in enumerate(tokenizer.sentinel_ids)}
    if isinstance(tokenizer, SubwordTokenizer):
        special = {*range(tokenizer.vocab_size)} - set(tokenizer.text_ids.tolist())
        pieces = _pieces(tokenizer)
        # A sentinel of a published tokenizer has a piece with this name already.
        return {id: pieces[id] for id in special if pieces[id] is not None} | {
            id: name for id, name in names.items() if pieces[id] is None
        }
    if isinstance(tokenizer, ByteTokenizer):
        names |= {getattr(tokenizer, f"{role}_id"): f"[{role.upper()}]" for role in ROLES}
    return names


def _text(id: int, tokenizer: Tokenizer) -> str:
    if isinstance(tokenizer, IdTokenizer):
        return str(id)
    if isinstance(tokenizer, ByteTokenizer):
        byte = id - tokenizer.first_byte_id
        return bytes_as_text(bytes([byte])) if 0 <= byte < 256 else f"<{id}>"
    piece = _pieces(tokenizer)[id] if id < tokenizer.vocab_size else None
    if piece is None:
        return f"<{id}>"  # a row of the embedding without a token
    if tokenizer.style == "byte_level":
        table = byte_of_character()
        # Tokens that were added to the vocabulary are spelt as they are.
        if all(character in table for character in piece):
            return bytes_as_text(bytes(table[character] for character in piece))
        return piece
    if tokenizer.style == "metaspace":
        if byte := BYTE_PIECE.fullmatch(piece):
            return bytes_as_text(bytes.fromhex(byte[1]))
        return piece.replace(SPACE, " ")
    return piece


@functools.lru_cache(maxsize=8)
def _pieces(tokenizer: SubwordTokenizer) -> list[str | None]:
    return tokenizer.pieces


def bytes_as_text(content: bytes) -> str:
    """UTF-8 as text; bytes that are no character by themselves as <0xE2>."""
    text = content.decode(errors="surrogateescape")
    # "surrogateescape" maps a byte to the code point 0xDC00 + byte.
    return re.sub(r"[\udc80-\udcff]", lambda found: f"<0x{ord(found[0]) - 0xDC00:02X}>", text)


@functools.cache
def byte_of_character() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for.

    Printable characters of Latin-1 stand for themselves. The other bytes are numbered from U+0100
    on, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(printable))
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + number): byte for number, byte in enumerate(others)
    }
