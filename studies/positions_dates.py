"""Which positions does a task need in which order counts? Dates, with six position schemes.

Command:  python sweep.py --study=studies/positions_dates.py --jobs=2
Verdict:  docs/claims.md
"""

SCHEMES = ("sinusoidal", "learned", "rope", "alibi", "t5_bias", "none")


def get_study():
    return dict(
        claim="Attention alone does not know the order of its tokens; positions tell it.",
        config="configs/dates.py",
        overrides={
            "steps": 500,
            "model.width": 64,
            "model.feed_forward": 128,
            "model.dropout_embedding": 0.0,
            "model.dropout_residual": 0.0,
            "optimizer.learning_rate": 4e-3,
            "optimizer.warmup_steps": 100,
            "eval.every": 0,
            "eval.batches": 4,
            "eval.samples": 0,
            "checkpoint.every": 0,
        },
        variants={scheme: {"model.position": scheme} for scheme in SCHEMES},
        seeds=(0, 1, 2),
        metrics=("eval/dates/exact_match", "eval/languages/exact_match"),
        plots=({"kind": "bars"},),
    )
