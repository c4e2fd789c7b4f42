"""Plans a run before it starts: python plan.py --config=configs/x.py[:arch] --device=v5e:4x4

Compiles the real training step for devices that this machine need not have. Reports whether it fits
into memory, its FLOPs, memory traffic and communication, and a lower bound of its time. It reads no
data and runs nothing. --config.a.b=v changes the config as for train.py.
"""

import dataclasses
import json
import sys
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from jax.sharding import Mesh

from experiment import command_line, sections
from experiment.schema import ConfigError
from experiment.sections import Experiment
from inference.decoding import Ends
from inference.generation import Generator, Prompts
from input_pipeline.batch_shapes import row_outline
from input_pipeline.config import source_table
from input_pipeline.tokenizers.tokenizer import ByteTokenizer
from model.config import TransformerConfig
from planning import plan_report, search, targets
from planning.compiled import Compiled, TooLargeError, catch_out_of_memory, measure
from training.config import MeshConfig
from training.finetune import as_tree, by_name, rate_scales, select_trainable
from training.flops import row_flops
from training.infer_sizes import image_sizes, signal_sizes
from training.mesh import batch_sharding, check_batch, make_mesh
from training.model_for_task import make_model
from training.pruning import make_pruner
from training.schedules import learning_rate
from training.step import make_train_step
from training.throughput import unit_of
from training.train_state import (
    FrozenInputs,
    TrainSpec,
    TrainState,
    abstract_params,
    abstract_state,
)

# Defaults for sizes that depend on the data, if the config does not set them.
CLASSES, IMAGE_CLASSES = 2, 1000
IMAGE = (224, 3)  # rows, channels


@dataclasses.dataclass(frozen=True)
class Job:
    """An experiment whose sizes are all set."""

    experiment: Experiment
    model: TransformerConfig  # resolved: all sizes are set
    row: Mapping[str, np.ndarray]  # one row of a batch
    assumed: tuple[str, ...]  # sizes that were assumed, for the report

    def with_batch(self, rows: int) -> "Job":
        """Returns the job with another batch size."""
        data = dataclasses.replace(self.experiment.data, batch_size=rows)
        return dataclasses.replace(self, experiment=dataclasses.replace(self.experiment, data=data))

    def batch(self, mesh: Mesh) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns the shapes and shardings of a batch on the mesh."""
        rows, at = self.experiment.data.batch_size, batch_sharding(mesh)
        return {
            name: jax.ShapeDtypeStruct((rows, *x.shape), x.dtype, sharding=at)
            for name, x in self.row.items()
        }


def job_of(experiment: Experiment) -> Job:
    """Returns the job of a config. Sizes that depend on the data are the config's or assumed."""
    data, task, model = experiment.data, experiment.task, experiment.model
    if task.teacher:
        raise ConfigError("plan.py cannot plan distillation; set task.teacher=''")
    if task.objective_spec.needs_reference:
        raise ConfigError(
            f"plan.py cannot plan task.objective={task.objective}, which has a second model; plan "
            "task.objective=causal_lm"
        )
    objective = task.objective_spec
    if not objective.kinds:
        raise ConfigError(
            f"task.objective={task.objective} trains nothing, so there is nothing to plan"
        )
    sizes, assumed, image_shape = {}, [], (1, 1, 1)
    if objective.takes_signals:
        outline = source_table()[data.source].outline(data)
        sizes |= signal_sizes(model, outline["signal"].shape)
        sizes["horizon"] = len(outline.get("future", ()))
    elif model.input == "patches":
        size = data.image_size or model.image_size or IMAGE[0]
        channels = model.image_channels or IMAGE[1]
        image_shape = (size, size, channels)
        if not (data.image_size or model.image_size) or not model.image_channels:
            assumed.append(f"images of {size}x{size}x{channels}")
        sizes |= image_sizes(model, image_shape)
    elif not model.vocab_size:
        sizes["vocab_size"] = _vocabulary(data)
    if objective.head in ("classifier", "token_classifier") and not model.num_classes:
        sizes["num_classes"] = IMAGE_CLASSES if objective.takes_patches else CLASSES
        assumed.append(f"model.num_classes={sizes['num_classes']}")
    row = row_outline(
        data, objective=task.objective, masking=experiment.masking, image_shape=image_shape
    )
    return Job(experiment, model.resolve(**sizes), row, tuple(assumed))


