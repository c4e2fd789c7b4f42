"""Every token mixer x every feature: the result is right, or the config is refused.

`python -m tests.model.mixers.test_mixers` writes the table of docs/mixers.md, in which each of
these tests is a cell.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import default
from experiment import sections
from experiment.schema import ConfigError
from model.attention.interface import AttentionContext
from model.heads import LanguageModel
from model.kv_cache import empty_cache, require_token_slots
from model.masks import MaskSpec, SequenceInfo
from model.mixers import FEATURES, MIXERS
from model.mixers.token_mixer import TokenMixer
from tests.model.examples import left_padded, pack, text_logits, text_params, tokens
from tests.model.feature_table import DOCS, markdown_table, with_table
from tests.model.mixers import loops
from tests.model.test_kv_cache import COLUMNS, assert_same_at_real_tokens, decode_in_chunks
from tests.tiny import quick_jit, random_params, tiny_config

# Rows of examples, and whether padding comes first.
ROWS = {"segments": [[4, 1, 6], [3, 7]], "padding": [[7], [11]]}
LENGTH, PREFIX, DILATION = 12, 4, 2
OPTIONS = {"lstm": {"forget_bias": 0.7}, "conv": {"taps": 3.0}}

cells = [
    pytest.param(name, feature, id=f"{name}-{feature}") for name in MIXERS for feature in FEATURES
]


def mixer_config(name, **changes):
    options = tuple(OPTIONS.get(name, {}).items())
    return tiny_config(**dict(family="decoder", mixer=name, mixer_options=options) | changes)


def layout(feature):
    """Positions, segments and (row, first, end) of the examples."""
    positions, segments = np.zeros((2, 2, LENGTH), np.int32)
    places = []
    for r, lengths in enumerate(ROWS.get(feature, [[LENGTH], [LENGTH]])):
        column = 3 if feature == "padding" and r == 0 else 0
        for segment, length in enumerate(lengths, start=1):
            positions[r, column : column + length] = np.arange(length)
            segments[r, column : column + length] = segment
            places.append((r, column, column + length))
            column += length
    return positions, segments, places


def check_against_loops(name, feature):
    """Outputs, and gradients along random directions, of every example."""
    two_sided = feature == "two_sided"
    dtype = "bfloat16" if feature == "bfloat16" else "float32"
    config = mixer_config(name, dtype=dtype)
    positions, segments, places = layout(feature)
    prefix_bt = (positions < PREFIX) & (segments > 0) if feature == "prefix" else None
    info = SequenceInfo(jnp.asarray(positions), jnp.asarray(segments), prefix_bt)
    context = AttentionContext(MaskSpec(info, info, causal=not two_sided))
    module = TokenMixer(config, DILATION if name == "conv" else 0)
    rng = np.random.default_rng(3)
    x_btd = rng.normal(size=(2, LENGTH, config.width))
    params = random_params(module, jnp.asarray(x_btd, dtype), context)
    real_bt1 = (segments > 0)[..., None]
    weights_btd = rng.normal(size=x_btd.shape) * real_bt1

    def ours(params, x_btd):
        y_btd = module.apply({"params": params}, x_btd.astype(dtype), context)[0]
        return (y_btd.astype(jnp.float32) * weights_btd).sum(), y_btd

    options = {**MIXERS[name].options, **OPTIONS.get(name, {}), "dilation": DILATION}

    def theirs(params, x_btd):
        y_btd = np.zeros_like(x_btd)
        for r, first, end in places:
            y_btd[r, first:end] = loops.mixed(
                name, params, x_btd[r, first:end], options,
                two_sided=two_sided, prefix=PREFIX if feature == "prefix" else 0,
            )  # fmt: skip
        return (y_btd * weights_btd).sum(), y_btd

    exact = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    grad = quick_jit(jax.value_and_grad(ours, argnums=(0, 1), has_aux=True))
    (_, found), gradients = grad(params, jnp.asarray(x_btd, jnp.float32))
    _, expected = theirs(exact, x_btd)
    tolerance = dict(rtol=0.05, atol=0.1) if feature == "bfloat16" else dict(rtol=0, atol=2e-5)
    at_tokens = np.asarray(found, np.float64) * real_bt1
    np.testing.assert_allclose(at_tokens, expected, **tolerance)

    leaves, tree = jax.tree.flatten((exact, x_btd))
    step = 1e-5
    for number, leaf in enumerate(leaves):  # the derivative along a random direction in each array
        direction = rng.normal(size=leaf.shape)

        def moved(by, number=number, direction=direction):
            changed = [*leaves]
            changed[number] = leaves[number] + by * direction
            return theirs(*jax.tree.unflatten(tree, changed))[0]

        slope = (moved(step) - moved(-step)) / (2 * step)
        gradient = np.asarray(jax.tree.leaves(gradients)[number], np.float64)
        rtol = 0.1 if feature == "bfloat16" else 1e-3
        size = np.linalg.norm(gradient) * np.linalg.norm(direction)
        assert abs((gradient * direction).sum() - slope) < rtol * max(abs(slope), 0.03 * size)
        assert size > 1e-3, "no gradient, so nothing was compared"


def check_refused(name, feature):
    reason = re.escape(f"model.mixer={name} does not go with {FEATURES[feature]}")
    if feature == "quantized":
        with pytest.raises(ConfigError, match=reason):
            mixer_config(name, matmul="int8")
        return
    assert feature == "prefix"
    config = default.get_config()
    config.model.update(dict(family="decoder", mixer=name))
    config.task.objective = "prefix_lm"
    with pytest.raises(ConfigError, match=reason):
        sections.from_mapping(config.to_dict())


def check_cached(name):
    """Prompts of mixed lengths, padded on the left, then pieces of all sizes."""
    options = tuple(
        (OPTIONS.get(name, {}) | ({"dilations": 2.0} if name == "conv" else {})).items()
    )
    config = mixer_config(name, mixer_options=options)
    rows = left_padded(*(tokens(n, seed=n) for n in (COLUMNS, 9, 1)), columns=COLUMNS)
    cached = decode_in_chunks(config, rows, chunks=(5, 1, 1, 5))
    assert_same_at_real_tokens(rows, cached, text_logits(config, rows))


def check_branches(name):
    """Two branches of each row swap places, as beams do."""
    config = mixer_config(name)
    model, params = LanguageModel(config), text_params(config)
    decode = quick_jit(functools.partial(model.apply, method="decode"))
    prompts = [tokens(4, seed=1), tokens(2, seed=2)]
    rows = left_padded(*prompts, columns=4)
    cache = empty_cache(config, 2, slots=9, keep_tokens=True)
    require_token_slots(cache)
    _, cache = decode(
        {"params": params}, rows.inputs, positions_bt=rows.positions, segments_bt=rows.segments,
        cache=cache,
    )  # fmt: skip
    first_bn = np.array([[3, 5], [7, 2]], np.int32)
    second_bn = np.array([[1, 8], [4, 6]], np.int32)
    visible = np.ones((2, 2, 9), bool)
    visible[:, :, 4:] = np.array([[1, 0, 0, 0, 0], [0, 1, 0, 0, 0]], bool)
    places_bn = np.array([[4, 4], [2, 2]], np.int32)
    first_logits, cache = decode(
        {"params": params}, first_bn, positions_bt=places_bn, visible_bts=visible, cache=cache
    )
    # The new first branch continues the old second one, and the other way round.
    visible[:, :, 4:] = np.array([[0, 1, 1, 0, 0], [1, 0, 0, 1, 0]], bool)
    second_logits, _ = decode(
        {"params": params}, second_bn, positions_bt=places_bn + 1, visible_bts=visible, cache=cache
    )
    for row in range(2):
        for branch in range(2):
            before = [*prompts[row], first_bn[row, 1 - branch], second_bn[row, branch]]
            alone = pack([np.array(before, np.int32)], columns=6)
            full = text_logits(config, alone)[0]
            close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-5)
            close(second_logits[row, branch], full[len(before) - 1])
            close(first_logits[row, 1 - branch], full[len(before) - 2])


@pytest.mark.parametrize(("name", "feature"), cells)
def test_cell(name, feature):
    if feature in MIXERS[name].refused:
        return check_refused(name, feature)
    match feature:
        case "cached":
            check_cached(name)
        case "branches":
            check_branches(name)
        case _:
            check_against_loops(name, feature)


@pytest.mark.parametrize("name", ["lstm", "conv"])
def test_a_row_goes_on_from_where_it_went_back_to(name):
    """The second row takes back its newest token, as drafts do; then both rows get the same two."""
    config = mixer_config(name)
    model, params = LanguageModel(config), text_params(config)
    decode = quick_jit(functools.partial(model.apply, method="decode"))
    cache = empty_cache(config, 2, slots=9, keep_tokens=True)
    three = np.array([[1, 2, 3], [4, 5, 6]], np.int32)
    more = np.array([[8, 9], [8, 9]], np.int32)
    index_b = jnp.zeros(2, jnp.int32)
    _, cache = decode({"params": params}, three, cache=cache.replace(index=index_b))
    logits, _ = decode(
        {"params": params}, more, cache=cache.replace(index=cache.index - np.array([0, 1]))
    )
    for row, remaining in enumerate((3, 2)):
        alone = pack([np.concatenate([three[row, :remaining], more[row]])], columns=6)
        expected = text_logits(config, alone)[0, remaining : remaining + 2]
        np.testing.assert_allclose(logits[row], expected, rtol=0, atol=1e-5)


DOCUMENT = DOCS / "mixers.md"


def table() -> str:
    return markdown_table(FEATURES, {name: mixer.refused for name, mixer in MIXERS.items()})


def test_the_document_has_this_table():
    text = DOCUMENT.read_text()
    assert text == with_table(text, table()), "run python -m tests.model.mixers.test_mixers"


if __name__ == "__main__":
    DOCUMENT.write_text(with_table(DOCUMENT.read_text(), table()))
