"""From a mapping to a frozen dataclass: valid values are taken, invalid ones are named."""

import dataclasses
import math
from typing import Annotated, Literal

import pytest

from experiment.schema import (
    Bounds,
    ConfigError,
    Count,
    DropoutRate,
    PositiveInt,
    build,
    did_you_mean,
)


@dataclasses.dataclass(frozen=True)
class Section:
    size: PositiveInt
    depth: Count
    rate: DropoutRate
    factor: float
    scale: Annotated[float, Bounds(above=0, at_most=2)]
    norm: Literal["layernorm", "rmsnorm"]
    bias: bool
    name: str
    window: tuple[Count, Count]
    tags: tuple[str, ...]

    def problems(self):
        if self.size < self.depth:
            yield f"size={self.size} is below depth={self.depth}"
        if self.name == "impossible":
            yield "name=impossible is not possible"


GOOD = dict(
    size=3, depth=0, rate=0.5, factor=-1.5, scale=2.0, norm="rmsnorm", bias=False,
    name="", window=(0, 2), tags=("a", "b", "c"),
)  # fmt: skip


def test_valid_values_are_kept_unchanged():
    section, problems = build(Section, GOOD, "model")
    assert problems == []
    assert dataclasses.asdict(section) == GOOD
    with pytest.raises(dataclasses.FrozenInstanceError):
        section.size = 4


@pytest.mark.parametrize(
    ("key", "given", "arrives"),
    [
        ("factor", 3, 3.0),  # an int for a float
        ("window", [1, 2], (1, 2)),  # as read from JSON
        ("tags", [], ()),
        ("rate", 0, 0.0),
        ("scale", 2, 2.0),
    ],
)
def test_values_become_what_the_annotation_says(key, given, arrives):
    section, problems = build(Section, GOOD | {key: given}, "model")
    assert problems == []
    assert getattr(section, key) == arrives
    assert type(getattr(section, key)) is type(arrives)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("size", 0, "model.size=0 must be at least 1"),
        ("size", 3.0, "model.size=3.0 must be an int"),
        ("size", "3", "model.size='3' must be an int"),
        ("size", True, "model.size=True must be an int"),
        ("size", None, "model.size=None must be an int"),
        ("depth", -1, "model.depth=-1 must be at least 0"),
        ("rate", 1.0, "model.rate=1.0 must be at least 0 and below 1"),
        ("rate", "0.5", "model.rate='0.5' must be a float"),
        ("rate", False, "model.rate=False must be a float"),
        ("factor", math.nan, "model.factor=nan must be a finite number"),
        ("factor", -math.inf, "model.factor=-inf must be a finite number"),
        ("factor", 10**400, "model.factor=inf must be a finite number"),
        ("rate", math.nan, "model.rate=nan must be a finite number"),
        ("name", "a\udcff", r"model.name='a\udcff' is no text in UTF-8; rename it"),
        ("tags", ("a", "\ud800"), r"model.tags[1]='\ud800' is no text in UTF-8; rename it"),
        ("scale", 0.0, "model.scale=0.0 must be at most 2 and above 0"),
        ("scale", 2.5, "model.scale=2.5 must be at most 2 and above 0"),
        (
            "norm",
            "layer_norm",
            "model.norm='layer_norm' is not one of: layernorm, rmsnorm. Did you mean 'layernorm'?",
        ),
        ("norm", "batch", "model.norm='batch' is not one of: layernorm, rmsnorm."),
        ("norm", ["batch"], "model.norm=['batch'] is not one of: layernorm, rmsnorm."),
        ("bias", 1, "model.bias=1 must be a bool"),
        ("name", None, "model.name=None must be a str"),
        ("window", 2, "model.window=2 must be a tuple"),
        ("window", "12", "model.window='12' must be a tuple"),
        ("window", (1,), "model.window=(1,) must have 2 entries"),
        ("window", (1, -1), "model.window[1]=-1 must be at least 0"),
        ("tags", ("a", 1), "model.tags[1]=1 must be a str"),
    ],
)
def test_values_of_the_wrong_type_or_range_are_refused(key, value, problem):
    section, problems = build(Section, GOOD | {key: value}, "model")
    assert section is None
    assert problems == [problem]


def test_unknown_and_missing_keys_are_named_together():
    values = {key: value for key, value in GOOD.items() if key != "depth"} | dict(sise=3, x=1)
    _, problems = build(Section, values, "model")
    assert problems == [
        "model.sise is not a config key. Did you mean 'size'?",
        "model.x is not a config key.",
        "model.depth is missing",
    ]


def test_the_top_level_has_no_prefix():
    _, problems = build(Section, GOOD | dict(size=0), "")
    assert problems == ["size=0 must be at least 1"]


def test_combinations_are_checked_after_single_values():
    _, problems = build(Section, GOOD | dict(size=1, depth=2, name="impossible"), "model")
    assert problems == ["size=1 is below depth=2", "name=impossible is not possible"]
    _, problems = build(Section, GOOD | dict(size=0, depth=2), "model")
    assert problems == ["model.size=0 must be at least 1"]


def test_a_union_type_in_a_config_dataclass_raises():
    @dataclasses.dataclass
    class Undecided:
        size: int | None

    with pytest.raises(TypeError, match="one type"):
        build(Undecided, dict(size=1), "model")


def test_an_error_holds_a_line_for_each_problem():
    assert str(ConfigError("one")) == "one"
    assert str(ConfigError(["one", "two"])) == "one\ntwo"
    assert ConfigError("one").problems == ["one"]


def test_only_similar_words_are_suggested():
    assert did_you_mean("widht", ["width", "heads"]) == " Did you mean 'width'?"
    assert did_you_mean("colour", ["width", "heads"]) == ""
    assert did_you_mean(3, ["width"]) == ""


def test_a_misspelt_key_is_not_also_reported_as_missing():
    section = dataclasses.make_dataclass("Section", [("length", int), ("width", int)])
    _, problems = build(section, {"lenght": 1, "width": 2}, "data")
    assert problems == ["data.lenght is not a config key. Did you mean 'length'?"]
    _, problems = build(section, {"other": 1, "width": 2}, "data")
    assert problems == ["data.other is not a config key.", "data.length is missing"]


@pytest.mark.parametrize(
    ("word", "meant"), [("adamW", "adamw"), ("RoPE", "rope"), ("GELU", "gelu")]
)
def test_a_word_in_another_case_is_suggested(word, meant):
    """It is preferred to a word that is closer letter by letter."""
    known = ["adam", "adamw", "rope", "alibi", "gelu", "gelu_tanh"]
    assert did_you_mean(word, known) == f" Did you mean {meant!r}?"


@pytest.mark.parametrize("values", [1.5, None, "size", [], [["size", 1]]])
def test_what_is_no_group_of_keys_is_refused(values):
    """Found by the fuzzer: a section of a recorded config that was a number."""
    built, problems = build(Section, values, "model")
    assert built is None
    assert problems == [f"model must be a group of keys, not {str(values)!r}"]
