"""Plans against measurements: jobs on eight simulated devices, and the memory that they take.

The number of devices is fixed when jax starts, so they need a process of their own: this file run
as a script, which prints plans and measurements as JSON. The tests compare the two.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import plan
from benchmarks import plans
from configs import dates, digits, pydoc
from experiment import sections
from experiment.schema import ConfigError
from input_pipeline.tokenizers.tokenizer import ByteTokenizer
from planning import targets

ROOT = Path(__file__).resolve().parent.parent
DEVICES = 8
QUICKLY = "--xla_backend_optimization_level=0"  # of LLVM, which no plan looks at
ADAMW = {"optimizer.name": "adamw"}
LAYERS, LENGTH, WIDTH, INNER = 2, 128, 64, 256
TEXT = {
    "data.batch_size": 16,
    "data.length": LENGTH,
    "model.decoder_layers": LAYERS,
    "model.width": WIDTH,
    "model.heads": 4,
    "model.feed_forward": INNER,
}
JOBS = {
    "decoder, fsdp 8": (pydoc, TEXT | ADAMW | {"mesh.data": 1, "mesh.fsdp": 8}),
    "decoder, data 8, all recomputed": (pydoc, TEXT | ADAMW | {"model.remat": "full"}),
    "encoder-decoder, fsdp 4 x tensor 2": (
        dates,
        ADAMW
        | {"data.batch_size": 16, "mesh.data": 1, "mesh.fsdp": 4, "mesh.tensor": 2}
        | {"model.encoder_layers": 1, "model.decoder_layers": 1},
    ),
    "ViT, data 8": (
        digits,
        ADAMW | {"data.batch_size": 64, "model.image_size": 8, "model.encoder_layers": 1},
    ),
}
REFUSED = {
    "does not fit 8 devices": {"mesh.tensor": 3},
    "choose a multiple of 8": {"data.batch_size": 12},
}


def job(module, changes) -> plan.Job:
    config = module.get_config().to_dict()
    for key, value in changes.items():
        section, name = key.split(".")
        config[section][name] = value
    if module is digits:
        config["model"]["image_channels"] = 1
    return plan.job_of(sections.from_mapping(config))


def real(shape: jax.ShapeDtypeStruct) -> jax.Array:
    return jax.device_put(np.zeros(shape.shape, shape.dtype), shape.sharding)


def held(tree) -> list[int]:
    """The bytes that each device really has of arrays."""
    sizes = [0] * jax.device_count()
    for leaf in jax.tree.leaves(tree):
        for shard in leaf.addressable_shards:
            sizes[shard.device.id] += shard.data.nbytes
    return sizes


def measure() -> dict:
    found = {}
    target = targets.find(f"cpu:{DEVICES}")
    for name, (module, changes) in JOBS.items():
        planned = job(module, changes)
        mesh_config = planned.experiment.mesh
        mesh = plan.mesh_of(mesh_config, target)
        _, abstract, _ = plan.lower_step(planned, mesh)
        batch = planned.batch(mesh)
        found[name] = {
            "plan": plan.plan(planned, target, mesh_config),
            "params": held(jax.tree.map(real, abstract.params)),
            "optimizer": held(
                jax.tree.map(real, (abstract.step, abstract.anomalies, abstract.opt_state))
            ),
            "batch": held(jax.tree.map(real, batch)),
        }
    planned = job(*JOBS["decoder, fsdp 8"])
    mesh = plan.mesh_of(planned.experiment.mesh, target)
    reads, writes = plan.compile_generation(planned, target, mesh)
    found["writing"] = {"reads": reads.cost.flops, "writes": writes.cost.flops}
    for message, changes in REFUSED.items():
        planned = job(dates, changes)
        with pytest.raises(ConfigError) as error:
            plan.plan(planned, target, planned.experiment.mesh)
        found[message] = str(error.value)
    return found


@pytest.fixture(scope="module")
def measured():
    done = subprocess.run(
        [sys.executable, "-m", "tests.test_plan"],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": QUICKLY},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", JOBS)
def test_the_state_takes_the_planned_memory(measured, name):
    observed, memory = measured[name], measured[name]["plan"]["memory"]
    assert observed["params"] == [memory["parameters"]] * DEVICES
    assert observed["optimizer"] == [memory["optimizer"]] * DEVICES
    # What is neither, is the batch; random keys and such add a few bytes.
    assert memory["batch"] == pytest.approx(observed["batch"][0], rel=0.1, abs=64)


def recomputed() -> float:
    """The extra FLOPs of a step that recomputes every block.

    All but its last product: no gradient asks for what that gives, only for what it was given.
    """
    last = 2 * LENGTH * WIDTH * INNER
    block = 2 * LENGTH * (4 * WIDTH**2 + 2 * LENGTH * WIDTH) + 2 * last
    forward = LAYERS * block + 2 * LENGTH * WIDTH * ByteTokenizer.vocab_size
    return 1 + LAYERS * (block - last) / (3 * forward)


def masked(layers: int, length: int, width: int) -> float:
    """Of a causal step, the products that `attention=dot` makes and then masks, for each row."""
    return 3 * layers * 2 * 2 * width * length * (length - 1) / 2


@pytest.mark.parametrize(
    ("name", "ratio", "masked"),
    [
        ("decoder, fsdp 8", 1.0, masked(LAYERS, LENGTH, WIDTH)),
        ("decoder, data 8, all recomputed", recomputed(), masked(LAYERS, LENGTH, WIDTH)),
        ("encoder-decoder, fsdp 4 x tensor 2", 1.0, masked(1, 12, 128)),
        ("ViT, data 8", 1.0, 0.0),
    ],
)
def test_the_compiled_step_does_the_models_arithmetic(measured, name, ratio, masked):
    found = measured[name]["plan"]["flops"]
    made = found["model"] + JOBS[name][1]["data.batch_size"] * masked
    # A classifier's few answers may be computed otherwise than by a product.
    assert found["compiled"] == pytest.approx(ratio * made, rel=2e-3)
    assert found["ratio"] == found["compiled"] / found["model"]


def test_a_decode_step_costs_one_token_per_row(measured):
    """A decode step attends to all cache slots; the prompt is half a row, with one prediction."""
    rows = TEXT["data.batch_size"] / DEVICES
    block = 2 * (4 * WIDTH**2 + 2 * LENGTH * WIDTH + 2 * WIDTH * INNER)
    answer = 2 * WIDTH * ByteTokenizer.vocab_size
    assert measured["writing"]["writes"] == rows * (LAYERS * block + answer)
    assert measured["writing"]["reads"] == rows * (LENGTH // 2 * LAYERS * block + answer)


def test_data_parallelism_sums_every_gradient_once(measured):
    found = measured["decoder, data 8, all recomputed"]["plan"]
    parameters = found["parameters"]
    sent = sum(each["bytes"] for each in found["collectives"] if each["kind"] == "all-reduce")
    summed = sent / (2 * 7 / 8 * 4)
    # The table's gradient has two parts, of what goes in and of what comes out: one sum or two.
    table = parameters["parts"]["backbone/token_embedding"]
    assert parameters["total"] <= summed < 1.01 * (parameters["total"] + table)


def test_sharded_parameters_are_gathered(measured):
    kinds = {each["kind"] for each in measured["decoder, fsdp 8"]["plan"]["collectives"]}
    assert "all-gather" in kinds


def command(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "plan.py", *arguments], cwd=ROOT, capture_output=True, text=True
    )


@pytest.mark.parametrize("message", REFUSED)
def test_batches_that_devices_cannot_share_are_refused(measured, message):
    assert message in measured[message]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--device is missing; name one, such as v5e:4x4, a100:8 or cpu:8"),
        (["--device=cpu:2", "--search_batch"], "--search_batch needs a device whose memory is"),
    ],
)
def test_invalid_plans_are_refused_in_one_line(arguments, message):
    done = command("--config=configs/dates.py", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "package"), [("v5e:2x4", "libtpu"), ("a100:8", "jax_plugins.xla_cuda12")]
)
def test_bert_base_on_devices_that_are_not_here(device, package):
    if not importlib.util.find_spec(package.partition(".")[0]):
        pytest.skip(f"{package} is not installed")
    done = command(
        "--config=configs/wikipedia_bert.py",
        f"--device={device}",
        "--config.data.batch_size=64",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["memory"]["fits"]
    assert found["flops"]["ratio"] == pytest.approx(1, rel=0.02)
    assert found["time"]["mfu"] < 1
    assert not found["uncounted"]


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("libtpu"), reason="needs the extra plan-tpu")
@pytest.mark.parametrize(("name", "gib"), [("134M none", 6.59), ("134M dots", 5.45)])
def test_small_jobs_take_the_memory_of_the_table_in_the_docs(name, gib):
    """docs/performance.md; more is a mistake, less is an improvement to write down."""
    found = plans.planned(plans.TABLE[name])
    assert found["memory"]["total"] / 2**30 == pytest.approx(gib, rel=0.03)
    assert not found["uncounted"]


if __name__ == "__main__":
    print(json.dumps(measure()))
