"""README.md of an exported model: where its weights come from, its config, scores and use."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from checkpointing.recorded_run import RunRecord, read_run
from checkpointing.run_summary import number
from pretrained import model_files, sentence
from storage import hub
from storage.mirror import open_run_directory

IMPORTED_FROM = "imported_from.json"  # in a workdir: the published model that it comes from
# Keys of our config in the card, besides the sizes of the model.
SHOWN = (
    "task.objective", "data.source", "data.name", "data.length", "data.batch_size",
    "optimizer.name", "optimizer.learning_rate", "optimizer.schedule", "optimizer.weight_decay",
    "seed",
)  # fmt: skip
SIZES = (
    "family", "width", "heads", "encoder_layers", "decoder_layers", "feed_forward", "max_length",
    "vocab_size", "param_dtype",
)  # fmt: skip


def write(directory: Path, workdir: str | Path, step: int, parameters: int, repo: str) -> None:
    """Writes the card of the export in `directory`, made from a step of a run.

    `repo` is the name of the model on the hub.
    """
    run, workdir = read_run(workdir), open_run_directory("--from", workdir)
    published = model_files.read_json(directory, model_files.CONFIG)
    name = repo.partition("/")[2]
    parts = [
        _front_matter(run, workdir),
        f"# {name}",
        f"`{published['architectures'][0]}`, {parameters:,} parameters.",
        "## Where the weights come from",
        _origin(run, workdir, step),
        "## Config",
        _table(("key", "value"), _config_rows(run)),
        "## Scores",
        _scores(run, step),
        "## How to load it",
        _use(directory, published["architectures"][0], repo),
    ]
    (directory / "README.md").write_text("\n\n".join(filter(None, parts)) + "\n", encoding="utf-8")


def origin_of(workdir: Path) -> str:
    """The published model that a run's parameters come from, or ""."""
    imported = workdir / IMPORTED_FROM
    if imported.is_file():
        return str(json.loads(imported.read_text()).get("source", ""))
    config = workdir / model_files.CONFIG
    text = json.loads(config.read_text()).get("init_from", "") if config.is_file() else ""
    if not text or hub.is_hub_address(text):
        return text
    return origin_of(Path(text.rpartition(":")[0] if text.rpartition(":")[2].isdecimal() else text))


def _front_matter(run: RunRecord, workdir: Path) -> str:
    lines = ["---", "library_name: transformers"]
    origin = origin_of(workdir)
    if hub.is_hub_address(origin):
        lines.append(f"base_model: {hub.parse('init_from', origin).repo}")
    return "\n".join([*lines, "---"])


def _origin(run: RunRecord, workdir: Path, step: int) -> str:
    origin = origin_of(workdir)
    if step == 0:
        return f"Imported from `{origin}` and exported again, without training."
    trained = f"Step {step:,} of the run `{run.name}`"
    if run.planned_steps:
        trained += f", which was planned for {run.planned_steps:,} steps"
    begun = run.config.get("init_from")
    if origin:
        start = f"It started from `{origin}`."
    elif begun:
        start = f"It started from another run, `{Path(begun).name}`."
    else:
        start = "It was trained from scratch."
    versions = run.environment.get("packages", {})
    jax = f" with jax {versions['jax']}" if "jax" in versions else ""
    return f"{trained}{jax}. {start}"


def _config_rows(run: RunRecord) -> list[tuple[str, str]]:
    sizes: Mapping[str, Any] = run.model.get("model", {})
    rows = [(f"model.{key}", sizes.get(key)) for key in SIZES]
    rows += [(key, _value(run.config, key)) for key in SHOWN]
    return [(f"`{key}`", str(value)) for key, value in rows if value not in (None, "", 0, {}, ())]


def _value(config: Mapping[str, Any], key: str) -> Any:
    for part in key.split("."):
        config = config.get(part) if isinstance(config, Mapping) else None
    return config


def _scores(run: RunRecord, step: int) -> str:
    """The scores that were recorded at this step, while training or by evaluate.py."""
    rows = {}
    for name, series in run.metrics.items():
        at = np.flatnonzero(series.steps == step)
        if name.startswith("eval/") and len(at):
            rows[name] = float(series.values[at[-1]])
    for record in run.evaluations:
        is_of_this_model = list(record.get("averaged_steps", [step])) == [step]
        if record.get("step") == step and is_of_this_model and not record.get("overrides"):
            scores = {name: value for name, value in record.items() if name.startswith("eval/")}
            rows |= {n: float(v) for n, v in scores.items() if isinstance(v, int | float)}
    if not rows:
        return f"The run has recorded no scores of step {step}."
    return _table(("metric", "value"), [(f"`{name}`", number(rows[name])) for name in sorted(rows)])


def _table(heading: tuple[str, str], rows: list[tuple[str, str]]) -> str:
    lines = [heading, ("---", "---"), *rows]
    return "\n".join(f"| {key} | {value} |" for key, value in lines)


def _use(directory: Path, architecture: str, repo: str) -> str:
    if (directory / sentence.MODULES).exists():
        code = (
            "from sentence_transformers import SentenceTransformer\n\n"
            f'model = SentenceTransformer("{repo}")'
        )
    else:
        has_tokenizer = (directory / "tokenizer.json").exists()
        names = f"AutoTokenizer, {architecture}" if has_tokenizer else architecture
        code = (
            f'from transformers import {names}\n\nmodel = {architecture}.from_pretrained("{repo}")'
        )
        if has_tokenizer:
            code += f'\ntokenizer = AutoTokenizer.from_pretrained("{repo}")'
    return (
        f"```python\n{code}\n```\n\nOr in the repository that made it:\n\n"
        f"```bash\npython convert.py --from=hf://{repo} --to=WORKDIR\n```"
    )
