"""Converts SentencePiece's .model to a tokenizer of the `tokenizers` library.

Unigram models are read as T5's tokenizer reads them, or as Marian's does if a vocabulary is given;
BPE models as Llama's tokenizer reads them, or as M2M-100's does with its vocabulary. The file is a
protocol buffer; field numbers and defaults are those of sentencepiece_model.proto.
"""

import dataclasses
import re
import struct
from collections.abc import Iterator, Mapping

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from input_pipeline.tokenizers.file_checks import require_charsmap

UNIGRAM, BPE = 1, 2
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
UNKNOWN_PENALTY = 10  # score of an unknown character, below the worst piece
# In fairseq's models: the first tokens, and how many pieces of the file they replace.
FAIRSEQ = {
    "xlm-roberta": (["<s>", "<pad>", "</s>", "<unk>"], 3),
    "camembert": (["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"], 1),
}
FAIRSEQ_ROLES = dict(pad="<pad>", bos="<s>", eos="</s>", cls="<s>", sep="</s>", mask="<mask>")
LANGUAGE_CODE = re.compile(">>.+<<")  # names Marian's target language, at the start of a text


@dataclasses.dataclass(frozen=True)
class VocabularyPiece:
    """One entry of a SentencePiece vocabulary."""

    text: str
    score: float
    kind: int


@dataclasses.dataclass(frozen=True)
class SentencePieceModel:
    """What a SentencePiece file says, as far as encoding needs it."""

    pieces: list[VocabularyPiece]
    kind: int
    byte_fallback: bool
    unk_id: int
    bos_id: int  # -1: none; also for eos_id and pad_id
    eos_id: int
    pad_id: int
    charsmap: bytes  # the compiled rules of the normalizer
    adds_prefix_space: bool


def read(
    data: bytes, *, add_prefix_space: bool | None = None, legacy: bool = False
) -> tuple[Tokenizer, dict[str, int]]:
    """The tokenizer and its special ids by role; raises ValueError if it cannot be read.

    The other arguments are for BPE, by the names that they have in a tokenizer_config.json.
    add_prefix_space: whether a text begins with a space, if not as the file says. legacy: so does
    text after a special token.
    """
    model = _parse(data)
    if add_prefix_space is not None:
        model = dataclasses.replace(model, adds_prefix_space=add_prefix_space)
    if model.kind not in (UNIGRAM, BPE):
        raise ValueError("its model type is neither unigram nor bpe; give another vocabulary")
    tokenizer = _like_t5(model) if model.kind == UNIGRAM else _like_llama(model, legacy=legacy)
    _add_normalizer_and_special_tokens(tokenizer, model)
    roles = {"pad": model.pad_id, "bos": model.bos_id, "eos": model.eos_id}
    return tokenizer, {role: id for role, id in roles.items() if id >= 0}


def from_pieces(
    pieces: list[VocabularyPiece], unk_id: int, *, adds_prefix_space: bool
) -> Tokenizer:
    """The tokenizer of a BPE model that another file lists; pieces are in the order of merges."""
    has_bytes = any(piece.kind == BYTE for piece in pieces)
    model = SentencePieceModel(pieces, BPE, has_bytes, unk_id, -1, -1, -1, b"", adds_prefix_space)
    tokenizer = _like_llama(model, legacy=False)
    _add_normalizer_and_special_tokens(tokenizer, model)
    return tokenizer