def _vocabulary(data) -> int:
    if data.tokenizer == "byte":
        return ByteTokenizer.vocab_size
    if data.tokenizer in ("bpe", "wordpiece", "unigram", "item"):
        return data.tokenizer_size
    raise ConfigError(
        f"plan.py does not read data.tokenizer={data.tokenizer}; set model.vocab_size to the "
        "number of its ids"
    )


def lower_step(job: Job, mesh: Mesh) -> tuple[jax.stages.Lowered, TrainState, dict]:
    """Returns train.py's lowered step, the abstract state, and all abstract parameters.

    The parameters include the frozen base parameters of adapters.
    """
    experiment, task, model = job.experiment, job.experiment.task, job.model
    check_batch(
        "data.batch_size", experiment.data.batch_size, mesh, experiment.optimizer.accumulate
    )
    network = make_model(model, task)
    schedule = learning_rate(experiment.optimizer, experiment.run.steps, model.base_width)
    scales = rate_scales(experiment.finetune, model)
    batch = job.batch(mesh)
    # Outside of the mesh context: optax makes small arrays here, which need real devices.
    model_params = abstract_params(network, task, batch, mesh)
    tuning = select_trainable(experiment.finetune, model_params, ())
    base = as_tree({name: by_name(model_params)[name] for name in tuning.base})
    spec = TrainSpec(
        network, task, experiment.optimizer, schedule, scales, tuning,
        failure=experiment.failure, seed=experiment.run.seed,
        pruner=make_pruner(
            experiment.prune, experiment.run.steps, tuning.split(model_params)[0]
        ),
    )  # fmt: skip
    abstract, _ = abstract_state(spec, batch, mesh)
    with jax.set_mesh(mesh):
        step = make_train_step(spec, abstract)
        return step.lower(abstract, batch, FrozenInputs(base, {})), abstract, model_params


