"""Trains vocabularies. The same texts give the same file, on any number of threads.

    0 pad  1 bos  2 eos  3 mask  4 cls  5 sep | pieces, the alphabet first | 100 sentinels, as in T5

bpe and unigram work on bytes, so they encode every text and lose nothing. wordpiece is BERT's, with
upper case and accents kept: control characters are removed, white space becomes single spaces, and
a word of more than 100 characters, or with a character outside the alphabet, is the unknown �. word
splits text into words as wordpiece does, at white space and around punctuation, and has an id for
each of the most frequent words; other words are �. item has an id for each of the most frequent
items of sequences, as they are between separators; it has no sentinels.

With `lowercase`, text is first converted to lower case; accents stay.

No text encodes to a special id, because their names begin with ⟨: byte-level text has no such
character, and wordpiece and word split it off.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable
from typing import Literal

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from experiment.schema import ConfigError
from input_pipeline.tokenizers.subword import ROLES, SubwordTokenizer

TokenizerKind = Literal["bpe", "wordpiece", "unigram", "word", "item"]

# Raise this when the same texts give another vocabulary than before.
VERSION = 1
SENTINELS = 100
SPECIALS = [f"⟨{role}⟩" for role in ROLES]
UNKNOWN = "�"  # of wordpiece and word; their normalizer removes this character from text
LARGEST_ALPHABET = 1000  # of wordpiece: the most frequent characters
RAREST = 2  # a pair of pieces is merged only if it occurs this often
# A vocabulary with fewer bytes per token does little more than spell. Measured on names, dates and
# Python's documentation: 1.2 to 1.5 with 400 ids, 2.0 to 4.5 with 1,000 or more.
FEW_BYTES = 1.7
MANY_UNKNOWN = 0.35  # share of the tokens


def train_tokenizer(
    kind: TokenizerKind,
    texts: Iterable[str],
    vocab_size: int,
    *,
    lowercase: bool = False,
    separator: str = " ",
) -> SubwordTokenizer:
    """Trains a tokenizer with at most `vocab_size` ids, fewer if the texts yield fewer pieces.

    `separator` is between two items of a text, for the kind `item`; " " is any white space.
    """
    texts = [text for text in texts if text]
    if not texts:
        raise ConfigError("there is no text to train a tokenizer on; set data.tokenizer='byte'")
    roles = {role: id for id, role in enumerate(ROLES)}
    if kind == "item":
        return SubwordTokenizer(_item_tokenizer(texts, vocab_size, separator), roles)
    train = {
        "bpe": _train_bpe,
        "wordpiece": _train_wordpiece,
        "unigram": _train_unigram,
        "word": _train_word,
    }[kind]
    tokenizer = train(texts, vocab_size, lowercase)
    last = tokenizer.get_vocab_size() - 1
    return SubwordTokenizer(tokenizer.to_str(pretty=True), roles, range(last, last - SENTINELS, -1))


def spelling_problem(
    kind: TokenizerKind, tokenizer: SubwordTokenizer, vocab_size: int, texts: Iterable[str]
) -> str | None:
    """A warning if the vocabulary has many unknown words or barely merges characters, or None.

    `texts` are a sample of the data.
    """
    texts = [text for text in texts if text.strip()]
    encoded = tokenizer.encode_batch(texts)
    tokens = sum(map(len, encoded))
    counts = np.bincount(np.concatenate([[], *encoded]).astype(np.int64), minlength=1)
    unknown = int(counts[tokenizer.unknown_id]) if tokenizer.unknown_id is not None else 0
    # The share of words that occur once estimates the share of unknown words in new text
    # (Good-Turing).
    once = int((counts == 1).sum()) if kind == "word" else 0
    if tokens and (unknown + once) / tokens >= MANY_UNKNOWN:
        said = f"reads {unknown / tokens:.0%} of the tokens in a sample of the text as unknown"
        if kind == "word":
            said += f" and {once / tokens:.0%} are words that occur once in it"
        better = "wordpiece, bpe or byte" if kind == "word" else "bpe or byte"
        return f"data.tokenizer={kind} {said}: new text will be worse; set data.tokenizer={better}"
    words = sum(len(text.split()) for text in texts)
    size = sum(len(text.encode()) for text in texts)
    if not tokens or size / tokens >= FEW_BYTES:
        return None
    # Fewer ids than allowed: the text yields no more pieces.
    remedies = [f"raise data.tokenizer_size (now {vocab_size:,})"]
    remedies = [] if tokenizer.vocab_size < vocab_size else remedies
    remedies += ["set data.tokenizer=bpe"] if kind != "bpe" else []
    remedies = remedies or ["set data.tokenizer=byte, which needs no vocabulary"]
    return (
        f"data.tokenizer={kind} cuts text into little more than characters: {tokens / words:.1f} "
        f"tokens per word, {size / tokens:.1f} bytes per token; {' or '.join(remedies)}"
    )


def _train_bpe(texts: list[str], vocab_size: int, lowercase: bool) -> Tokenizer:
    alphabet = _bytes()
    trainer = trainers.BpeTrainer(
        vocab_size=_pieces_allowed("bpe", vocab_size, len(alphabet)),
        min_frequency=RAREST,
        initial_alphabet=alphabet,
        show_progress=_on_a_terminal(),
    )
    model = _trained(_byte_level(models.BPE(), lowercase), texts, trainer)
    merges = [tuple(merge) for merge in model["merges"]]
    return _byte_level(models.BPE(_numbered(_in_order(model["vocab"])), merges), lowercase)


def _train_unigram(texts: list[str], vocab_size: int, lowercase: bool) -> Tokenizer:
    alphabet = _bytes()
    allowed = _pieces_allowed("unigram", vocab_size, len(alphabet))
    trainer = trainers.UnigramTrainer(
        vocab_size=allowed,
        max_piece_length=32,  # bytes
        initial_alphabet=alphabet,
        show_progress=_on_a_terminal(),
    )
    scores = dict(_trained(_byte_level(models.Unigram(), lowercase), texts, trainer)["vocab"])
    # The library sums in the order of a hash table, which leaves noise in the last digits, and
    # spreads unused bytes over the 0.0256 above the lowest score, in the same order.
    lowest = min(scores.values())
    unused = {byte for byte in alphabet if scores[byte] < lowest + 0.0256}
    scores = {p: round(lowest if p in unused else score, 3) for p, score in scores.items()}
    longer = sorted(scores.keys() - set(alphabet), key=lambda piece: (-scores[piece], piece))
    # Truncated again: the library ignores its limit if the bytes alone reach it.
    pieces = _numbered([*alphabet, *longer[: allowed - len(alphabet)]])
    model = models.Unigram([(piece, scores.get(piece, 0.0)) for piece in pieces])
    return _byte_level(model, lowercase)


def _train_wordpiece(texts: list[str], vocab_size: int, lowercase: bool) -> Tokenizer:
    tokenizer = _bert(models.WordPiece(unk_token=UNKNOWN), lowercase)
    counts = Counter()
    for text in texts:
        counts.update(tokenizer.normalizer.normalize_str(text))
    del counts[" "]
    by_frequency = sorted(counts, key=lambda character: (-counts[character], character))
    alphabet = sorted(by_frequency[:LARGEST_ALPHABET])
    # As special tokens they get fixed ids; otherwise ids are in the order of a hash table.
    first = [UNKNOWN, *alphabet, *(f"##{character}" for character in alphabet)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=_pieces_allowed("wordpiece", vocab_size, len(first)),
        min_frequency=RAREST,
        special_tokens=first,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=_on_a_terminal(),
    )
    vocab = _in_order(_trained(tokenizer, texts, trainer)["vocab"])
    return _bert(models.WordPiece(_numbered(vocab), unk_token=UNKNOWN), lowercase)


def _train_word(texts: list[str], vocab_size: int, lowercase: bool) -> Tokenizer:
    trainer = trainers.WordLevelTrainer(
        vocab_size=_pieces_allowed("word", vocab_size, 1),
        min_frequency=1,  # words that occur once are informative, too
        special_tokens=[UNKNOWN],
        show_progress=_on_a_terminal(),
    )
    tokenizer = _bert(models.WordLevel(unk_token=UNKNOWN), lowercase)
    vocab = _in_order(_trained(tokenizer, texts, trainer)["vocab"])
    return _bert(models.WordLevel(_numbered(vocab), unk_token=UNKNOWN), lowercase)


def _item_tokenizer(texts: list[str], vocab_size: int, separator: str) -> str:
    """A tokenizer.json with one id for each of the most frequent items, the most frequent first."""
    between = r"\s+" if separator == " " else rf"\s*{re.escape(separator)}\s*"
    counts = Counter(item for text in texts for item in re.split(between, text.strip()))
    names = [*SPECIALS, UNKNOWN]
    for name in names:
        if name in counts:
            raise ConfigError(f"an item is called {name!r}, the name of a special id; rename it")
    room = vocab_size - len(names)
    if room < 2:
        raise ConfigError(
            f"data.tokenizer_size={vocab_size} has no room for two items beside {len(names)} "
            "special ids; raise it"
        )
    items = sorted(counts, key=lambda item: (-counts[item], item))[:room]
    vocabulary = {piece: id for id, piece in enumerate([*names, *items])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Strip()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(between), "removed")
    return tokenizer.to_str(pretty=True)


def _bert(model: models.WordPiece | models.WordLevel, lowercase: bool) -> Tokenizer:
    """BERT's words. Decoding puts spaces between words, but none before a full stop."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def _byte_level(model: models.Model, lowercase: bool) -> Tokenizer:
    tokenizer = Tokenizer(model)
    if lowercase:
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _trained(tokenizer: Tokenizer, texts: list[str], trainer: trainers.Trainer) -> dict:
    """The trained model, as the library's JSON."""
    tokenizer.train_from_iterator(texts, trainer, length=len(texts))
    return json.loads(tokenizer.to_str())["model"]


def _bytes() -> list[str]:
    """The characters that stand for the 256 bytes in byte-level text."""
    return sorted(pre_tokenizers.ByteLevel.alphabet())


def _pieces_allowed(kind: TokenizerKind, vocab_size: int, alphabet: int) -> int:
    others = len(SPECIALS) + SENTINELS
    if vocab_size < alphabet + others:
        raise ConfigError(
            f"data.tokenizer_size={vocab_size} has no room for the {alphabet} pieces that "
            f"data.tokenizer={kind!r} begins with, beside {others} special ids; "
            f"set it to at least {alphabet + others}"
        )
    return vocab_size - others


def _numbered(pieces: list[str]) -> dict[str, int]:
    """The vocabulary: special ids, pieces, sentinels."""
    sentinels = [f"⟨sentinel {number}⟩" for number in reversed(range(SENTINELS))]
    return {piece: id for id, piece in enumerate([*SPECIALS, *pieces, *sentinels])}


def _in_order(vocab: dict[str, int]) -> list[str]:
    return sorted(vocab, key=vocab.get)


def _on_a_terminal() -> bool:
    return sys.stderr.isatty()
