"""Sliding-window attention."""

from typing import TYPE_CHECKING

from jax import Array

from model.attention.banded import Band, banded_attention
from model.attention.interface import AttentionInputs, AttentionKind
from model.masks import Locality

if TYPE_CHECKING:
    from model.config import TransformerConfig


class Local(AttentionKind):
    name = "local"
    description = "each query sees the keys less than `attention_window` positions away"
    keys = ("attention_window",)
    is_exact = True

    def locality(self, config: "TransformerConfig") -> Locality:
        return Locality(window=config.attention_window)

    def attend(self, inputs: AttentionInputs) -> Array:
        band = Band(inputs.qkv.k_bsgk, inputs.qkv.v_bsgk, inputs.mask_spec.locality)
        return banded_attention(
            inputs.qkv.q_bthk,
            [band],
            inputs.mask_spec,
            bias=inputs.bias,
            **inputs.softmax_options,
        )
