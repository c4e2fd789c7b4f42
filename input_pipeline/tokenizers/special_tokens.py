"""Special tokens before, after and between texts.

A published tokenizer defines them by its post-processor, and its model must get the same ids here.
A tokenizer that is trained here has no post-processor. Its special tokens follow from the
objective: bos before documents, [cls] and [sep] around an encoder's text, eos after each text of an
encoder-decoder.
"""

import dataclasses
import functools
import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from tokenizers import Encoding, Tokenizer

from input_pipeline.tokenizers import bounded_encoding

Ids = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Template:
    """The special ids around one text and around a pair of texts, and the pair's token types."""

    prefix: Ids = ()
    suffix: Ids = ()
    pair: tuple[Ids, Ids, Ids] = ((), (), ())  # before, between and after two texts
    pair_types: tuple[Ids, Ids, Ids] = ((), (), ())
    text_types: tuple[int, int] = (0, 1)  # of the two texts of a pair

    @property
    def is_empty(self) -> bool:
        return not (self.prefix or self.suffix)

    @property
    def token_types(self) -> int:
        """The number of token types in a pair of texts."""
        return 1 + max(*self.text_types, *itertools.chain(*self.pair_types))

    def without_types(self) -> "Template":
        """The same special ids, with type 0 everywhere."""
        zeros = tuple((0,) * len(ids) for ids in self.pair)
        return dataclasses.replace(self, pair_types=zeros, text_types=(0, 0))

    def added(self, texts: int) -> int:
        """The number of special ids around one or two texts."""
        parts = (self.prefix, self.suffix) if texts == 1 else self.pair
        return sum(map(len, parts))

    def with_special_tokens(self, texts: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Adds special ids to one or two texts.

        Returns `inputs`; `is_text`, False at special ids; and for two texts `token_types`.
        """
        if len(texts) == 1:
            parts = [self.prefix, texts[0], self.suffix]
        else:
            before, between, behind = self.pair
            parts = [before, texts[0], between, texts[1], behind]
        sizes = list(map(len, parts))
        row = {
            "inputs": np.concatenate([np.asarray(part, np.int64) for part in parts]),
            "is_text": np.repeat(np.arange(len(parts)) % 2 == 1, sizes),
        }
        if len(texts) == 2:
            types = [*map(list, self.pair_types)]
            for place, size, kind in zip((1, 3), sizes[1::2], self.text_types, strict=True):
                types.insert(place, [kind] * size)
            row["token_types"] = np.array([*itertools.chain(*types)], np.int64)
        return row


def bert_like(cls_id: int, sep_id: int) -> Template:
    """[cls] text [sep], and [cls] text [sep] text [sep]."""
    cls, sep = (cls_id,), (sep_id,)
    return Template(cls, sep, (cls, sep, sep), ((0,), (0,), (1,)))


class SpecialTokens:
    """Base of all tokenizers: special ids by role, and the template of a published tokenizer."""

    bos_id: int | None
    eos_id: int | None
    cls_id: int | None
    sep_id: int | None
    more_eos_ids: Ids = ()  # further ids that end an answer, in chat models
    banned_ids: Ids = ()  # ids that are never generated: Marian's padding
    # BART: begins both texts of an encoder-decoder; mBART-50: the language, begins targets
    text_start_ids: Ids = ()
    forced_eos = False  # the last token of an answer of maximum length is an end: BART, Marian
    truncates_left = False  # long texts lose their beginning, not their end
    template: Template | None = None
    # Whether `encode` turns the name of the mask, such as [MASK], into the mask id.
    reads_mask = False

    @property
    def target(self) -> "SpecialTokens":
        """The tokenizer that encodes targets; only Marian's is another one."""
        return self

    @property
    def causal_prefix(self) -> Ids:
        """Special ids before a decoder's text."""
        return (self.bos_id,) if self.template is None else self.template.prefix

    @property
    def causal_suffix(self) -> Ids:
        """Special ids after a prompt; only some published tokenizers have them."""
        return () if self.template is None else self.template.suffix

    @functools.cached_property
    def encoder_template(self) -> Template:
        """Special ids around the texts of an encoder or a classifier."""
        return self.template or bert_like(self.cls_id, self.sep_id)

    @property
    def source_affixes(self) -> tuple[Ids, Ids]:
        """Special ids before and after the encoder's text of an encoder-decoder."""
        if self.template is None:
            return self.text_start_ids, (self.eos_id,)
        return self.template.prefix, self.template.suffix

    @property
    def target_affixes(self) -> tuple[Ids, Ids]:
        """Special ids before and after the decoder's text, which always ends in eos.

        What a published tokenizer puts around a source may name the source's language, as mBART's
        `</s> en_XX`. A target ends at its first eos, and begins with its own language, if that is
        forced, as in mBART-50.
        """
        prefix, suffix = self.source_affixes
        usual = (self.bos_id, self.cls_id, *self.text_start_ids)
        prefix = tuple(id for id in prefix if id in usual)
        prefix = (*(id for id in self.text_start_ids if id not in prefix), *prefix)
        end = suffix.index(self.eos_id) if self.eos_id in suffix else len(suffix)
        return prefix, (*suffix[:end], self.eos_id)


def read_template(tokenizer: Tokenizer) -> Template:
    """The special ids that the tokenizer's post-processor adds, found by encoding a text."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    text = _spelt_text(tokenizer)
    (prefix, suffix), _, _ = _parts(bounded_encoding.encode(tokenizer, text), 1)
    pair, types, text_types = _parts(bounded_encoding.encode(tokenizer, (text, text)), 2)
    return Template(prefix, suffix, pair, types, text_types)


def _spelt_text(tokenizer: Tokenizer) -> str:
    """Any text that has at least one id."""
    for texts in ("a0xe", sorted(tokenizer.get_vocab())):
        found = bounded_encoding.encode_batch(tokenizer, list(texts), add_special_tokens=False)
        if spelt := [text for text, each in zip(texts, found, strict=True) if each.ids]:
            return spelt[0]
    raise ValueError("its vocabulary spells no text")


def _parts(encoding: Encoding, texts: int) -> tuple[tuple[Ids, ...], tuple[Ids, ...], Ids]:
    """Special ids before each text and after the last; their types; the types of the texts."""
    sequences = encoding.sequence_ids
    bounds = [0]
    for number in range(texts):
        places = [place for place, each in enumerate(sequences) if each == number]
        bounds += [places[0], places[-1] + 1]
    bounds.append(len(sequences))
    spans = [slice(*bounds[i : i + 2]) for i in range(0, len(bounds), 2)]
    ids = tuple(tuple(encoding.ids[span]) for span in spans)
    types = tuple(tuple(encoding.type_ids[span]) for span in spans)
    return ids, types, tuple(encoding.type_ids[start] for start in bounds[1:-1:2])


def with_template(content: str, template: Template) -> str:
    """The tokenizer.json with a post-processor that adds these special tokens.

    It stays unchanged if its post-processor already adds them.
    """
    tokenizer = Tokenizer.from_str(content)
    if _same(read_template(tokenizer), template):
        return content
    layout = json.loads(content)
    layout["post_processor"] = _processor(tokenizer, template)
    return Tokenizer.from_str(json.dumps(layout)).to_str(pretty=True)


def _same(one: Template, other: Template) -> bool:
    """Whether two templates are equal. Empty ones may differ in the types of two texts."""
    return one == other or (one.is_empty and other.is_empty and one.pair == other.pair)


def _processor(tokenizer: Tokenizer, template: Template) -> dict[str, Any]:
    """The post-processor as the library's JSON; its constructor refuses names with a colon."""
    names = {id: tokenizer.id_to_token(id) for ids in template.pair for id in ids}
    names |= {id: tokenizer.id_to_token(id) for id in (*template.prefix, *template.suffix)}

    def special(ids: Ids, types: Ids) -> list[dict]:
        pairs = zip(ids, types, strict=True)
        return [{"SpecialToken": {"id": names[id], "type_id": kind}} for id, kind in pairs]

    def text(name: str, kind: int) -> list[dict]:
        return [{"Sequence": {"id": name, "type_id": kind}}]

    of_pair = [special(*each) for each in zip(template.pair, template.pair_types, strict=True)]
    first, second = template.text_types
    before, behind = (special(ids, (0,) * len(ids)) for ids in (template.prefix, template.suffix))
    return {
        "type": "TemplateProcessing",
        "single": [*before, *text("A", 0), *behind],
        "pair": [*of_pair[0], *text("A", first), *of_pair[1], *text("B", second), *of_pair[2]],
        "special_tokens": {
            name: {"id": name, "ids": [id], "tokens": [name]} for id, name in names.items()
        },
    }
