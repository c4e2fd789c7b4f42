"""Sampling flags: those without effect are refused, unless they have their default values."""

import dataclasses

import pytest

from experiment.schema import ConfigError
from inference import sampling_options


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (dict(top_k=3), "--top_k does not go with --method=greedy; leave it out, or choose "),
        (dict(method="beam", stop=["x"]), "or choose --method=greedy or --method=sample"),
        (dict(method="sample", beam_size=2), "--beam_size does not go with --method=sample"),
        (dict(seed=1), "--seed does not go with --method=greedy; "),
        (dict(method="sampel"), "--method='sampel' is not one of: greedy, beam, sample. Did you"),
        (dict(method="sample", top_p=1.5), "--top_p=1.5 must be at most 1 and above 0"),
        (dict(method="sample", temperature=0.0), "--temperature=0.0 must be at least 1e-06"),
        (dict(method="sample", temperature=1e-38), "--temperature=1e-38 must be at least 1e-06"),
        (dict(method="sample", num_outputs=10**9), "must be at least 1 and at most 65536"),
        (
            dict(method="beam", beam_size=10**6),
            "--beam_size=1000000 must be at least 1 and at",
        ),
        (dict(max_new_tokens=10**9), "must be at least 0 and at most 16777216"),
        (dict(num_outputs=2), "--num_outputs=2 does not go with --method=greedy, which has one"),
        (dict(method="beam", num_outputs=5), "--num_outputs=5 exceeds --beam_size=4, "),
        (dict(max_new_tokens=-1), "--max_new_tokens=-1 must be at least 0"),
        (dict(stop=[""]), "--stop is empty, and every text contains the empty text; leave it out"),
        (dict(draft_tokens=2), "name it with --draft_workdir=DIR"),
        (dict(draft_workdir="x", slide=True), "--slide does not go with --draft_workdir: "),
        (dict(draft_workdir="x", repetition_penalty=2.0), "leave it or --draft_workdir out"),
        (dict(method="sample", stream=True, num_outputs=2), "not --num_outputs=2; leave one of"),
    ],
)
def test_options_without_effect_are_refused(options, reason):
    with pytest.raises(ConfigError) as refused:
        sampling_options.from_flags(options)
    assert reason in str(refused.value)


@pytest.mark.parametrize("method", ["greedy", "beam", "sample"])
def test_defaults_may_be_spelt_out_for_any_method(method):
    spelt_out = {**dataclasses.asdict(sampling_options.DEFAULTS), "method": method}
    assert dataclasses.asdict(sampling_options.from_flags(spelt_out)) == spelt_out
