"""What predicts bytes best in the same time? Attention, LSTM and convolution, resized by the clock.

Command:  python sweep.py --study=studies/quality_pydoc_timed.py --jobs=1
Verdict:  docs/claims.md
"""

from studies import quality_pydoc

MIXERS = ("attention", "lstm", "conv")


def get_study():
    study = quality_pydoc.get_study()
    return study | dict(
        claim="In the same time of training, attention predicts text better than recurrence.",
        overrides={**study["overrides"], "steps": 400},
        variants={mixer: study["variants"][mixer] for mixer in MIXERS},
        match="time",
        metrics=(quality_pydoc.BITS, "perf/steps_per_second", "train/loss"),
        plots=({"kind": "bars", "metric": quality_pydoc.BITS},),
    )
