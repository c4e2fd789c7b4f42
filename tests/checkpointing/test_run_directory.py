"""What a run directory records, and which config changes a resumed run may make."""

import copy
import json
import os
import platform
import re
import subprocess
import sys

import pytest

from checkpointing import loaded_run, run_directory
from configs import default
from experiment.schema import ConfigError
from tests.tiny import tiny_config


def record(**changes):
    """A run's record, with keys changed by dotted path."""
    digests = {"data_digest": "abc", "tokenizer_digest": "123"}
    config = {**copy.deepcopy(default.get_config().to_dict()), **digests}
    for path, value in changes.items():
        *sections, key = path.split("__")
        section = config
        for name in sections:
            section = section[name]
        section[key] = value
    return config


@pytest.fixture
def begun(tmp_path):
    assert run_directory.record_config(tmp_path, record(), resuming=False) == []
    return tmp_path


def test_the_same_config_resumes_without_a_word(begun):
    assert run_directory.record_config(begun, record(), resuming=True) == []
    assert json.loads((begun / "config.json").read_text()) == json.loads(json.dumps(record()))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (dict(model__width=77), "model.width: 128 -> 77"),
        (dict(model__dropout_residual=0.9), "model.dropout_residual: "),
        (dict(data__batch_size=77), "data.batch_size: "),
        (dict(data__source="pydoc"), "data.source: dates -> pydoc"),
        (dict(task__label_smoothing=0.9), "task.label_smoothing: "),
        (dict(optimizer__name="lion"), "optimizer.name: adamw -> lion"),
        (dict(data_digest="abd"), "data_digest: abc -> abd"),
        (dict(tokenizer_digest="124"), "tokenizer_digest: 123 -> 124"),
        (dict(data__mixture=(("dates", 1.0),)), "data.mixture: [] -> [['dates', 1.0]]"),
        (dict(data__packing=True), "data.packing: False -> True"),
        (dict(data__bucket_count=2), "data.bucket_count: 0 -> 2"),
        (dict(seed=77), "seed: 0 -> 77"),
        (dict(init_from="runs/another"), "init_from:  -> runs/another"),
        # These are in the saved state or not, so a change would leave it without a meaning.
        (dict(optimizer__ema_decay=0.99), "optimizer.ema_decay: 0.0 -> 0.99"),
        (dict(optimizer__beta1=0.0), "optimizer.beta1: 0.9 -> 0.0"),
    ],
)
def test_another_run_is_refused_with_the_difference(begun, change, said):
    before = (begun / "config.json").read_text()
    with pytest.raises(ConfigError) as refusal:
        run_directory.record_config(begun, record(**change), resuming=True)
    assert f"({said}" in str(refusal.value)
    assert len(str(refusal.value).splitlines()) == 1
    assert (begun / "config.json").read_text() == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (dict(steps=77), "steps: "),
        (dict(optimizer__learning_rate=0.77), "optimizer.learning_rate: "),
        (dict(optimizer__beta1=0.77), "optimizer.beta1: 0.9 -> 0.77"),
        (dict(mesh__fsdp=2), "mesh.fsdp: 1 -> 2"),
        (dict(eval__every=77), "eval.every: "),
        (dict(checkpoint__keep=77), "checkpoint.keep: 2 -> 77"),
        (dict(model__remat="full"), "model.remat: none -> full"),
        (dict(model__unroll=7), "model.unroll: 0 -> 7"),
        (dict(data__prefetch=77), "data.prefetch: 4 -> 77"),
        (dict(data__workers=7), "data.workers: 0 -> 7"),
        (dict(data__path="moved"), "data.path:  -> moved"),
        (dict(data__cache_dir="moved"), "data.cache_dir:  -> moved"),
        (dict(data__max_bad_records=7), "data.max_bad_records: 0 -> 7"),
        # A run that goes on with its own tokenizer.json, which has it inside.
        (dict(data__lowercase=True), "data.lowercase: False -> True"),
        (dict(time_limit=7.0), "time_limit: 0.0 -> 7.0"),
        (dict(eval__patience=7), "eval.patience: 0 -> 7"),
    ],
)
def test_allowed_config_changes_are_logged_once(begun, change, said):
    (told,) = run_directory.record_config(begun, record(**change), resuming=True)
    assert told.startswith(said)
    assert run_directory.record_config(begun, record(**change), resuming=True) == [], (
        "it is recorded"
    )


def test_a_new_key_counts_as_a_config_difference(begun):
    with pytest.raises(ConfigError, match=r"model\.novelty: None -> 1"):
        run_directory.record_config(begun, record(model__novelty=1), resuming=True)


