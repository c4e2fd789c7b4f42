import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from configs.default import get_config
from model.heads import LanguageModel
from tests.model.examples import DECODER_POSITIONS, text_params
from tests.tiny import random_params, tiny_config
from training.config import OptimizerConfig
from training.optimizer import ema_update, make_optimizer, parameter_roles

DEFAULT = dataclasses.replace(OptimizerConfig(**get_config().optimizer), clip_norm=0.0)
NAMES = ["adam", "adamw", "adafactor", "lion", "muon", "sgd"]
L, D, H, G, K, F, V = 3, 8, 4, 2, 5, 12, 11


def optimizer(rate=0.1, **changes):
    return make_optimizer(dataclasses.replace(DEFAULT, **changes), lambda count: rate)


def random_tree(seed):
    """Parameters named and shaped as the model's."""
    shapes = {
        "token_embedding": {"embedding": (V, D)},
        "decoder": {
            "blocks": {
                "self_attention": {
                    "query": {"kernel": (L, D, H, K), "bias": (L, H, K)},
                    "key": {"kernel": (L, D, G, K)},
                    "value": {"kernel": (L, D, G, K)},
                    "out": {"kernel": (L, H, K, D), "bias": (L, D)},
                },
                "self_attention_norm": {"scale": (L, D), "bias": (L, D)},
                "feed_forward": {"in": {"kernel": (L, D, F)}, "out": {"kernel": (L, F, D)}},
            },
            "relative_bias": {"embedding": (32, H)},
            "final_norm": {"scale": (D,)},
        },
        "output": {"kernel": (D, V)},
    }
    generator = np.random.default_rng(seed)
    return jax.tree.map(
        lambda shape: jnp.asarray(generator.normal(size=shape), jnp.float32),
        shapes,
        is_leaf=lambda node: isinstance(node, tuple),
    )


@pytest.mark.parametrize(
    "changes",
    [
        dict(position="transformer_xl"),
        dict(attention="additive"),
        dict(mixer="gru"),
        dict(experts=3),
    ],
    ids=str,
)
def test_every_parameter_of_a_model_has_a_role(changes):
    model = LanguageModel(tiny_config(family="decoder", **changes))
    params = random_params(model, np.zeros((1, 1), np.int32))
    roles = by_path(parameter_roles(params))
    assert {roles[path] for path in roles if path.endswith("kernel")} == {"kernel"}
    vectors = {"content_bias", "distance_bias", "score_vector", "bias", "scale"}
    ends = {path.split("/")[-1] for path in roles if roles[path] == "vector"}
    assert {"bias", "scale"} <= ends <= vectors


def by_path(tree):
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree.leaves_with_path(tree)
    }


def first_update(transform, gradients, params):
    updates, _ = jax.jit(transform.update)(gradients, transform.init(params), params)
    return updates


BLOCK_KERNELS = {
    f"decoder/blocks/{name}/kernel"
    for name in (
        "self_attention/query",
        "self_attention/key",
        "self_attention/value",
        "self_attention/out",
        "feed_forward/in",
        "feed_forward/out",
    )
}
EMBEDDINGS = {"token_embedding/embedding", "decoder/relative_bias/embedding"}


def test_roles_leaf_by_leaf():
    roles = by_path(parameter_roles(random_tree(0)))
    assert {path for path, role in roles.items() if role == "kernel"} == (
        BLOCK_KERNELS | {"output/kernel"}
    )
    assert {path for path, role in roles.items() if role == "embedding"} == EMBEDDINGS
    assert {path for path, role in roles.items() if role == "vector"} == {
        "decoder/blocks/self_attention/query/bias",
        "decoder/blocks/self_attention/out/bias",
        "decoder/blocks/self_attention_norm/scale",
        "decoder/blocks/self_attention_norm/bias",
        "decoder/final_norm/scale",
    }


@pytest.mark.parametrize("position", DECODER_POSITIONS)
def test_every_parameter_of_every_position_scheme_has_a_role(position):
    shapes = text_params(tiny_config(family="decoder", position=position))
    for path, role in by_path(parameter_roles(shapes)).items():
        assert (role == "kernel") == path.endswith("kernel"), path


