"""What does label smoothing do to accuracy and to calibration? Names and their languages.

Command:  python sweep.py --study=studies/label_smoothing.py --jobs=2
Verdict:  docs/claims.md
"""


def get_study():
    return dict(
        claim="Label smoothing makes a model more accurate and better calibrated.",
        config="configs/langid.py",
        overrides={
            "steps": 250,
            "model.width": 64,
            "model.heads": 4,
            "model.feed_forward": 256,
            "task.auxiliary_masked_lm": 0.0,
            "eval.metrics": ("ece",),
            "eval.every": 0,
            "eval.samples": 0,
            "checkpoint.every": 0,
        },
        variants={f"smoothing_{s:g}": {"task.label_smoothing": s} for s in (0.0, 0.1, 0.2)},
        seeds=(0, 1, 2),
        metrics=("eval/held_out/accuracy", "eval/held_out/ece", "eval/held_out/loss"),
        plots=({"kind": "bars"},),
    )
