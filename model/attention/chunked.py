"""Attention within overlapping chunks."""

from typing import TYPE_CHECKING

from model.attention.local import Local
from model.masks import Locality

if TYPE_CHECKING:
    from model.config import TransformerConfig


class Chunked(Local):
    name = "chunked"
    description = "a query's own chunk of `attention_chunk` positions, and an overlap on both sides"
    keys = ("attention_chunk", "attention_overlap")

    def locality(self, config: "TransformerConfig") -> Locality:
        overlap = config.attention_overlap
        return Locality(chunk=config.attention_chunk, before=overlap, after=overlap)