def test_every_difference_is_named(begun):
    with pytest.raises(ConfigError, match=r"\(model\.width: .*; seed: 0 -> 77\)"):
        run_directory.record_config(begun, record(model__width=77, seed=77), resuming=True)


def test_a_run_without_a_checkpoint_starts_anew(begun):
    assert run_directory.record_config(begun, record(seed=77), resuming=False) == []
    assert json.loads((begun / "config.json").read_text())["seed"] == 77


def test_the_directory_is_made_and_left_clean(tmp_path):
    path = run_directory.prepare(tmp_path / "runs" / "new")
    assert path.is_dir()
    assert list(path.iterdir()) == []
    assert run_directory.prepare(path) == path


def test_a_directory_that_cannot_be_written_is_refused(tmp_path):
    # Permissions would not do: the tests may run as root.
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(
            ConfigError, match=r"cannot be written \(.*\); choose another --workdir"
        ):
            run_directory.prepare(path)


def test_the_environment_names_versions_devices_and_data(tmp_path):
    run_directory.record_environment(tmp_path, {"source": "dates", "train_rows": 5})
    found = json.loads((tmp_path / "environment.json").read_text())
    assert found["data"] == {"source": "dates", "train_rows": 5}
    assert found["packages"].keys() >= {"jax", "flax", "optax", "orbax-checkpoint"}
    assert len(found["devices"]) >= 1


def test_a_config_is_read_as_it_was_recorded(tmp_path):
    """Tuples are tuples again, in tuples too, and the digests are left out."""
    mixture = (("pydoc", 1.0), ("text_files:x", 2.0))
    written = record(data__mixture=mixture)
    run_directory.record_config(tmp_path, written, resuming=False)
    expected = {key: value for key, value in written.items() if not key.endswith("_digest")}
    assert run_directory.read_config(tmp_path) == expected


def test_keys_newer_than_the_run_take_their_defaults(tmp_path):
    old = record()
    new = {**old, "task": {**old["task"], "novelty": 0.0}, "section": {"key": ("a",)}}
    defaults = {"task": {"novelty": 0.0}, "section": {"key": ("a",)}}
    run_directory.record_config(tmp_path, old, resuming=False)
    assert run_directory.record_config(tmp_path, new, resuming=True, defaults=defaults) == []
    run_directory.record_config(tmp_path, old, resuming=False)
    new["task"]["novelty"] = 0.5
    with pytest.raises(ConfigError, match=r"\(task\.novelty: 0\.0 -> 0\.5\)"):
        run_directory.record_config(tmp_path, new, resuming=True, defaults=defaults)


# What every run recorded before the options of ListOps became options of that source.
FORMER_LISTS = {
    "listops_depth": 2, "listops_arguments": 3, "listops_min_length": 4, "listops_max_length": 17,
}  # fmt: skip
LISTS = {"depth": 2, "arguments": 3, "min_length": 4, "max_length": 17}


def data_of(**keys):
    old = record()
    return {**old, "data": {**old["data"], "mixture": (), **keys}}


@pytest.mark.parametrize(
    ("source", "options"),
    [
        ({"source": "listops"}, LISTS),
        ({"mixture": (("listops", 1.0),)}, LISTS),
        ({"source": "names"}, {}),
    ],
)
def test_a_run_with_the_former_keys_of_listops_resumes(tmp_path, source, options):
    (tmp_path / "config.json").write_text(json.dumps(data_of(**source, **FORMER_LISTS)))
    defaults = {"data": {"options": {}}}
    recorded = run_directory.with_defaults(run_directory.read_config(tmp_path), defaults)
    assert recorded["data"]["options"] == options
    assert not FORMER_LISTS.keys() & recorded["data"].keys()
    new = data_of(**source, options=options)
    assert run_directory.record_config(tmp_path, new, resuming=True, defaults=defaults) == []
    if options:
        other = data_of(**source, options={**options, "depth": 3})
        with pytest.raises(ConfigError, match=r"\(data\.options\.depth: 2 -> 3\)"):
            run_directory.record_config(tmp_path, other, resuming=True, defaults=defaults)


