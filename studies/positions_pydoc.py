"""Which positions work on rows longer than those of training? Bytes of Python's documentation.

Command:  python sweep.py --study=studies/positions_pydoc.py --jobs=2
Verdict:  docs/claims.md
"""

from studies._small_pydoc import BITS, MODEL, TRAINING

SCHEMES = ("sinusoidal", "learned", "rope", "alibi", "t5_bias", "none")
LONGER = "probe/score_longer_rows/bits_per_byte/*"


def get_study():
    return dict(
        claim="Sinusoids let a model read sequences longer than those it was trained on.",
        config="configs/pydoc.py",
        overrides={
            **MODEL,
            **TRAINING,
            "steps": 400,
            "data.length": 64,
            "model.max_length": 256,
            # All of the held-out text, so that rows of all lengths have the same bytes.
            "eval.batches": 0,
        },
        variants={scheme: {"model.position": scheme} for scheme in SCHEMES},
        seeds=(0, 1, 2),
        metrics=(BITS, LONGER),
        probes=("score_longer_rows",),
        plots=(
            {"kind": "bars", "metric": BITS},
            {"kind": "profile", "metric": LONGER, "log_x": True},
        ),
    )
