"""Which evaluation sets evaluate.py --split=NAME selects, without a model."""

from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import evaluate
from experiment.schema import ConfigError
from input_pipeline.tokenizers.tokenizer import ByteTokenizer
from tests.corpora import labelled_shards, text_files, write
from tests.tiny import data_config, masking


def run_of(directory, objective, **data):
    """As much of a loaded run as the choice of a split needs."""
    data = data_config(**data, tokenizer="byte", cache_dir=str(directory / "cache"))
    experiment = SimpleNamespace(
        data=data, task=SimpleNamespace(objective=objective), masking=masking(),
        run=SimpleNamespace(seed=0),
    )  # fmt: skip
    has_text = objective != "classify_images"
    tokenizer = ByteTokenizer() if has_text else None
    return SimpleNamespace(experiment=experiment, tokenizer=tokenizer, steps=(10,))


def image_folders(directory):
    for number in range(20):
        path = directory / ("cat", "dog")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 4), number, np.uint8)).save(path)
    return dict(source="image_files", path=str(directory), eval_share=0.4)


@pytest.mark.parametrize(
    ("corpus", "objective"),
    [
        (text_files, "causal_lm"),
        (labelled_shards, "classify_text"),
        (image_folders, "classify_images"),
    ],
)
def test_data_without_named_splits_has_no_other_split(corpus, objective, tmp_path):
    """Whatever the name, the same examples would be held out."""
    keys = corpus(tmp_path / "corpus")
    run = run_of(tmp_path, objective, **keys)
    assert evaluate.load_data(run, "validation")[1] == ("validation",)
    refused = rf"--split=test: .*{keys['source']} has no such split. It holds out: validation"
    with pytest.raises(ConfigError, match=refused):
        evaluate.load_data(run, "test")


def test_a_split_of_a_mixture_is_that_of_the_parts_that_name_it(tmp_path):
    named, unnamed = tmp_path / "named", tmp_path / "unnamed"
    text_files(unnamed)
    for split in ("train", "validation", "test"):
        write(named / f"{split}.txt", f"{split} and more")
    parts = tuple((f"text_files:{each}", 1.0) for each in (named, unnamed))
    run = run_of(tmp_path, "causal_lm", source="text_files", mixture=parts)
    assert len(evaluate.load_data(run, "")[1]) == 2
    (name,) = evaluate.load_data(run, "test")[1]
    assert name.startswith("test_") and name.endswith("_named")


def test_an_imported_model_needs_only_the_split_to_score(tmp_path):
    write(tmp_path / "corpus" / "test.tsv", "yes\tone\nno\ttwo\nyes\tthree\n")
    keys = dict(source="labelled_text_files", path=str(tmp_path / "corpus"))
    run = run_of(tmp_path, "classify_text", **keys)
    with pytest.raises(ConfigError, match="has no train"):
        evaluate.load_data(run, "test")
    run.steps = (0,)
    data, names = evaluate.load_data(run, "test")
    assert names == ("test",) and data.description["eval_rows"] == {"test": 3}
    with pytest.raises(ConfigError, match=r"--split=dev: .* has no such split"):
        evaluate.load_data(run, "dev")
    # As the log advises: a file named after the eval set, alone in its directory.
    (tmp_path / "corpus" / "test.tsv").rename(tmp_path / "corpus" / "validation.tsv")
    data, names = evaluate.load_data(run, "")
    assert names == ("validation",) and data.description["eval_rows"] == {"validation": 3}


def test_an_imported_model_is_scored_like_any_other_if_all_splits_are_there(tmp_path):
    keys = labelled_shards(tmp_path / "corpus")  # without named splits
    run = run_of(tmp_path, "classify_text", **keys)
    rows = evaluate.load_data(run, "validation")[0].description["eval_rows"]
    run.steps = (0,)
    data, names = evaluate.load_data(run, "validation")
    assert names == ("validation",) and data.description["eval_rows"] == rows


def test_a_missing_split_is_not_replaced_by_other_text(tmp_path):
    for name in ("train", "valid"):
        write(tmp_path / "corpus" / f"{name}.txt", f"{name} and more text\n" * 9)
    run = run_of(tmp_path, "causal_lm", source="text_files", path=str(tmp_path / "corpus"))
    run.steps = (0,)
    with pytest.raises(ConfigError, match="validation"):
        evaluate.load_data(run, "")


def test_the_log_says_what_is_held_out(tmp_path):
    keys = labelled_shards(tmp_path / "corpus")
    run = run_of(tmp_path, "classify_text", **keys)
    data, _ = evaluate.load_data(run, "")
    (line,) = evaluate.split_lines(data, run)
    assert line.startswith("no named splits: a hash holds out 0.")
    run.steps = (0,)
    assert "to score all, name the file validation," in evaluate.split_lines(data, run)[1]