def test_a_run_with_the_former_key_of_metrics_resumes(tmp_path):
    old = record()
    old["eval"]["measures"] = ("bleu",)
    del old["eval"]["metrics"]
    (tmp_path / "config.json").write_text(json.dumps(old))
    assert loaded_run.recorded_config(tmp_path)["eval"]["metrics"] == ("bleu",)
    defaults = default.get_config().to_dict()
    resume = dict(resuming=True, defaults=defaults)
    new = record(eval__metrics=("bleu",))
    assert run_directory.record_config(tmp_path, new, **resume) == []
    (tmp_path / "config.json").write_text(json.dumps(old))
    changes = run_directory.record_config(tmp_path, record(), **resume)
    assert changes == ["eval.metrics: ['bleu'] -> []"]
    assert "measures" not in json.loads((tmp_path / "config.json").read_text())["eval"]


def test_options_that_a_config_leaves_out_are_the_defaults_of_its_source(tmp_path):
    spelt_out = {"depth": 3, "arguments": 3, "min_length": 4, "max_length": 30}
    run_directory.record_config(
        tmp_path, data_of(source="listops", options=spelt_out), resuming=False
    )
    short = data_of(source="listops", options={})
    assert run_directory.record_config(tmp_path, short, resuming=True) == []
    assert run_directory.read_config(tmp_path)["data"]["options"] == spelt_out


def test_empty_provenance_replaces_the_recorded_one(tmp_path):
    assert run_directory.read_provenance(tmp_path) == {}
    run_directory.record_provenance(tmp_path, {"teacher": {"step": 3}})
    assert run_directory.read_provenance(tmp_path) == {"teacher": {"step": 3}}
    run_directory.record_provenance(tmp_path, {})
    assert run_directory.read_provenance(tmp_path) == {}


def test_the_resolved_model_config_is_read_as_recorded(tmp_path):
    config = tiny_config(num_classes=2)
    run_directory.record_model(tmp_path, config, ("no", "yes"))
    assert loaded_run.recorded_model_config(tmp_path) == config
    assert run_directory.read_model(tmp_path)[1] == ("no", "yes")


def test_the_model_record_says_whether_examples_are_text_pairs(tmp_path):
    config = tiny_config(num_classes=2)
    run_directory.record_model(tmp_path, config, ("no", "yes"))
    assert run_directory.read_text_pairs(tmp_path) is None
    for text_pairs in (True, False):
        run_directory.record_model(tmp_path, config, ("no", "yes"), text_pairs)
        assert run_directory.read_text_pairs(tmp_path) is text_pairs


def test_parameters_for_another_tokenizer_are_refused(tmp_path):
    theirs = {"tokenizer_digest": "123", "data": {"tokenizer": "bpe"}}
    run_directory.refuse_other_tokenizer(tmp_path, "124")  # nothing is known of the other
    (tmp_path / "config.json").write_text(json.dumps(theirs))
    run_directory.refuse_other_tokenizer(tmp_path, "123")
    run_directory.refuse_other_tokenizer(tmp_path, "")  # images
    with pytest.raises(ConfigError, match=r"data\.tokenizer=.*tokenizer\.json"):
        run_directory.refuse_other_tokenizer(tmp_path, "124")
    theirs["data"]["tokenizer"] = "byte"
    (tmp_path / "config.json").write_text(json.dumps(theirs))
    with pytest.raises(ConfigError, match=r"data\.tokenizer=byte"):
        run_directory.refuse_other_tokenizer(tmp_path, "124")
    # A converted model keeps the default in its config, and its tokenizer beside it.
    (tmp_path / "tokenizer_roles.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"data\.tokenizer=.*tokenizer\.json"):
        run_directory.refuse_other_tokenizer(tmp_path, "124")


HOLDS = """
import os, sys
from pathlib import Path
from checkpointing import loaded_run, run_directory
with run_directory.lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
    os.kill(os.getpid(), 9)
"""


def test_a_directory_is_for_one_run_at_a_time_until_that_is_dead(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout.readline() == "held\n"
        refusal = f"is in use by another run (process {holder.pid} on {platform.node()}); wait"
        with (
            pytest.raises(ConfigError, match=re.escape(refusal)),
            run_directory.lock(tmp_path),
        ):
            pass
        holder.stdin.write("end\n")
    with run_directory.lock(tmp_path):
        assert f"process {os.getpid()}" in (tmp_path / "lock").read_text()


def test_all_processes_compare_the_directory_also_if_one_cannot_write_it(monkeypatch, tmp_path):
    compared = []
    monkeypatch.setattr(run_directory, "refuse_unshared", lambda *given: compared.append(given))
    assert run_directory.prepare(tmp_path / "run") == tmp_path / "run"
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        run_directory.prepare(tmp_path / "file" / "run")
    (first, no_problem), (second, problem) = compared
    assert (first, no_problem) == (tmp_path / "run", "")
    assert second == tmp_path / "file" / "run" and "cannot be written (Not a directory)" in problem
