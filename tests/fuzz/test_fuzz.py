"""The fuzzer notices what it is there for, and repeats a try by its seed."""

import json
import random

import pytest

from experiment.schema import ConfigError
from tests.fuzz import __main__ as fuzzer
from tests.fuzz import targets
from tests.fuzz.mutations import mutated_bytes, mutated_json

FINDINGS = {
    "traceback": "traceback", "panic": "traceback", "exit": "traceback", "crash": "crash",
    "hang": "hang", "memory": "memory",
}  # fmt: skip


def test_each_kind_of_fault_is_found_and_kept(tmp_path, capsys):
    names = [*FINDINGS, "noise", "refused", "traceback"]
    tries = [(name, 7) for name in names]
    counts = fuzzer.fuzz(600, tries, tmp_path, limit=5, module="tests.fuzz.faults")
    printed = capsys.readouterr().out
    for name, kind in FINDINGS.items():
        assert counts[f"{name} {kind}"] == names.count(name), counts
        assert (tmp_path / f"{name}-7" / "input").read_text() == f"{name} 7"
        assert f"{kind}: python -m tests.fuzz --only={name}:7 " in printed
    assert counts["noise accepted"] == counts["refused refused"] == 1
    assert counts["different findings"] == len(FINDINGS)
    assert "KeyError: 7" in (tmp_path / "traceback-7" / "finding.txt").read_text()
    assert "faults.py" in (tmp_path / "hang-7" / "finding.txt").read_text()  # where it hangs


def test_seeds_are_repeated_and_a_try_can_be_named():
    first, second, other = (fuzzer.seeds(seed, "") for seed in (1, 1, 2))
    chosen = [[next(each) for _ in range(50)] for each in (first, second, other)]
    assert chosen[0] == chosen[1] != chosen[2]
    assert {name for name, _ in chosen[0]} == set(fuzzer.TARGETS)
    assert list(fuzzer.seeds(1, "images:5")) == [("images", 5)]
    assert tuple(targets.TARGETS) == fuzzer.TARGETS


def test_mutations_depend_on_the_seed_alone_and_change_the_input():
    value = {"a": [1, 2, {"b": "c"}], "d": 0.5, "e": None}
    content = json.dumps(value).encode()
    for mutate, given in ((mutated_json, value), (mutated_bytes, content)):
        found = [repr(mutate(random.Random(seed), given)) for seed in range(100)]
        assert found == [repr(mutate(random.Random(seed), given)) for seed in range(100)]
        assert len(set(found)) > 60
        assert sum(each != repr(given) for each in found) > 90


@pytest.mark.parametrize("name", sorted(set(targets.TARGETS) - {"conversions", "run_directories"}))
def test_targets_reach_what_they_fuzz(name, tmp_path, monkeypatch):
    """Unchanged input is accepted, so that refusals are due to the mutations."""
    monkeypatch.setattr(targets, "mutate_file", lambda rng, path: None)
    monkeypatch.setattr(targets, "mutated_json", lambda rng, value: value)
    monkeypatch.setattr(targets, "mutated_bytes", lambda rng, content: content)
    monkeypatch.setattr(targets, "HOSTILE", (1,))
    monkeypatch.setattr(targets, "STYLES", ("PNG", "JPEG"))
    monkeypatch.setattr(targets, "REFUSALS", () if name != "flags" else ConfigError)
    for seed in range(3):
        directory = tmp_path / str(seed)
        directory.mkdir()
        targets.attempt(name, seed, directory)


def test_a_signal_ends_it_with_the_counts_so_far(tmp_path, monkeypatch):
    monkeypatch.setattr(fuzzer, "_stopped", [])

    def tries():
        for number in range(9):
            if number == 3:
                fuzzer.stop()
            yield "noise", number

    counts = fuzzer.fuzz(600, tries(), tmp_path, limit=60, module="tests.fuzz.faults")
    assert counts["noise accepted"] == 3
