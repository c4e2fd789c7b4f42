"""Compares a text classifier with a bag of words, on the same texts and splits.

    python train.py --config=configs/classify_text.py --config.data.path=DIR
    python benchmarks/bag_of_words.py --workdir=runs/classify_text --step=best --split=test

Fits scikit-learn's logistic regression (C=1) to the training texts of the run in --workdir, with
word counts and with tf-idf, and scores it and the run on the same eval texts. --ngrams=2 adds pairs
of words. If early stopping used a split, choose another split to score. Prints a table in Markdown.
"""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from absl import flags  # noqa: E402
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402

from checkpointing import loaded_run  # noqa: E402
from evaluate import evaluate  # noqa: E402
from experiment import command_line, sections  # noqa: E402
from experiment.schema import ConfigError  # noqa: E402
from input_pipeline.config import DataConfig  # noqa: E402
from input_pipeline.sources.base import Example, readable_examples  # noqa: E402
from input_pipeline.sources.registry import components  # noqa: E402

WORKDIR = flags.DEFINE_string("workdir", "", "The directory of a run that classifies texts.")
SPLIT = flags.DEFINE_string("split", "", "The split to score on; default: the run's eval split.")
STEP = flags.DEFINE_string("step", "", "A saved step, or best; default: the newest.")
NGRAMS = flags.DEFINE_integer("ngrams", 1, "The longest n-gram that is counted.")


def texts_and_labels(data: DataConfig) -> tuple[list[tuple], list[tuple]]:
    """Returns (text, label) of the training and eval split; a pair of texts becomes one text."""
    splits = components(data)[0].splits
    if splits.kind != "labelled":
        raise ConfigError(f"data.source={data.source} has no labelled texts; choose another run")

    def pairs(examples: Sequence[Example]) -> list[tuple]:
        return [
            (" ".join(each[key] for key in ("text", "text_pair") if key in each), each["label"])
            for each in readable_examples(examples)
        ]

    if len(splits.evals) != 1:
        raise ConfigError(f"choose one of these with --split: {', '.join(splits.evals)}")
    (eval_set,) = splits.evals.values()
    return pairs(splits.train), pairs(eval_set)


def bag_of_words(vectorizer, train: list[tuple], test: list[tuple]) -> tuple[float, int]:
    """Returns the accuracy on the test texts and the size of the vocabulary."""
    texts, labels = zip(*train, strict=True)
    counts = vectorizer.fit_transform(texts)
    model = LogisticRegression(max_iter=1000).fit(counts, labels)
    texts, labels = zip(*test, strict=True)
    return model.score(vectorizer.transform(texts), labels), counts.shape[1]


def main() -> None:
    if not WORKDIR.value:
        raise ConfigError("--workdir is missing; give the directory of a run")
    data = sections.from_mapping(loaded_run.recorded_config(WORKDIR.value)).data
    split = SPLIT.value
    train, test = texts_and_labels(dataclasses.replace(data, eval_split=split or data.eval_split))
    print(f"{len(train):,} texts to train on, {len(test):,} to score on\n")
    print("| model | accuracy |\n|---|---|")
    ngrams = (1, NGRAMS.value)
    for name, vectorizer in (("counts", CountVectorizer), ("tf-idf", TfidfVectorizer)):
        accuracy, words = bag_of_words(vectorizer(ngram_range=ngrams), train, test)
        print(f"| {name} of {words:,} words, logistic regression | {accuracy:.1%} |", flush=True)
    record = evaluate(WORKDIR.value, STEP.value, split)
    (accuracy,) = (value for name, value in record.items() if name.endswith("/accuracy"))
    print(f"| {WORKDIR.value}, step {record['step']} | {accuracy:.1%} |")


if __name__ == "__main__":
    command_line.launch(main)
