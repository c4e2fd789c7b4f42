"""`flash` stands for several kernels: each is chosen only where it supports what is asked."""

import dataclasses
import functools
import importlib.util
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from model.attention import flash_attention as flash
from model.attention.dot_attention import dot_attention
from model.attention.flash_attention import flash_attention
from model.attention.fused import cudnn_can, cudnn_may, splash_attention, splash_can, splash_may
from model.masks import Locality, MaskSpec, SequenceInfo
from model.positions import ScoreBias, alibi_slopes
from model.sharding import MESH_AXES
from model.transformer import Transformer
from tests.devices import measured_on
from tests.tiny import quick_jit, random_params, tiny_config

B, T, H, G, K = 2, 384, 2, 1, 8  # splash takes this length in three blocks
SCALE = 0.3


def packed(lengths, length=T):
    """Segments of such lengths and their positions, then padding, for one row."""
    segments = np.concatenate([np.full(n, i + 1) for i, n in enumerate(lengths)])
    positions = np.concatenate([np.arange(n) for n in lengths])
    rest = (0, length - len(segments))
    return np.pad(positions, rest), np.pad(segments, rest)


def sequence_info(*rows, **flags):
    positions, segments = (jnp.asarray(np.stack(x), jnp.int32) for x in zip(*rows, strict=True))
    return SequenceInfo(positions, segments, **flags)


def mask_spec_of(info, causal, locality=None):
    return MaskSpec(info, info, causal, locality)


PACKED = sequence_info(packed([150, 60, 120]), packed([384]))
MASK_SPECS = {
    "causal": mask_spec_of(PACKED, True),
    "two-sided": mask_spec_of(PACKED, False),
    "causal window": mask_spec_of(PACKED, True, Locality(window=100)),
    "two-sided window": mask_spec_of(PACKED, False, Locality(window=50)),
    # The second row's queries find nothing of their segment; the third segment is in no key.
    "source": MaskSpec(
        PACKED, sequence_info(packed([100, 28], 128), ([0] * 128, [2] * 128)), False
    ),
}


def arrays(keys=T, dtype=jnp.float32, batch=B, queries=T, heads=H, groups=G):
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), dtype)  # noqa: E731
    q, k, v = draw(batch, queries, heads, K), *(draw(batch, keys, groups, K) for _ in "kv")
    return q, k, v


def with_gradients(attention, qkv, *rest):
    probe = np.random.default_rng(1).normal(size=qkv[0].shape).astype(np.float32)

    def probed(qkv, *rest):
        y = attention(*qkv, *rest)
        return (y * probe).sum(), y

    gradients, y = quick_jit(jax.grad(probed, has_aux=True))(qkv, *rest)
    return dict(zip("qkv", gradients, strict=True)) | {"y": y}


def plain(q, k, v, mask_spec, cap=0.0):
    return dot_attention(q, k, v, mask_b1ts=mask_spec.mask_b1ts(), scale=SCALE, cap=cap)


def assert_same(found, expected):
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("name", MASK_SPECS)
def test_splash_equals_plain_attention(name):
    """As a TPU would run it, step by step on the CPU."""
    mask_spec, cap = MASK_SPECS[name], 0.8 if "window" in name else 0.0
    qkv = arrays(mask_spec.keys.segments_bt.shape[1])
    assert splash_can(*qkv, mask_spec) and splash_may(mask_spec)
    found = with_gradients(
        functools.partial(splash_attention, scale=SCALE, cap=cap, interpret=True), qkv, mask_spec
    )
    assert_same(found, with_gradients(functools.partial(plain, cap=cap), qkv, mask_spec))


FLIPPED = dataclasses.replace(PACKED, positions_bt=PACKED.positions_bt[:, ::-1])
PIECES = SequenceInfo(jnp.arange(T)[None] // 9 * 6, jnp.where(jnp.arange(T) % 9 < 6, 1, 0)[None])
UNSUITED = {
    "positions reversed": mask_spec_of(FLIPPED, True),
    "positions in steps of two": mask_spec_of(
        dataclasses.replace(PACKED, positions_bt=2 * PACKED.positions_bt),
        False,
        Locality(window=40),
    ),
    "a segment in pieces": mask_spec_of(PIECES, True),
    "queries ahead of their keys": MaskSpec(
        dataclasses.replace(PACKED, positions_bt=PACKED.positions_bt + 7), PACKED, True
    ),
}


@pytest.mark.parametrize("name", ["causal", *UNSUITED])
def test_masks_that_columns_do_not_describe_avoid_the_splash_kernel(name, monkeypatch):
    """The TPU's choice, made on a CPU: with its kernel alone, each of these would be wrong."""
    mask_spec, qkv = (MASK_SPECS | UNSUITED)[name], arrays()
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *x, tpu, default: tpu(*x))
    kernel = functools.partial(splash_attention, interpret=True)
    monkeypatch.setattr(flash, "splash_attention", kernel)
    expected = with_gradients(plain, qkv, mask_spec)
    found = with_gradients(functools.partial(flash_attention, scale=SCALE), qkv, mask_spec)
    assert_same(found, expected)
    assert bool(splash_may(mask_spec)) == (name == "causal")
    if name != "causal":
        misled = quick_jit(functools.partial(kernel, scale=SCALE))(*qkv, mask_spec)
        assert np.abs(misled - expected["y"]).max() > 0.1