def read_as_fairseq(data: bytes, kind: str) -> tuple[Tokenizer, dict[str, int]]:
    """XLM-R's or CamemBERT's tokenizer: special tokens come first, so the ids of pieces shift.

    `kind` is xlm-roberta or camembert.
    """
    model = _parse(data)
    if model.kind != UNIGRAM or model.byte_fallback:
        raise ValueError("it is not a unigram model, or it has byte fallback")
    first, start = FAIRSEQ[kind]
    pieces = [(piece.text, piece.score) for piece in model.pieces[start:]]
    scores = [*((name, 0.0) for name in first), *pieces, ("<mask>", 0.0)]
    tokenizer = _unigram(scores, first.index("<unk>"), byte_fallback=False)
    if model.charsmap:
        tokenizer.normalizer = normalizers.Precompiled(model.charsmap)
    _add_special(tokenizer, [*first, "<s>", "</s>"])
    mask = AddedToken("<mask>", special=True, normalized=False, lstrip=kind == "camembert")
    tokenizer.add_special_tokens([mask])
    return tokenizer, {role: tokenizer.token_to_id(name) for role, name in FAIRSEQ_ROLES.items()}


def read_with_vocabulary(
    data: bytes, vocab: Mapping[str, int], unknown: str
) -> tuple[Tokenizer, list[str]]:
    """Marian's tokenizer: the model of the source language splits text, and `vocab` gives the ids.

    `vocab` is shared with the target language. Also returns the pieces of the model that are not in
    it. Smaller pieces spell them here, while transformers gives the unknown id.
    """
    model = _parse(data)
    if model.kind != UNIGRAM or model.byte_fallback:
        raise ValueError("it is not a unigram model, or it has byte fallback")
    if sorted(vocab.values()) != list(range(len(vocab))):
        raise ValueError("the ids of its vocabulary are not 0, 1, 2, ... without gaps")
    if unknown not in vocab:
        raise ValueError(f"its vocabulary has no {unknown}")
    source = {piece.text: piece.score for piece in model.pieces}
    # A character that only the target language has gets the score of an unknown character. A longer
    # piece gets a lower score than its characters together, so it is never used.
    worst = min(piece.score for piece in model.pieces if piece.kind == NORMAL) - UNKNOWN_PENALTY
    scores = [
        (text, source.get(text, len(text) * worst - (len(text) > 1)))
        for text in sorted(vocab, key=vocab.get)
    ]
    tokenizer = _unigram(scores, vocab[unknown], byte_fallback=False)
    _add_normalizer_and_special_tokens(tokenizer, model)
    _add_special(tokenizer, [unknown, *filter(LANGUAGE_CODE.fullmatch, vocab)])
    pieces = [piece.text for piece in model.pieces if piece.kind in (NORMAL, USER_DEFINED)]
    return tokenizer, [text for text in pieces if text not in vocab]


def read_m2m(
    data: bytes, vocab: Mapping[str, int], unknown: str, languages: list[str]
) -> tuple[Tokenizer, list[str]]:
    """M2M-100's tokenizer: a BPE model splits text, `vocab` gives the ids, and languages follow.

    Also returns the pieces of the model that are not in `vocab`, which are never used.
    """
    model = _parse(data)
    if model.kind != BPE or model.byte_fallback:
        raise ValueError("it is not a BPE model, or it has byte fallback")
    if sorted(vocab.values()) != list(range(len(vocab))) or unknown not in vocab:
        raise ValueError(f"the ids of its vocabulary have gaps, or it has no {unknown}")
    pieces = [piece.text for piece in model.pieces if piece.kind in (NORMAL, USER_DEFINED)]
    merges = _merges([text for text in pieces if text in vocab])
    tokenizer = Tokenizer(models.BPE(dict(vocab), merges, unk_token=unknown, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    )
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    if model.charsmap:
        tokenizer.normalizer = normalizers.Precompiled(model.charsmap)
    _add_special(tokenizer, [text for text in ("<s>", "<pad>", "</s>", unknown) if text in vocab])
    _add_special(tokenizer, languages)
    return tokenizer, [text for text in pieces if text not in vocab]


def _merges(pieces: list[str]) -> list[tuple[str, str]]:
    """Every split of a piece into two pieces, in order: SentencePiece lists no merges."""
    known = set(pieces)
    return [
        (piece[:cut], piece[cut:])
        for piece in pieces
        for cut in range(1, len(piece))
        if piece[:cut] in known and piece[cut:] in known
    ]


def _like_t5(model: SentencePieceModel) -> Tokenizer:
    scores = [(piece.text, piece.score) for piece in model.pieces]
    sentinels = [f"<extra_id_{number}>" for number in reversed(range(100))]
    if sentinels[-1] not in dict(scores):
        scores += [(name, 0.0) for name in sentinels]
    tokenizer = _unigram(scores, model.unk_id, model.byte_fallback)
    _add_special(tokenizer, sentinels)
    return tokenizer


def _unigram(scores: list[tuple[str, float]], unk_id: int, byte_fallback: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram(scores, unk_id, byte_fallback))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    )
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    return tokenizer


