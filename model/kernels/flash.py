"""Stub."""

from model.kernels.dot import dot_attention


def flash_attention(q_bthk, k_bsgk, v_bsgk, sight, *, bias=None, **options):
    bias_bhts = None
    if bias is not None:
        bias_bhts = bias(None, sight.queries.positions_bt, sight.keys.positions_bt)
    mask_b1ts = sight.mask_b1ts()
    return dot_attention(
        q_bthk, k_bsgk, v_bsgk, mask_b1ts=mask_b1ts, bias_bhts=bias_bhts, **options
    )
