import dataclasses
import re

import ml_collections
import pytest

from configs.default import get_config
from experiment import schema
from training import config as sections
from training import section_checks

SECTIONS = {
    "task": sections.TaskConfig,
    "optimizer": sections.OptimizerConfig,
    "mesh": sections.MeshConfig,
    "checkpoint": sections.CheckpointConfig,
    "eval": sections.EvalConfig,
}


def defaults(section):
    """The default values of a section, or of the top level for ""."""
    config = get_config()
    if section:
        return dict(config[section])
    return {k: v for k, v in config.items() if not isinstance(v, ml_collections.ConfigDict)}


ALL = [("", sections.RunConfig), *SECTIONS.items()]


@pytest.mark.parametrize(("section", "kind"), ALL)
def test_the_defaults_and_the_dataclass_name_the_same_keys(section, kind):
    assert set(defaults(section)) == {field.name for field in dataclasses.fields(kind)}


@pytest.mark.parametrize(("section", "kind"), ALL)
def test_the_defaults_are_accepted(section, kind):
    built, problems = schema.build(kind, defaults(section), section)
    assert problems == []
    assert dataclasses.asdict(built) == defaults(section)


@pytest.mark.parametrize(
    ("section", "changes", "message"),
    [
        ("", dict(steps=0), "steps=0 must be at least 1"),
        ("", dict(seed=-1), "seed=-1 must be at least 0"),
        ("", dict(profile_steps=(5, 4)), "profile_steps=(5, 4) must satisfy"),
        ("", dict(profile_steps=(0, 4)), "profile_steps=(0, 4) must satisfy"),
        ("", dict(profile_steps=(4, 1001)), "profile_steps=(4, 1001) must satisfy"),
        ("task", dict(objective="casual_lm"), "Did you mean 'causal_lm'?"),
        ("task", dict(label_smoothing=1.0), "task.label_smoothing=1.0 must be"),
        ("task", dict(noise_rate=0.0), "task.noise_rate=0.0 must be above 0 and below 1"),
        ("task", dict(mean_span=0.5), "task.mean_span=0.5 must be at least 1"),
        ("task", dict(next_sentence=True), "task.next_sentence=True needs task.objective="),
        ("optimizer", dict(name="adam_w"), "Did you mean 'adamw'?"),
        ("optimizer", dict(learning_rate=0.0), "optimizer.learning_rate=0.0 must be above 0"),
        ("optimizer", dict(beta2=1.0), "optimizer.beta2=1.0 must be at least 0 and below 1"),
        ("optimizer", dict(decay_fraction=0.0), "optimizer.decay_fraction=0.0 must be"),
        (
            "optimizer",
            dict(name="sgd", weight_decay=0.1),
            "optimizer.weight_decay=0.1 does nothing",
        ),
        ("mesh", dict(fsdp=0), "mesh.fsdp=0 must be at least 1, or -1"),
        ("mesh", dict(tensor=-2), "mesh.tensor=-2 must be at least 1, or -1"),
        ("mesh", dict(fsdp=-1), "mesh.data and mesh.fsdp are -1"),
        ("checkpoint", dict(best_metric="loss"), "checkpoint.best_metric=loss must be"),
        ("checkpoint", dict(keep=0), "checkpoint.keep=0 must be at least 1"),
        ("eval", dict(batches=-1), "eval.batches=-1 must be at least 0"),
    ],
)
def test_invalid_settings_are_refused_by_name(section, changes, message):
    kind = SECTIONS.get(section, sections.RunConfig)
    _, problems = schema.build(kind, defaults(section) | changes, section)
    assert len(problems) == 1
    assert message in problems[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(schedule="cosine", warmup_steps=999), None),
        (dict(schedule="cosine", warmup_steps=1000), "optimizer.warmup_steps=1000 leaves no step"),
        (
            dict(schedule="cosine", warmup_steps=1000),
            "before steps=1000; add --config.optimizer.warmup_steps=100",
        ),
        (dict(schedule="linear", warmup_steps=50, decay_steps=50), "optimizer.decay_steps=50"),
        (dict(schedule="linear", warmup_steps=9, decay_steps=9), "optimizer.warmup_steps=0"),
        (dict(schedule="stable_decay", warmup_steps=800), None),
        (dict(schedule="stable_decay", warmup_steps=801), "optimizer.decay_fraction=0.2 of steps"),
        (
            dict(schedule="stable_decay", warmup_steps=801, decay_fraction=0.95),
            "add --config.optimizer.warmup_steps=50",
        ),
        (dict(schedule="inverse_sqrt", warmup_steps=4000), None),
        (dict(schedule="constant", warmup_steps=4000), None),
    ],
)
def test_warmup_and_decay_must_fit_into_the_run(changes, message):
    run = sections.RunConfig(**defaults("") | dict(steps=1000))
    optimizer = sections.OptimizerConfig(**defaults("optimizer") | changes)
    problems = list(section_checks.schedule_problems(optimizer, run))
    assert len(problems) == (message is not None)
    assert all(message in problem for problem in problems)
    for fix in re.findall(r"--config\.optimizer\.warmup_steps=(\d+)$", "\n".join(problems)):
        mended = dataclasses.replace(optimizer, warmup_steps=int(fix))
        assert not list(section_checks.schedule_problems(mended, run))
