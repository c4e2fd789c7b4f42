"""Small data sets on disk whose examples begin with their number, and the pipeline on them."""

import json
import re

import numpy as np

from input_pipeline import pipeline
from tests.input_pipeline.sources.files.test_reading import written
from tests.tiny import data_config, masking

COUNT = 83  # examples to train on; no multiple of anything
LANGUAGES = dict(source_language="en", target_language="de")
# By kind: the source, an objective for it, and what else the config needs.
KINDS = {
    "pairs": ("translation_files", "seq2seq", LANGUAGES),
    "prefixes": ("translation_files", "prefix_lm", LANGUAGES),
    "documents": ("text_files", "causal_lm", {}),
    "masked": ("text_files", "masked_lm", {}),
    "labelled": ("labelled_text_files", "classify_text", {}),
    "tasks": ("text_to_text_files", "seq2seq", {}),
}
_NUMBER = re.compile(r"<(\d+)>")


def sentence(number, rng):
    return f"<{number}> " + " ".join(
        "abcdefgh"[: rng.integers(1, 8)] for _ in range(rng.integers(5))
    )


def write_corpus(directory):
    """Writes files of every kind, each in its own subdirectory."""
    rng = np.random.default_rng(0)
    for split, count in (("train", COUNT), ("validation", 9)):
        pairs = [(sentence(n, rng), sentence(n, rng)) for n in range(count)]
        labelled = "".join(f"{'ab'[n % 2]}\t{text}\n" for n, (text, _) in enumerate(pairs))
        tasks = "".join(
            json.dumps({"task": f"t{n % 3}", "inputs": source, "targets": target}) + "\n"
            for n, (source, target) in enumerate(pairs)
        )
        for column, language in enumerate(("en", "de")):
            text = "".join(f"{pair[column]}\n" for pair in pairs)
            written(directory / "pairs" / f"{split}.{language}", text)
        written(directory / "labelled" / f"{split}.tsv", labelled)
        written(directory / "tasks" / f"{split}.jsonl", tasks)
        for n in range(count):
            text = " ".join(sentence(n, rng) for _ in range(1 + n % 5))
            written(directory / "documents" / split / f"{n:03}.txt", text)
    return directory


def load(
    directory, kind, *, objective="", seed=0, process_index=0, process_count=1, **keys
) -> pipeline.Data:
    source, usual_objective, more = KINDS[kind]
    folder = {"prefixes": "pairs", "masked": "documents"}.get(kind, kind)
    sizes = dict(batch_size=8, length=48, encoder_length=48, prefetch=0)
    where = dict(path=str(directory / folder), cache_dir=str(directory / "cache"))
    return pipeline.load(
        data_config(**{"source": source, **sizes, **where, **more, **keys}),
        objective=objective or usual_objective,
        masking=masking(),
        seed=seed,
        process_index=process_index,
        process_count=process_count,
    )


def segments(batch, name):
    """The ids of each packed or lone example of a batch, row by row."""
    prefix = "encoder_" if name.startswith("encoder_") else ""
    ids = batch[f"{prefix}segment_ids"]
    for row, marks in zip(batch[name], ids, strict=True):
        for mark in range(1, marks.max() + 1):
            yield row[marks == mark]


def numbers(data, batch, name="targets"):
    """Which examples are in a batch, by the number that each begins with."""
    return [int(_NUMBER.match(data.tokenizer.decode(ids))[1]) for ids in segments(batch, name)]
