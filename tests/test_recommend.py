"""Baskets from files to recommendations: training, evaluate.py, generate.py."""

import numpy as np
import pytest

import generate
import train
import visualize
from configs import baskets
from evaluate import evaluate
from experiment.schema import ConfigError
from tests import scripts
from tests.input_pipeline.sources.files.test_reading import written
from tests.runs import tiny

pytestmark = pytest.mark.usefixtures("compile_once")

KITS = [[f"{kit}{n}" for n in range(4)] for kit in "abcd"]  # what goes together


def baskets_of(count, seed):
    rng = np.random.default_rng(seed)
    rows = [rng.permutation(KITS[rng.integers(4)])[: rng.integers(3, 5)] for _ in range(count)]
    return "".join(f"n\t{' '.join(row)}\n" for row in rows)


@pytest.fixture(scope="module")
def run(tmp_path_factory, compile_once):
    directory = tmp_path_factory.mktemp("baskets")
    for seed, (split, count) in enumerate({"train": 200, "validation": 16, "test": 16}.items()):
        written(directory / "data" / f"{split}.tsv", baskets_of(count, seed))
    config = tiny(
        baskets,
        steps=200,
        model=dict(width=32, init_std=0.0, dropout_embedding=0.0, dropout_residual=0.0),
        data=dict(
            path=str(directory / "data"), cache_dir=str(directory / "cache"),
            batch_size=16, length=8, buckets=(),
        ),
        optimizer=dict(name="adamw", learning_rate=5e-3, beta1=0.9, weight_decay=0.0),
        task=dict(noise_rate=0.3),
        checkpoint=dict(every=200, best_metric=""),
        eval=dict(every=200, batch_size=16, samples=2, metrics=("hit@1", "hit@5", "mrr")),
    )  # fmt: skip
    train.train_and_evaluate(config, directory / "run")
    return directory / "run"


def test_the_last_item_of_a_test_basket_is_found(run):
    scores = evaluate(run, split="test")
    # With one or two items of a kit left, a model that knows the kits is among the first two.
    assert scores["eval/test/hit@5"] == 1
    assert scores["eval/test/mrr"] >= 0.5
    assert scores["eval/test/hit@1"] <= scores["eval/test/mrr"] <= 1


def test_recommends_new_items_of_the_same_kit(run):
    kit, alone = generate.generate(run, ["a0 a2", "b3"], num_outputs=3)
    assert {kit[0]["item"], kit[1]["item"]} == {"a1", "a3"}
    assert kit[0]["probability"] >= kit[1]["probability"] > kit[2]["probability"]
    assert {each["item"] for each in alone} == {"b0", "b1", "b2"}
    (ten,) = generate.generate(run, ["c0"])
    assert len({each["item"] for each in ten} - {"c0"}) == 10
    (all_others,) = generate.generate(run, ["c0"], num_outputs=16)
    assert len(all_others) == 15


def test_the_order_of_a_basket_does_not_matter(run):
    one, other = generate.generate(run, ["d0 d1 d2", "d2 d0 d1"])
    assert [each["item"] for each in one] == [each["item"] for each in other]
    np.testing.assert_allclose(
        [each["probability"] for each in one], [each["probability"] for each in other], rtol=1e-4
    )


def test_unknown_items_are_left_out_or_refused(run):
    with_unknown, without = generate.generate(run, ["a0 zebra a2", "a0 a2"])
    assert with_unknown == without
    with pytest.raises(ConfigError, match="line 1: the item 'a9' did not occur in training"):
        generate.generate(run, ["a0 a9"], strict=True)
    with pytest.raises(ConfigError, match="line 1 has no item that occurred in training: 'zebra'"):
        generate.generate(run, ["zebra"])
    with pytest.raises(ConfigError, match="line 1 has no item; write at least one"):
        generate.generate(run, [" "])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (dict(num_outputs=17), "--num_outputs=17 must be at least 1 and at most 16"),
        (dict(num_outputs=2, temperature=0.5), "--num_outputs, --temperature: .* leave it out"),
    ],
)
def test_options_of_other_models_are_refused(run, options, problem):
    with pytest.raises(ConfigError, match=problem):
        generate.generate(run, ["a0"], **options)


def test_the_script_writes_one_item_on_a_line(run, tmp_path):
    output = tmp_path / "items.tsv"
    flags = ("--prompt=a0 a2 a3", "--num_outputs=2", f"--output={output}")
    ended = scripts.run("generate.py", f"--workdir={run}", *flags)
    assert ended.code == 0, ended.err
    first, second = (line.split("\t") for line in output.read_text().splitlines())
    assert first[0] == "a1" and float(first[1]) > float(second[1]) > 0


def test_the_view_of_a_basket_is_what_generate_reads(run, caplog):
    view = visualize.capture_view(run, "a0 zebra a2")
    assert "zebra" in caplog.text and "left out" in caplog.text
    (attention,) = view.maps
    assert attention.queries == attention.keys == ("⟨cls⟩", "a0", "a2", "⟨mask⟩", "⟨sep⟩")
    (found,) = generate.generate(run, ["a0 a2"], num_outputs=1)
    assert view.prediction == f"{found[0]['item']} ({found[0]['probability']:.1%})"
