"""The kind that computes exact attention in blocks, with the platform's best kernel."""

from typing import ClassVar

from jax import Array

from model.attention.flash_attention import flash_attention
from model.attention.interface import NEEDS_SCORES, AttentionInputs, AttentionKind


class Flash(AttentionKind):
    name = "flash"
    description = "exact, in blocks: memory grows with the length, not with its square"
    refused: ClassVar = {"relative": NEEDS_SCORES}
    is_exact = True

    def attend(self, inputs: AttentionInputs) -> Array:
        return flash_attention(
            *inputs.qkv, inputs.mask_spec, bias=inputs.bias, **inputs.softmax_options
        )
