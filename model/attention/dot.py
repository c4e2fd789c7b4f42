"""The kind that keeps all scores in memory: the reference for every other kind."""

from jax import Array

from model.attention.dot_attention import dot_attention, explicit_bias
from model.attention.interface import AttentionInputs, AttentionKind


class Dot(AttentionKind):
    name = "dot"
    description = "exact, all scores in memory: the reference"
    reads_explicit_mask = True
    is_exact = True

    def attend(self, inputs: AttentionInputs) -> Array:
        mask_b1ts, bias_bhts = inputs.context.mask_b1ts, inputs.context.bias_bhts
        if mask_b1ts is None:
            mask_b1ts = inputs.mask_spec.mask_b1ts()
        if bias_bhts is None and inputs.bias is not None:
            bias_bhts = explicit_bias(
                inputs.bias, inputs.qkv.q_bthk, inputs.mask_spec, inputs.scale
            )
        return dot_attention(
            *inputs.qkv, mask_b1ts=mask_b1ts, bias_bhts=bias_bhts, **inputs.softmax_options
        )

    def cross_attend(self, inputs: AttentionInputs) -> Array:
        mask_b1ts = inputs.mask_spec.mask_b1ts()
        return dot_attention(*inputs.qkv, mask_b1ts=mask_b1ts, **inputs.softmax_options)
