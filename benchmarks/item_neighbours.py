"""Compares a model of baskets with popularity and item-to-item cosine, on the same baskets.

    python train.py --config=configs/baskets.py --config.data.path=DIR
    python benchmarks/item_neighbours.py --workdir=runs/baskets --split=test

The task is to find the last item of each basket from the others. Popularity ranks items by the
number of training baskets that have them. Cosine adds up, over the items of the basket, the cosine
of two items' columns in the matrix of training baskets and items. Items of the basket itself are
not ranked, and an item without a training basket counts as not found, as in evaluate.py. Prints a
table in Markdown.
"""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import scipy.sparse  # noqa: E402
from absl import flags  # noqa: E402

from checkpointing import loaded_run  # noqa: E402
from evaluate import evaluate  # noqa: E402
from experiment import command_line, sections  # noqa: E402
from experiment.schema import ConfigError  # noqa: E402
from input_pipeline.sources.base import readable_examples  # noqa: E402
from input_pipeline.sources.registry import components  # noqa: E402

WORKDIR = flags.DEFINE_string("workdir", "", "The directory of a run on item_files.")
SPLIT = flags.DEFINE_string("split", "", "The split to score on; default: the run's eval split.")
STEP = flags.DEFINE_string("step", "", "A saved step, or best; default: the newest.")
METRICS = ("hit@10", "ndcg@10", "mrr")


def ranks(scores: Callable[[np.ndarray], np.ndarray], baskets: Sequence[Sequence[int]]) -> list:
    """The rank of each basket's last item; -1 stands for items that training does not have."""
    found = []
    for *shown, target in baskets:
        shown = np.array([item for item in shown if item >= 0], np.int64)
        scores_v = scores(shown).astype(np.float64)
        scores_v[shown] = -np.inf
        found.append((scores_v >= scores_v[target]).sum() if target >= 0 else np.inf)
    return found


def scores_of(found: Sequence[float]) -> dict[str, float]:
    """The ranking metrics of the ranks of the hidden items."""
    rank_b = np.array(found, np.float64)
    gains_b = np.where(rank_b <= 10, 1 / np.log2(1 + rank_b), 0)
    values = (rank_b <= 10).mean(), gains_b.mean(), (1 / rank_b).mean()
    return dict(zip(METRICS, map(float, values), strict=True))


def main() -> None:
    if not WORKDIR.value:
        raise ConfigError("--workdir is missing; give the directory of a run")
    data = sections.from_mapping(loaded_run.recorded_config(WORKDIR.value)).data
    data = dataclasses.replace(data, eval_split=SPLIT.value or data.eval_split)
    splits = components(data)[0].splits
    if splits.kind != "items":
        raise ConfigError(f"data.source={data.source} has no items; choose another run")
    separator = data.source_options.separator

    def items(examples) -> list[list[str]]:
        return [each["text"].split(separator) for each in readable_examples(examples)]

    train, test = items(splits.train), items(splits.evals[data.eval_split])
    numbers = {item: n for n, item in enumerate(sorted({i for basket in train for i in basket}))}
    rows = np.repeat(np.arange(len(train)), [len(basket) for basket in train])
    columns = [numbers[item] for basket in train for item in basket]
    matrix = scipy.sparse.csr_matrix((np.ones(len(columns), np.float32), (rows, columns)))
    together = (matrix.T @ matrix).tocsr()
    count_v = together.diagonal()
    scale = scipy.sparse.diags(count_v**-0.5)
    cosine = (scale @ together @ scale).tocsr()
    test = [[numbers.get(item, -1) for item in basket] for basket in test]
    print(f"{len(train):,} baskets to train on, {len(test):,} to score on\n")
    print(f"| model | {' | '.join(METRICS)} |\n|---|---|---|---|")
    table = {
        "popularity": scores_of(ranks(lambda shown: count_v.copy(), test)),
        "item-to-item cosine": scores_of(
            ranks(lambda shown: np.asarray(cosine[shown].sum(axis=0))[0], test)
        ),
    }
    record = evaluate(WORKDIR.value, STEP.value, SPLIT.value)
    name = f"{WORKDIR.value}, step {record['step']}"
    table[name] = {
        metric: next(value for key, value in record.items() if key.endswith(f"/{metric}"))
        for metric in METRICS
    }
    for name, scores in table.items():
        print(f"| {name} | {' | '.join(f'{scores[metric]:.1%}' for metric in METRICS)} |")


if __name__ == "__main__":
    command_line.launch(main)
