"""Recurrent mixers against torch's layers with the same weights, forward and backward."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model.attention.interface import AttentionContext
from model.masks import MaskSpec, SequenceInfo
from model.mixers.token_mixer import TokenMixer
from tests.tiny import random_params, tiny_config

pytestmark = pytest.mark.oracle
ROWS, LENGTH, WIDTH = 3, 10, 16


def torch_layer(name, params, two_sided):
    """torch's layer with our weights; its second bias is ours, or zeros."""
    import torch

    layers = {"rnn": torch.nn.RNN, "gru": torch.nn.GRU, "lstm": torch.nn.LSTM}
    layer = layers[name](WIDTH, WIDTH, batch_first=True, bidirectional=two_sided)
    for prefix, suffix in [("", ""), ("backward_", "_reverse")][: 1 + two_sided]:
        inner, outer = params[f"{prefix}in"], params[f"{prefix}recurrent"]
        bias = np.asarray(inner["bias"]).copy()
        if name == "lstm":
            bias[WIDTH : 2 * WIDTH] += 1  # our forget_bias
        values = {
            "weight_ih": np.asarray(inner["kernel"]).T,
            "weight_hh": np.asarray(outer["kernel"]).T,
            "bias_ih": bias,
            "bias_hh": np.asarray(outer.get("bias", np.zeros_like(bias))),
        }
        with torch.no_grad():
            for key, value in values.items():
                parameter = getattr(layer, f"{key}_l0{suffix}")
                parameter.copy_(torch.from_numpy(np.array(value)))
    return layer


@pytest.mark.parametrize("two_sided", [False, True])
@pytest.mark.parametrize("name", ["rnn", "gru", "lstm"])
def test_outputs_and_gradients_are_those_of_torch(name, two_sided):
    import torch

    config = tiny_config(family="decoder", mixer=name, width=WIDTH)
    rng = np.random.default_rng(0)
    x, weights = (rng.normal(size=(ROWS, LENGTH, WIDTH)).astype(np.float32) for _ in range(2))
    info = SequenceInfo(jnp.arange(LENGTH)[None], jnp.ones((1, LENGTH), jnp.int32))
    context = AttentionContext(MaskSpec(info, info, causal=not two_sided))
    module = TokenMixer(config, 0)
    params = random_params(module, x, context)

    def ours(params, x):
        y = module.apply({"params": params}, x, context)[0]
        return (y * weights).sum(), y

    (_, found), (gradients, of_x) = jax.jit(jax.value_and_grad(ours, argnums=(0, 1), has_aux=True))(
        params, x
    )

    layer = torch_layer(name, params, two_sided)
    given = torch.from_numpy(x).requires_grad_()
    kernel, bias = (torch.from_numpy(np.array(params["out"][key])) for key in ("kernel", "bias"))
    y = layer(given)[0] @ kernel + bias
    (y * torch.from_numpy(weights)).sum().backward()
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-4)  # noqa: E731
    close(found, y.detach().numpy())
    close(of_x, given.grad.numpy())
    for prefix, suffix in [("", ""), ("backward_", "_reverse")][: 1 + two_sided]:
        close(gradients[f"{prefix}in"]["kernel"].T, getattr(layer, f"weight_ih_l0{suffix}").grad)
        close(gradients[f"{prefix}in"]["bias"], getattr(layer, f"bias_ih_l0{suffix}").grad)
        close(
            gradients[f"{prefix}recurrent"]["kernel"].T,
            getattr(layer, f"weight_hh_l0{suffix}").grad,
        )
