"""Makes the run directories in this folder: python -m tests.old_runs.make

They were made by the code of November 2026, before its modules were rearranged. test_old_runs.py
shows that today's code still resumes, evaluates and generates from them. Make them again only to
add a run, never to make a test pass.
"""

import hashlib
import json
import platform
import shutil
import tarfile
import tempfile
from pathlib import Path

import evaluate
import generate
import train
from configs import default
from tests.runs import saved

FOLDER = Path(__file__).parent
TEXT = "the cat sat on a mat and saw one red bird by an old tree near the wide river"
WORDS = TEXT.split()
SAVED, LAST = 4, 6
SMALL = dict(width=8, heads=2, feed_forward=16, max_length=32, dropout_residual=0.1)
COMMON = {
    "steps": SAVED,
    "log_every": 1,
    "seed": 3,
    "data": dict(batch_size=4, length=16, encoder_length=16),
    "optimizer": dict(schedule="constant", warmup_steps=0, learning_rate=0.02, ema_decay=0.9),
    "checkpoint": dict(every=2, keep=1),
    "eval": dict(every=2, batch_size=8, batches=2, samples=0),
}
RUNS = {
    "decoder": {
        "model": dict(
            family="decoder", decoder_layers=3, position="rope", norm="rmsnorm",
            activation="swiglu", attention="local,dot,performer",
            attention_window=4, attention_features=8, kv_heads=1,
        ),
        "task": dict(objective="causal_lm"),
        "data": dict(source="text_files"),
    },
    "encoder": {
        "model": dict(
            family="encoder", encoder_layers=2, attention="longformer", attention_window=4,
        ),
        "task": dict(objective="classify_text", auxiliary_masked_lm=0.5),
        "data": dict(source="labelled_text_files", tokenizer="bpe", tokenizer_size=380),
        "optimizer": dict(name="adamw", accumulate=2),
    },
    "encoder_decoder": {
        "model": dict(
            family="encoder_decoder", encoder_layers=1, decoder_layers=2, position="t5_bias",
            norm="rmsnorm", bias=False,
        ),
        "task": dict(objective="seq2seq", label_smoothing=0.1),
        "data": dict(source="translation_files", source_language="en", target_language="de"),
        "optimizer": dict(name="adafactor"),
    },
}  # fmt: skip


def write_data(directory: Path) -> None:
    """Small files for each of the runs, always the same."""
    lines = [" ".join(WORDS[(7 * i + 3 * j) % len(WORDS)] for j in range(5)) for i in range(60)]
    parts = {"train": lines[:40], "validation": lines[40:]}
    for name in RUNS:
        (directory / name).mkdir(parents=True)
    for split, part in parts.items():
        labelled = [
            f"{'animal' if 'cat' in line or 'bird' in line else 'place'}\t{line}" for line in part
        ]
        (directory / "decoder" / f"{split}.txt").write_text("\n".join(part))
        (directory / "encoder" / f"{split}.tsv").write_text("\n".join(labelled))
        (directory / "encoder_decoder" / f"{split}.en").write_text("\n".join(part))
        backwards = [" ".join(reversed(line.split())) for line in part]
        (directory / "encoder_decoder" / f"{split}.de").write_text("\n".join(backwards))


def config_of(name: str, data: Path, **run) -> dict:
    config = default.get_config().to_dict()
    for changes in (COMMON, {"model": SMALL}, RUNS[name], run):
        for key, value in changes.items():
            config[key] = {**config[key], **value} if isinstance(value, dict) else value
    paths = dict(path=str(data / name), cache_dir=str(data / "cache"))
    return {**config, "data": {**config["data"], **paths}}


def results(name: str, workdir: Path, data: Path) -> dict:
    """What comes of a run directory: its parameters, scores, answers; then of two more steps."""
    found = {"params": digest(workdir, SAVED)}
    config = config_of(name, data)
    scores = evaluate.evaluate(workdir, config=config)
    found["scores"] = {key: value for key, value in scores.items() if key.startswith("eval/")}
    lines = ["the cat sat", "one red bird by a tree"]
    options = {} if name == "encoder" else dict(max_new_tokens=8)
    found["answers"] = generate.generate(workdir, lines, **options)
    train.train_and_evaluate(config_of(name, data, steps=LAST), str(workdir))
    metrics = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    found["metrics"] = [
        {key: value for key, value in line.items() if not key.startswith(("perf/", "progress/"))}
        for line in metrics
        if line["step"] > SAVED
    ]
    found["resumed_params"] = digest(workdir, LAST)
    return found


def digest(workdir: Path, step: int) -> str:
    """Of every bit of a checkpoint's arrays."""
    sha = hashlib.sha256()
    for path, array in sorted(saved(workdir, step).items()):
        sha.update(f"{path} {array.dtype} {array.shape}".encode() + array.tobytes())
    return sha.hexdigest()


def machine() -> str:
    """What decides the last bits of a result: the processor and what it can do."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else [platform.processor()]
    names = [line for line in lines if line.startswith(("model name", "flags"))][:2]
    return hashlib.sha256("".join(names or lines).encode()).hexdigest()


def main(out: Path) -> None:
    """Trains in `out`, and writes an archive for each run and what was seen of it."""
    data = out / "data"
    write_data(data)
    expected = {"machine": machine()}
    for name in RUNS:
        train.train_and_evaluate(config_of(name, data), str(out / name))
        shutil.copytree(out / name, out / f"{name}_resumed")
        expected[name] = results(name, out / f"{name}_resumed", data)
        config = json.loads((out / name / "config.json").read_text())
        config["data"] |= dict(path="data", cache_dir="")
        (out / name / "config.json").write_text(json.dumps(config))
        with tarfile.open(FOLDER / f"{name}.tar.gz", "w:gz") as archive:
            for part in sorted((out / name).glob("*.json*")):
                if part.name != "environment.json":
                    archive.add(part, part.name)
            archive.add(out / name / "checkpoints", "checkpoints")
    (FOLDER / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as out:
        main(Path(out))