def test_cudnn_needs_unpacked_rows_without_left_padding():
    """Its kernel only knows where a row ends."""
    full_row, ended, begun = packed([T]), packed([200]), [np.roll(x, 100) for x in packed([200])]
    fits = lambda *rows: bool(cudnn_may(mask_spec_of(sequence_info(*rows), True)))  # noqa: E731
    assert fits(full_row) and fits(full_row, ended)
    assert not fits(full_row, packed([100, 200])), "packed"
    assert not fits(full_row, begun), "padding on the left"
    assert not fits(full_row, packed([0])), "nothing at all"
    assert not fits((full_row[0][::-1], full_row[1])), "positions reversed"
    source = MaskSpec(sequence_info(full_row), sequence_info(packed([9], 16)), False)
    assert cudnn_may(source)
    assert not cudnn_may(dataclasses.replace(source, keys=sequence_info((np.arange(16), [2] * 16))))


def lowered_for(platform, mask_spec, qkv, **options):
    def total(*qkv):
        return flash_attention(*qkv, mask_spec, **options).astype(jnp.float32).sum()

    traced = jax.jit(jax.grad(total, argnums=(0, 1, 2))).trace(*qkv)
    return traced.lower(lowering_platforms=(platform,)).as_text()


def test_the_platform_is_that_for_which_the_program_is_lowered():
    mask_spec, qkv = MASK_SPECS["causal"], arrays(dtype=jnp.bfloat16)
    on_tpu = lowered_for("tpu", mask_spec, qkv)
    assert on_tpu.count("tpu_custom_call") == 3, "forward, and backward to queries and to keys"
    assert "stablehlo.case" in on_tpu, "the data may turn out otherwise"
    assert "tpu_custom_call" not in lowered_for("cpu", mask_spec, qkv)


def test_on_a_tpu_no_check_is_left_where_no_positions_are_given(monkeypatch):
    """Without the model's knowledge, the check would be in the program, and its branch as well."""
    monkeypatch.setattr(flash, "mesh_platform", lambda: "tpu")
    model = Transformer(tiny_config(family="decoder", attention="flash", max_length=T))
    inputs_bt = jnp.ones((1, T), jnp.int32)
    params = jax.eval_shape(
        functools.partial(model.init, method="decode"), jax.random.key(0), inputs_bt
    )

    def is_checked(**given):
        def hidden(params):
            return model.apply(params, inputs_bt, **given, method="decode")[0]

        lowered = jax.jit(hidden).trace(params).lower(lowering_platforms=("tpu",)).as_text()
        assert "tpu_custom_call" in lowered
        return "stablehlo.case" in lowered

    assert not is_checked()
    assert not is_checked(segments_bt=inputs_bt)
    assert is_checked(positions_bt=inputs_bt)


def test_what_is_known_while_tracing_is_not_checked():
    column = SequenceInfo(jnp.arange(T)[None], jnp.ones((1, T), jnp.int32))
    mask_spec = mask_spec_of(column, True)
    known = dataclasses.replace(mask_spec, positions_are_columns=True)
    assert splash_may(known) is True
    assert splash_may(mask_spec) is not True and bool(splash_may(mask_spec))


PREFIX = dataclasses.replace(PACKED, prefix_bt=jnp.ones_like(PACKED.segments_bt))
FLAGGED = dataclasses.replace(PACKED, global_bt=PACKED.positions_bt == 0)
NOT_FUSED = {
    "dropout": (MASK_SPECS["causal"], dict(dropout_rate=0.1, dropout_key=jax.random.key(0))),
    "bias": (MASK_SPECS["causal"], dict(bias=ScoreBias("alibi", jnp.asarray(alibi_slopes(H))))),
    "prefix": (mask_spec_of(PREFIX, True), {}),
    "gaps": (mask_spec_of(PACKED, False, Locality(window=9, dilation=2)), {}),
    "chunks": (mask_spec_of(PACKED, False, Locality(chunk=9)), {}),
    "global tokens": (mask_spec_of(FLAGGED, False, Locality(window=9)), {}),
}


