"""Transformer-XL's recurrence: a chunk and a memory of earlier positions (Dai et al., 2019).

Keys and values of the memory are those of earlier positions, without a gradient.
"""

import dataclasses
from typing import TYPE_CHECKING, ClassVar

from jax import Array

from model.attention.banded import Band, banded_attention
from model.attention.interface import NO_SINKS, AttentionInputs, AttentionKind
from model.masks import Locality

if TYPE_CHECKING:
    from model.config import TransformerConfig

CAUSAL_ONLY = "its memory holds earlier positions only"


class Recurrent(AttentionKind):
    name = "recurrent"
    description = "Transformer-XL: a query's own chunk and, without gradient, earlier positions"
    refused: ClassVar = {
        "two_sided": CAUSAL_ONLY,
        "prefix": CAUSAL_ONLY,
        "cross": "the encoder would be of this kind, which is for decoders only",
        "sinks": NO_SINKS,
    }
    keys = ("attention_chunk", "attention_memory")
    uses_memory = True

    def locality(self, config: "TransformerConfig") -> Locality:
        return Locality(chunk=config.attention_chunk, before=config.attention_memory)

    def attend(self, inputs: AttentionInputs) -> Array:
        memory_qkv = inputs.project(stop_gradient=True)
        memory = dataclasses.replace(inputs.mask_spec.locality, own=False)
        bands = [
            Band(inputs.qkv.k_bsgk, inputs.qkv.v_bsgk, Locality(chunk=memory.chunk)),
            Band(memory_qkv.k_bsgk, memory_qkv.v_bsgk, memory),
        ]
        return banded_attention(
            inputs.qkv.q_bthk, bands, inputs.mask_spec, bias=inputs.bias, **inputs.softmax_options
        )
