"""Matching: parameters against sums by hand, FLOPs against all widths, time against a known law."""

import dataclasses
import math

import pytest

from experiment import sections
from experiment.schema import ConfigError
from sweeps.cells import make_cells
from sweeps.counted_sizes import SizeCounter
from sweeps.matching import Resizer, match_counted, match_timed, refuse_own_sizes
from sweeps.study import Study

STUDY = Study(
    name="s",
    config="configs/digits.py",
    variants={
        "relu": {},
        "swiglu": {"model.activation": "swiglu"},
        "deep": {"model.encoder_layers": 5},
        "one_head_size": {"model.head_size": 8, "model.kv_heads": 1},
        "same": {"model.dropout_residual": 0.2},
    },
    overrides={"model.width": 48, "model.feed_forward": 96, "model.max_length": 17},
)
CELLS = {cell.variant: cell for cell in make_cells(STUDY, {})}


@pytest.fixture(scope="module")
def counter():
    return SizeCounter()


def matched_experiment(cell, match):
    changes = {key.replace(".", "__"): value for key, value in match.sizes.items()}
    return cell.changed(**changes).experiment()


def parameters_by_hand(model):
    """The parameters of configs/digits.py's ViT, summed from the shapes of its layers."""
    width, feed_forward, heads = model.width, model.feed_forward, model.heads
    head_size, kv_heads = model.head_size or width // heads, model.kv_heads or heads
    queries, keys = heads * head_size, kv_heads * head_size
    attention = (width + 1) * queries + 2 * (width + 1) * keys + (queries + 1) * width
    inner = 2 if model.activation == "swiglu" else 1
    mlp = inner * (width + 1) * feed_forward + (feed_forward + 1) * width
    norm = 2 * width
    patches, positions, class_token, classes = (2 * 2 + 1) * width, 17 * width, width, 10
    blocks = model.encoder_layers * (attention + mlp + 2 * norm)
    return blocks + norm + patches + positions + class_token + (width + 1) * classes


@pytest.mark.parametrize("variant", ["swiglu", "deep", "one_head_size"])
def test_parameters_are_matched(variant, counter):
    target = parameters_by_hand(CELLS["relu"].experiment().model)
    match = match_counted(CELLS[variant], CELLS["relu"], "parameters", counter)
    experiment = matched_experiment(CELLS[variant], match)
    count = parameters_by_hand(experiment.model)
    assert counter.sizes(experiment).parameters == count
    assert abs(count / target - 1) < 0.01
    assert f"{count:,} parameters" in match.text and f"{target:,}" in match.text
    model = experiment.model
    if not model.head_size:
        assert model.width % model.heads == 0 and model.width // model.heads % 2 == 0
    # The feed-forward layer keeps about its share of the width.
    assert 2 / 3 <= model.feed_forward / model.width / 2 <= 4 / 3


@pytest.mark.parametrize("target", [47_000, 49_500, 51_000, 53_000, 56_000, 60_000])
def test_no_other_sizes_are_closer(target):
    """Against all sizes that are allowed, for a quantity that lies mostly in the width."""
    resizer = Resizer(CELLS["relu"].config_dict())

    def quantity(width, feed_forward):
        return 1000 * width + 100 * feed_forward

    sizes = resizer.closest(target, lambda e: quantity(e.model.width, e.model.feed_forward))
    allowed = [
        (width, feed_forward)
        for width in range(8, 100, 8)
        for feed_forward in range(-(-width * 4 // 3), width * 8 // 3 + 1)  # 2 width, give or take
    ]
    gaps = {each: abs(math.log(quantity(*each) / target)) for each in allowed}
    assert gaps[sizes] == min(gaps.values())


def test_flops_are_matched_and_no_other_width_is_closer(counter):
    match = match_counted(CELLS["deep"], CELLS["relu"], "flops", counter)
    target = counter.sizes(CELLS["relu"].experiment()).step_flops
    chosen = matched_experiment(CELLS["deep"], match)
    reached = counter.sizes(chosen).step_flops
    assert abs(reached / target - 1) < 0.02
    resizer = Resizer(CELLS["deep"].config_dict())
    for width in range(24, 64, 8):
        flops = counter.sizes(resizer.experiment(resizer.proportional(width))).step_flops
        assert abs(reached - target) <= abs(flops - target)


def test_a_variant_of_the_same_size_stays(counter):
    match = match_counted(CELLS["same"], CELLS["relu"], "parameters", counter)
    assert match.sizes == {} and match.text.startswith("width 48 stays: ")
    assert "equal to the" in match.text


@pytest.mark.parametrize(("baseline", "exponent"), [(1.0, 2), (0.2, 2), (3.0, 1), (1.7, 3)])
def test_time_is_matched_by_few_measurements(baseline, exponent):
    measured = []

    def measure(cell):
        model = sections.from_mapping(cell.config_dict()).model
        measured.append(model.width)
        return (model.width / 48) ** exponent

    match = match_timed(CELLS["swiglu"], baseline, measure, lambda line: None)
    width = match.sizes.get("model.width", 48)
    assert len(measured) <= 5 and len(set(measured)) == len(measured)
    closest = min(measured, key=lambda each: abs((each / 48) ** exponent / baseline - 1))
    assert width == closest
    # One step of the width is the best that can be had.
    assert abs(width - 48 * baseline ** (1 / exponent)) <= 8


def test_sizes_that_matching_chooses_may_not_be_set():
    with pytest.raises(ConfigError, match=r"b sets model.width, which --match chooses"):
        refuse_own_sizes({"a": {"model.width": 8}, "b": {"model.width": 9}}, "a")
    refuse_own_sizes({"a": {"model.width": 8}, "b": {}}, "a")


def test_buckets_average_their_flops(counter):
    study = dataclasses.replace(
        STUDY,
        config="configs/langid.py",
        variants={"full": {"data.buckets": ()}, "buckets": {"data.buckets": (14, 20)}},
        overrides={},
    )
    full, buckets = (counter.sizes(cell.experiment()) for cell in make_cells(study, {}))
    assert full.parameters == buckets.parameters
    assert full.step_flops * 14 / 40 < buckets.step_flops < full.step_flops