@pytest.mark.parametrize("feature", NOT_FUSED)
def test_unsupported_features_do_not_use_fused_kernels(feature, monkeypatch):
    mask_spec, options = NOT_FUSED[feature]
    qkv = arrays(dtype=jnp.bfloat16)
    assert "tpu_custom_call" not in lowered_for("tpu", mask_spec, qkv, **options)
    if not options:
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        assert cudnn_can(*qkv, MASK_SPECS["causal"]) and not cudnn_can(*qkv, mask_spec)


def test_lengths_that_splash_does_not_take():
    short = mask_spec_of(sequence_info(packed([100], 100)), True)
    assert not splash_can(*arrays(100, queries=100), short)


def test_a_bias_that_needs_all_distances_is_refused():
    bias = ScoreBias("transformer_xl", jnp.zeros((T, H, K)), shift_hk=jnp.zeros((H, K)))
    with pytest.raises(ValueError, match="transformer_xl"):
        flash_attention(*arrays(), MASK_SPECS["causal"], bias=bias)


@pytest.mark.parametrize("position", ["rope", "alibi", "t5_bias"])
def test_a_model_computes_the_same_with_flash_as_with_dot(position):
    """In encoder, decoder and cross-attention, packed and padded."""
    rng = np.random.default_rng(0)
    source, target = (jnp.asarray(rng.integers(1, 17, (2, n))) for n in (9, 7))
    segments = [
        jnp.asarray(rows)
        for rows in (
            [[1] * 4 + [2] * 5, [1] * 6 + [0] * 3],
            [[1] * 3 + [2] * 4, [1] * 5 + [0] * 2],
        )
    ]

    def hidden(kind, params=None):
        config = tiny_config(
            family="encoder_decoder", position=position, attention=kind, kv_heads=2
        )
        model = Transformer(config)

        def both(model, source, target):
            source_bsd = model.encode(source, segments_bt=segments[0])
            return model.decode(
                target, segments_bt=segments[1],
                source_bsd=source_bsd, source_segments_bs=segments[0],
            )[0]  # fmt: skip

        if params is None:
            params = random_params(model, source, target, method=both)
        run = quick_jit(lambda params: model.apply({"params": params}, source, target, method=both))
        return run(params), params

    expected, params = hidden("dot")
    np.testing.assert_allclose(hidden("flash", params)[0], expected, atol=1e-5)


# The number of devices is fixed when jax starts: what follows up to `measure` runs in a process of
# its own, this file run as a script.

DEVICES = 8
T_MESH = 24
MESHES = {
    "rows over 8": (8, 1, 1, 1),
    "rows over 2 x 2, queries over 2": (2, 2, 2, 1),
    "rows, queries and heads over 2": (2, 1, 2, 2),
    "heads over 4, of which two share keys": (1, 2, 1, 4),
    "rows over 4, which does not divide them; heads over 2": (4, 1, 1, 2),
}


def deviation(shape, mask_spec, rows):
    """How far a mesh is from one device, in the output and the gradients of q, k, v and table."""
    qkv = arrays(T_MESH, batch=rows, queries=T_MESH, heads=4, groups=2)
    table = jnp.asarray(np.random.default_rng(4).normal(size=(8, 4)), jnp.float32)
    probe = np.random.default_rng(1).normal(size=qkv[0].shape).astype(np.float32)

    def probed(qkv, table, mask_spec):
        bias = ScoreBias("t5_bias", table, bidirectional=False, max_distance=9)
        y = flash_attention(*qkv, mask_spec, bias=bias, scale=SCALE)
        return (y * probe).sum(), y

    run = jax.jit(jax.grad(probed, argnums=(0, 1), has_aux=True))
    expected = run(qkv, table, mask_spec)
    mesh = jax.make_mesh(shape, MESH_AXES, axis_types=(AxisType.Auto,) * 4)
    with jax.set_mesh(mesh):
        assert "shard_map" in str(jax.make_jaxpr(run)(qkv, table, mask_spec))
        found = run(qkv, table, mask_spec)
    apart = jax.tree.map(
        lambda a, b: float(np.abs(np.asarray(a) - np.asarray(b)).max()), found, expected
    )
    return float(np.max(jax.tree.leaves(apart)))