def test_a_parameter_of_unknown_role_is_refused():
    with pytest.raises(ValueError, match=r"head/gain must be named one of: kernel, embedding"):
        parameter_roles({"head": {"gain": jnp.ones(3)}})


@pytest.mark.parametrize(
    ("name", "decay_embeddings"),
    [("adamw", False), ("adamw", True), ("adafactor", False), ("lion", False), ("muon", True)],
)
def test_weight_decay_touches_what_it_should_and_nothing_else(name, decay_embeddings):
    params = random_tree(1)
    zeros = jax.tree.map(jnp.zeros_like, params)
    # Powers of two, so that the expected update is exact.
    transform = optimizer(rate=0.5, name=name, weight_decay=0.25, decay_embeddings=decay_embeddings)
    updates = by_path(first_update(transform, zeros, params))
    decayed = BLOCK_KERNELS | {"output/kernel"} | (EMBEDDINGS if decay_embeddings else set())
    for path, param in by_path(params).items():
        expected = -0.125 * param if path in decayed else jnp.zeros_like(param)
        np.testing.assert_array_equal(updates[path], expected, err_msg=path)


@pytest.mark.parametrize("name", NAMES)
def test_every_optimizer_lowers_a_quadratic(name):
    params, target = random_tree(2), random_tree(3)
    transform = optimizer(rate=0.03, name=name)

    def distances(params):
        return jax.tree.map(lambda p, t: jnp.sum((p - t) ** 2), params, target)

    @jax.jit
    def step(params, state):
        gradients = jax.grad(lambda params: sum(jax.tree.leaves(distances(params))))(params)
        updates, state = transform.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    before, state = by_path(distances(params)), transform.init(params)
    for _ in range(200):
        params, state = step(params, state)
    after = by_path(distances(params))
    assert {path for path in before if not after[path] < 0.5 * before[path]} == set()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_update_changes_no_shape_and_no_type(name, dtype):
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), random_tree(13))
    transform = optimizer(name=name, clip_norm=1.0)
    before = jax.eval_shape(transform.init, params)
    updates, after = jax.eval_shape(transform.update, params, before, params)
    types = lambda tree: jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)  # noqa: E731
    assert types(updates) == types(params)
    assert types(after) == types(before)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_adam_is_the_published_rule(name):
    beta1, beta2, epsilon, rate = 0.8, 0.95, 0.01, 0.01
    decay = 0.1 if name == "adamw" else 0.0
    transform = optimizer(
        rate, name=name, beta1=beta1, beta2=beta2, epsilon=epsilon, weight_decay=decay
    )
    generator = np.random.default_rng(4)
    start = generator.normal(size=(4, 3))
    params = {"kernel": jnp.asarray(start, jnp.float32)}
    state = transform.init(params)

    theta, m, v = start, np.zeros((4, 3)), np.zeros((4, 3))
    for t in range(1, 6):
        g = generator.normal(size=(4, 3))
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
        theta = theta - rate * (m_hat / (np.sqrt(v_hat) + epsilon) + decay * theta)

        updates, state = transform.update({"kernel": jnp.asarray(g, jnp.float32)}, state, params)
        params = optax.apply_updates(params, updates)
        np.testing.assert_allclose(params["kernel"], theta, rtol=2e-5, atol=1e-6)


def test_sgd_has_momentum():
    transform = optimizer(rate=0.5, name="sgd", beta1=0.5)
    params = {"kernel": jnp.ones(2)}
    state = transform.init(params)
    update_values = []
    for _ in range(3):
        updates, state = transform.update({"kernel": jnp.ones(2)}, state, params)
        update_values.append(float(updates["kernel"][0]))
    assert update_values == [-0.5, -0.75, -0.875]


def test_lion_takes_steps_of_one_size():
    params, gradients = {"kernel": jnp.ones(3)}, {"kernel": jnp.asarray([0.1, -5.0, 2.0])}
    updates = first_update(optimizer(rate=0.25, name="lion"), gradients, params)
    np.testing.assert_array_equal(updates["kernel"], [-0.25, 0.25, -0.25])