def compile_generation(job: Job, target: targets.Target, mesh: Mesh) -> tuple[Compiled, Compiled]:
    """Compiles the two programs of generation: prefill, and one decoding step.

    A decoder reads half of a row and generates the other half. An encoder-decoder generates a full
    row.
    """
    data, task, model = job.experiment.data, job.experiment.task, job.model
    if task.objective_spec.head != "language_model":
        raise ConfigError(
            "--generate needs a model that generates text, which task.objective="
            f"{task.objective} does not train; leave it out"
        )
    reads = 1 if model.has_encoder else max(1, data.length // 2)
    rows = data.batch_size
    network = make_model(model, task)
    with jax.set_mesh(mesh):  # sets the platform to compile for
        generator = Generator(
            network,
            model,
            Ends(eos_id=0, pad_id=0),
            steps=max(1, data.length - reads),
            rows=rows,
            bidirectional_prompt=task.objective_spec.has_prefix,
        )

    def of_rows(*shape):
        return jax.ShapeDtypeStruct((rows, *shape), jnp.int32, sharding=batch_sharding(mesh))

    source = of_rows(data.encoder_length) if model.has_encoder else None
    prompts = Prompts(of_rows(reads), of_rows(), source, source)
    params = abstract_params(network, task, job.batch(mesh), mesh)
    try:
        with jax.set_mesh(mesh), catch_out_of_memory():
            programs = generator.compiled(params, prompts)
            return tuple(measure(program, target.threads) for program in programs)
    except TooLargeError:
        raise ConfigError(
            f"--generate: {rows} rows do not fit into {target.name}; lower data.batch_size"
        ) from None


def plan(job: Job, target: targets.Target, mesh_config: MeshConfig) -> dict[str, Any]:
    """Returns the plan of a job on a mesh of the target's devices, as plain data."""
    mesh = mesh_of(mesh_config, target)
    lowered, abstract, model_params = lower_step(job, mesh)
    found = plan_report.of_job(
        device=target.name,
        mesh=dict(mesh.shape),
        batch_size=job.experiment.data.batch_size,
        assumed=job.assumed,
    )
    found |= plan_report.of_parameters(model_params)
    try:
        with catch_out_of_memory():
            compiled = measure(lowered.compile(), target.threads)
    except TooLargeError as error:
        return found | plan_report.too_large(abstract, error, target.chip)
    rows, task = job.experiment.data.batch_size, job.experiment.task
    flops = rows * row_flops(job.model, task, job.batch(mesh))
    found |= plan_report.of_memory(abstract, compiled.memory, target.chip)
    found |= plan_report.of_cost(compiled, flops, mesh.size)
    if target.chip is not None:
        found |= plan_report.of_time(
            compiled.cost, flops, target, in_a_step(job), job.experiment.run.steps
        )
    return found


def mesh_of(config: MeshConfig, target: targets.Target) -> Mesh:
    """Returns the mesh of a config on the target's devices."""
    try:
        return make_mesh(config, target.devices)
    except (NotImplementedError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        asked = ", ".join(f"{key}={size}" for key, size in dataclasses.asdict(config).items())
        raise ConfigError(f"a mesh of {asked} does not fit {target.name}: {error}") from None


def in_a_step(job: Job) -> dict[str, int]:
    """Returns the number of tokens (source and target, no padding) or examples in a step."""
    rows = job.experiment.data.batch_size
    if job.model.input == "patches":
        return {unit_of(job.model): rows}
    names = [name for name in ("inputs", "encoder_inputs") if name in job.row]
    return {"tokens": rows * sum(len(job.row[name]) for name in names)}


def largest_batch(
    job: Job, target: targets.Target, mesh_config: MeshConfig
) -> tuple[Job, dict[str, Any]]:
    """Returns the job with the largest batch that fits, and its plan."""
    if target.chip is None:
        raise ConfigError("--search_batch needs a device whose memory is known, such as a100:8")
    mesh = mesh_of(mesh_config, target)
    unit = mesh.shape["data"] * mesh.shape["fsdp"] * job.experiment.optimizer.accumulate
    plans = {}

    def fits(units: int) -> bool:
        plans[units] = plan(job.with_batch(units * unit), target, mesh_config)
        found = plans[units]["memory"]["fits"]
        note(f"a batch of {units * unit}: {'fits' if found else 'does not fit'}")
        return found

    units = search.largest(fits, max(1, job.experiment.data.batch_size // unit))
    if not units:
        raise ConfigError(
            f"not even a batch of {unit} fits {target.name}; shard more (mesh.fsdp, mesh.tensor), "
            "set model.remat=full, or take more devices"
        )
    return job.with_batch(units * unit), plans[units]


def every_mesh(job: Job, target: targets.Target, sequence: int) -> list[dict[str, Any]]:
    """Returns the plans of all meshes that divide the batch, best first (`plan_report.rank`)."""
    found = []
    for sizes in search.meshes(len(target.devices), sequence):
        name = plan_report.mesh_name(sizes)
        try:
            found.append(plan(job, target, MeshConfig(**sizes)))
        except ConfigError as error:
            note(f"{name}: {error}")
            continue
        note(f"{name}: {'fits' if found[-1]['memory']['fits'] else 'does not fit'}")
    return sorted(found, key=plan_report.rank)


def note(line: str) -> None:
    """Prints a line of progress to stderr."""
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    experiment = sections.from_mapping(CONFIG.value.to_dict())
    if not DEVICE.value:
        raise ConfigError("--device is missing; name one, such as v5e:4x4, a100:8 or cpu:8")
    job, target = job_of(experiment), targets.find(DEVICE.value)
    if SEARCH_MESH.value:
        plans = every_mesh(job, target, max(1, experiment.mesh.sequence))
        print(json.dumps(plans) if JSON.value else plan_report.table(plans))
        return
    if SEARCH_BATCH.value:
        job, found = largest_batch(job, target, experiment.mesh)
    else:
        found = plan(job, target, experiment.mesh)
    if GENERATE.value:
        programs = compile_generation(job, target, mesh_of(experiment.mesh, target))
        found |= plan_report.of_generation(*programs, target, job.experiment.data.batch_size)
    print(json.dumps(found) if JSON.value else plan_report.text(found))


if __name__ == "__main__":
    CONFIG = command_line.config_flag("configs/dates.py")
    DEVICE = flags.DEFINE_string("device", "", "Devices: v5e:4x4, v5p:4x4x4, a100:8, cpu:8, ...")
    JSON = flags.DEFINE_bool("json", False, "Print JSON instead of text.")
    GENERATE = flags.DEFINE_bool("generate", False, "Also plan the generation of text.")
    SEARCH_BATCH = flags.DEFINE_bool("search_batch", False, "Plan the largest batch that fits.")
    SEARCH_MESH = flags.DEFINE_bool("search_mesh", False, "Compare all meshes, best first.")
    command_line.launch(main)
