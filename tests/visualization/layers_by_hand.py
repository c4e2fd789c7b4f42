"""Recomputes layers with NumPy from captured attention weights: weights times values, and the rest.

For encoders in the style of configs.architectures.vit_style.
"""

import jax
import numpy as np
from scipy.special import erf

from visualization.captured_pass import run_and_capture


def assert_weights_give_the_next_layer(run, given):
    """Each layer's weights times its values lead from its hidden states to those of the next."""
    found = run_and_capture(run, given.batch(run.mesh))
    (layers,) = found.attention.values()
    hidden_ltd = np.asarray(found.hidden["encoder"])[:, 0].astype(np.float64)
    assert len(layers.weights_lhts) == len(hidden_ltd) - 1
    for layer, weights_hts in enumerate(layers.weights_lhts):
        params = jax.tree.map(
            lambda leaf, layer=layer: np.asarray(leaf[layer], np.float64),
            run.params["backbone"]["encoder"]["blocks"],
        )
        y_td = _by_hand(hidden_ltd[layer], weights_hts, params)
        np.testing.assert_allclose(y_td, hidden_ltd[layer + 1], atol=1e-5)
        # Other weights give other hidden states, so the line above tells them apart.
        even_hts = np.full_like(weights_hts, 1 / weights_hts.shape[-1])
        assert np.abs(_by_hand(hidden_ltd[layer], even_hts, params) - y_td).max() > 1e-3


def _by_hand(x_td, weights_hts, params):
    """One block with norms before its sublayers, with these weights of attention."""
    attention, feed_forward = params["self_attention"], params["feed_forward"]
    value, out = attention["value"], attention["out"]
    normed_td = _norm(x_td, params["self_attention_norm"])
    v_shk = np.einsum("sd,dhk->shk", normed_td, value["kernel"]) + value["bias"]
    y_thk = np.einsum("hts,shk->thk", weights_hts, v_shk)
    x_td = x_td + np.einsum("thk,hkd->td", y_thk, out["kernel"]) + out["bias"]
    hidden_tf = _norm(x_td, params["feed_forward_norm"]) @ feed_forward["in"]["kernel"]
    hidden_tf += feed_forward["in"]["bias"]
    hidden_tf *= 0.5 * (1 + erf(hidden_tf / np.sqrt(2)))  # gelu
    return x_td + hidden_tf @ feed_forward["out"]["kernel"] + feed_forward["out"]["bias"]


def _norm(x_td, params):
    centred_td = x_td - x_td.mean(axis=-1, keepdims=True)
    deviation_t1 = np.sqrt(np.square(centred_td).mean(axis=-1, keepdims=True) + 1e-12)
    return centred_td / deviation_t1 * params["scale"] + params["bias"]
