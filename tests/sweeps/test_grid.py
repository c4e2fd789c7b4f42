"""Grids: values, ranges, quotes, names, and what is refused."""

import pytest

from experiment.schema import ConfigError
from sweeps.grid import parse_grid, safe_name, short_names, variants_of


def test_values_ranges_and_quotes():
    grid = parse_grid("model.position=rope, alibi ;seed=0..3;init_from='';data.buckets=(8, 16),();")
    assert grid == {
        "model.position": ["rope", "alibi"],
        "seed": ["0", "1", "2", "3"],
        "init_from": [""],
        "data.buckets": ["(8, 16)", "()"],
    }


def test_a_comma_in_quotes_belongs_to_the_value():
    assert parse_grid("model.attention='local,dot',dot") == {
        "model.attention": ["local,dot", "dot"]
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        (" ; ", "is empty"),
        ("model.heads", "is not KEY=VALUE"),
        ("=2", "is not KEY=VALUE"),
        ("model.heads=", "empty value"),
        ("model.heads=2,,4", "empty value"),
        ("model.heads=2;model.heads=4", "twice"),
        ("model.attention='local,dot", "not closed"),
        ("seed=4..0", "0..4"),
    ],
)
def test_what_cannot_be_read_is_refused(text, reason):
    with pytest.raises(ConfigError, match=reason):
        parse_grid(text)


def test_variants_are_all_combinations_without_seeds():
    variants = variants_of(parse_grid("model.heads=2,4;seed=0..2;optimizer.name=adamw,lion"))
    assert variants == {
        f"heads={heads}+name={name}": {"model.heads": heads, "optimizer.name": name}
        for heads in ("2", "4")
        for name in ("adamw", "lion")
    }


def test_only_seeds_give_one_variant():
    assert variants_of(parse_grid("seed=0..2")) == {"config": {}}


def test_a_config_file_is_named_by_its_stem_and_architecture():
    variants = variants_of({"config": ["configs/dates.py:t5_style", "configs/dates.py"]})
    assert list(variants) == ["dates-t5_style", "dates"]


def test_two_variants_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="two variants are named heads=2"):
        variants_of({"model.heads": ["2", "2"]})
    with pytest.raises(ConfigError, match="two variants are named path=a_b"):
        variants_of({"data.path": ["a/b", "a:b"]})


def test_keys_with_the_same_end_are_written_out():
    assert short_names(["model.image_size", "data.image_size", "seed"]) == {
        "model.image_size": "model.image_size",
        "data.image_size": "data.image_size",
        "seed": "seed",
    }


def test_long_names_stay_distinct():
    names = {safe_name("x" * 300 + end) for end in "ab"}
    assert len(names) == 2 and max(map(len, names)) <= 120
