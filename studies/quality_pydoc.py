"""What predicts bytes best at the same size? Attention and the mixers that came before it.

Command:  python sweep.py --study=studies/quality_pydoc.py --jobs=2
          and at the same time per step:
          python sweep.py --study=studies/quality_pydoc.py --match=time --workdir=runs/sweeps/timed
Verdict:  docs/claims.md
"""

from studies._small_pydoc import BITS, MODEL, TRAINING

RECURRENT = {"model.position": "none"}
CONV = {"model.position": "sinusoidal", "model.mixer_options": (("dilations", 4.0), ("taps", 3.0))}


def get_study():
    return dict(
        claim="At the same number of parameters, attention predicts text better than recurrence.",
        config="configs/pydoc.py",
        overrides={**MODEL, **TRAINING, "steps": 600},
        variants={
            "attention": {},
            "lstm": {**RECURRENT, "model.mixer": "lstm"},
            "gru": {**RECURRENT, "model.mixer": "gru"},
            "rnn": {**RECURRENT, "model.mixer": "rnn"},
            "conv": {**CONV, "model.mixer": "conv"},
            "mean": {"model.position": "sinusoidal", "model.mixer": "mean"},
        },
        seeds=(0, 1, 2),
        match="parameters",
        metrics=(BITS, "train/loss"),
        plots=({"kind": "bars", "metric": BITS}, {"kind": "curves", "metric": "train/loss"}),
    )