def _like_llama(model: SentencePieceModel, *, legacy: bool) -> Tokenizer:
    vocab = {piece.text: id for id, piece in enumerate(model.pieces)}
    merges = _merges(list(vocab))
    unknown = model.pieces[model.unk_id].text
    options = dict(unk_token=unknown, fuse_unk=True, byte_fallback=model.byte_fallback)
    tokenizer = Tokenizer(models.BPE(vocab, merges, **options))
    prepend = "always" if legacy else "first"
    prepend = prepend if model.adds_prefix_space else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend, split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if model.adds_prefix_space:
        steps.append(decoders.Strip(" ", left=1))
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _add_normalizer_and_special_tokens(tokenizer: Tokenizer, model: SentencePieceModel) -> None:
    """Adds the model's normalizer, and the tokens that are found before text is split."""
    if model.charsmap:
        tokenizer.normalizer = normalizers.Precompiled(model.charsmap)
    vocab = tokenizer.get_vocab()
    known = [piece for piece in model.pieces if piece.text in vocab]
    _add_special(tokenizer, [p.text for p in known if p.kind in (CONTROL, UNKNOWN)])
    own = [p.text for p in known if p.kind == USER_DEFINED]
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in own])


def _add_special(tokenizer: Tokenizer, names: list[str]) -> None:
    tokenizer.add_special_tokens([AddedToken(n, special=True, normalized=False) for n in names])


def _parse(data: bytes) -> SentencePieceModel:
    pieces, trainer, normalizer = [], {}, {}
    for number, value in _fields(data):
        match number:
            case 1:
                piece = dict(_fields(value))
                (score,) = struct.unpack("<f", piece.get(2, bytes(4)))
                pieces.append(VocabularyPiece(piece[1].decode(), score, piece.get(3, NORMAL)))
            case 2:
                trainer = dict(_fields(value))
            case 3:
                normalizer = dict(_fields(value))
    if not pieces or not trainer:
        raise ValueError("it lists no pieces, or no settings of the trainer")
    require_charsmap(charsmap := normalizer.get(2, b""))
    return SentencePieceModel(
        pieces=pieces,
        kind=trainer.get(3, UNIGRAM),
        byte_fallback=bool(trainer.get(35, False)),
        unk_id=_signed(trainer.get(40, 0)),
        bos_id=_signed(trainer.get(41, 1)),
        eos_id=_signed(trainer.get(42, 2)),
        pad_id=_signed(trainer.get(43, -1)),
        charsmap=charsmap,
        adds_prefix_space=bool(normalizer.get(3, True)),
    )


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field: an int for a varint, else bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire_type = key >> 3, key & 7
        if wire_type == 0:
            value, at = _varint(data, at)
        else:
            width = {1: 8, 5: 4}.get(wire_type)
            if width is None and wire_type != 2:
                raise ValueError(f"it has a field of unknown type {wire_type}")
            size, at = (width, at) if width else _varint(data, at)
            value, at = data[at : at + size], at + size
            if at > len(data):
                raise ValueError("it ends too early")
        yield number, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The integer at `at`, and the position after it: seven bits per byte, the lowest first."""
    value = shift = 0
    while True:
        if at >= len(data):
            raise ValueError("it ends too early")
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at


def _signed(value: int) -> int:
    """A varint as a signed number: 64 bits in two's complement."""
    return value - (1 << 64) if value >> 63 else value