def measure():
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_disable_most_optimizations", True)
    cut = [packed([n, 20 - n], T_MESH) for n in range(2, 18, 2)]
    one_for_all = mask_spec_of(sequence_info(packed([T_MESH], T_MESH)), True)
    found = {}
    for name, shape in MESHES.items():
        rows = 6 if "does not divide" in name else 8
        found[name] = deviation(shape, mask_spec_of(sequence_info(*cut[:rows]), True), rows)
    shape = MESHES["rows, queries and heads over 2"]
    found["positions of one row for all"] = deviation(shape, one_for_all, 8)
    return found


def masks_on_a_mesh():
    """Which weights are dropped on each of eight devices: rows of equal queries and keys."""
    mask_spec = mask_spec_of(sequence_info((np.arange(T_MESH), np.ones(T_MESH))), False)
    q = jnp.zeros((2, T_MESH, 2, T_MESH))
    eye = jnp.broadcast_to(jnp.eye(T_MESH)[None, :, None], q.shape)
    with jax.set_mesh(jax.make_mesh((2, 1, 2, 2), MESH_AXES, axis_types=(AxisType.Auto,) * 4)):
        options = dict(dropout_rate=0.5, dropout_key=jax.random.key(0))
        y_bthk = jax.jit(lambda q, eye: flash_attention(q, q, eye, mask_spec, **options))(q, eye)
    is_kept = np.asarray(y_bthk) > 0
    parts = [
        is_kept[b, n : n + T_MESH // 2, h].tobytes()
        for b in range(2) for n in (0, T_MESH // 2) for h in range(2)
    ]  # fmt: skip
    return {"different": len(set(parts)), "kept": float(is_kept.mean())}


def test_a_mesh_computes_what_one_device_computes():
    found, _ = measured_on(DEVICES, "tests.model.attention.test_flash")
    for name, apart in found["deviation"].items():
        assert apart < 1e-5, name
    assert found["dropout"]["different"] == DEVICES, "no two devices drop alike"
    assert abs(found["dropout"]["kept"] - 0.5) < 0.04  # 2,304 draws


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("libtpu"), reason="needs pip install libtpu")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("causal", [True, False])
def test_the_real_tpu_compiler_takes_the_kernel(causal):
    """No TPU is needed, but its compiler: pip install libtpu, and then, where there is no TPU,

    JAX_PLATFORMS=cpu TPU_SKIP_MDS_QUERY=1 pytest -s -m slow tests/model/attention/test_flash.py

    Forward and backward at 8 heads x 2,048: two rows on one chip, and as much for each of four
    chips that share rows and heads. (Half of it leaves plain attention's scores in on-chip memory,
    which the compiler does not count as temporary.)
    """
    chips = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices

    def compiled(attention, rows, shape):
        devices = np.array(chips[: np.prod(shape)]).reshape(shape)
        mesh = Mesh(devices, MESH_AXES, axis_types=(AxisType.Auto,) * 4)

        def given(*shape, dtype, spec):
            sharding = NamedSharding(mesh, PartitionSpec(*spec))
            return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

        qkv = [given(rows, 2048, 8, 64, dtype=jnp.bfloat16, spec=("data", None, "tensor"))] * 3
        row = given(rows, 2048, dtype=jnp.int32, spec=("data",))

        def total(qkv, info):
            y_bthk = attention(*qkv, mask_spec_of(info, causal))
            return y_bthk.astype(jnp.float32).sum()

        with jax.set_mesh(mesh):
            return jax.jit(jax.grad(total)).lower(qkv, SequenceInfo(row, row)).compile()

    temporary = {}
    for chips_used, rows, shape in ((1, 2, (1, 1, 1, 1)), (4, 8, (2, 1, 1, 2))):
        for attention in (flash_attention, plain):
            program = compiled(attention, rows, shape)
            kernels = program.as_text().count('custom_call_target="tpu_custom_call"')
            assert kernels == (3 if attention is flash_attention else 0)
            name = f"{attention.__name__} on {chips_used}"
            temporary[name] = program.memory_analysis().temp_size_in_bytes
            print(f"{name}: {temporary[name] / 1e6:.2f} MB of temporary memory")
        here = [temporary[f"{name} on {chips_used}"] for name in ("flash_attention", "plain")]
        assert here[0] < here[1] / 10


if __name__ == "__main__":
    assert jax.device_count() == DEVICES
    print(json.dumps({"deviation": measure(), "dropout": masks_on_a_mesh()}))