def test_adafactor_without_decay_is_that_of_optax():
    params = {"kernel": jax.random.normal(jax.random.key(0), (130, 140))}
    gradients = {"kernel": jax.random.normal(jax.random.key(1), (130, 140))}
    ours = first_update(optimizer(rate=0.3, name="adafactor"), gradients, params)
    theirs = first_update(optax.adafactor(0.3), gradients, params)
    np.testing.assert_allclose(ours["kernel"], theirs["kernel"], rtol=1e-5)


def newton_schulz(matrix):
    """Keller Jordan's iteration, in float64."""
    x = matrix / np.linalg.norm(matrix)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x


def test_muon_treats_every_layer_as_a_matrix_of_its_own():
    gradients = random_tree(7)
    updates = by_path(first_update(optimizer(rate=1.0, name="muon"), gradients, random_tree(8)))
    gradients = by_path(gradients)
    rows = {"query": D, "key": D, "value": D, "out": H * K, "in": D}
    for path in BLOCK_KERNELS:
        module, layer_type = path.split("/")[-3:-1]
        size = F if (module, layer_type) == ("feed_forward", "out") else rows[layer_type]
        for layer in range(L):
            gradient = np.asarray(gradients[path][layer], np.float64)
            matrix = gradient.reshape(size, -1)
            expected = -0.2 * max(matrix.shape) ** 0.5 * newton_schulz(matrix)
            np.testing.assert_allclose(
                updates[path][layer], expected.reshape(gradient.shape), atol=1e-4, err_msg=path
            )


def test_muon_treats_every_expert_as_a_matrix_of_its_own():
    gradient = np.random.default_rng(11).normal(size=(2, 3, D, F)).astype(np.float32)
    tree = {"blocks": {"experts": {"in": {"kernel": jnp.asarray(gradient)}}}}
    update = first_update(optimizer(rate=1.0, name="muon"), tree, tree)
    (update,) = jax.tree.leaves(update)
    for at in np.ndindex(2, 3):
        expected = -0.2 * max(D, F) ** 0.5 * newton_schulz(gradient[at].astype(np.float64))
        np.testing.assert_allclose(update[at], expected, atol=1e-4)


def test_muon_leaves_all_but_the_blocks_kernels_to_adam():
    gradients, params = random_tree(9), random_tree(10)
    muon = by_path(first_update(optimizer(name="muon"), gradients, params))
    adam = by_path(first_update(optimizer(name="adam"), gradients, params))
    same = {path for path in adam if np.array_equal(muon[path], adam[path])}
    assert same == set(adam) - BLOCK_KERNELS


@pytest.mark.parametrize("clip_norm", [0.0, 0.5, 1e6])
def test_gradients_are_clipped_together(clip_norm):
    params, gradients = random_tree(11), random_tree(12)
    transform = optimizer(rate=1.0, name="sgd", beta1=0.0, clip_norm=clip_norm)
    updates = first_update(transform, gradients, params)
    leaves = jax.tree.leaves(gradients)
    norm = np.sqrt(sum(np.sum(np.square(leaf, dtype=np.float64)) for leaf in leaves))
    scale = min(1, clip_norm / norm) if clip_norm else 1
    assert (scale < 1) == (clip_norm == 0.5)
    jax.tree.map(
        lambda update, gradient: np.testing.assert_allclose(update, -scale * gradient, rtol=1e-5),
        updates,
        gradients,
    )


def test_the_schedule_is_asked_for_every_update():
    transform = make_optimizer(
        dataclasses.replace(DEFAULT, name="sgd", beta1=0.0), lambda count: 1.0 + count
    )
    params = {"bias": jnp.zeros(1)}
    state = transform.init(params)
    for expected in (-1.0, -2.0, -3.0):
        updates, state = transform.update({"bias": jnp.ones(1)}, state, params)
        assert float(updates["bias"][0]) == expected


def test_ema_follows_the_parameters():
    ema = {"kernel": jnp.asarray([1.0, 2.0])}
    for _ in range(2):
        ema = ema_update(ema, {"kernel": jnp.asarray([17.0, 2.0])}, decay=0.75)
    np.testing.assert_array_equal(ema["kernel"], [8.0, 2.0])
