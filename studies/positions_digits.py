"""Does a Transformer need to be told where things are? A small ViT with and without positions.

Command:  python sweep.py --study=studies/positions_digits.py --jobs=2
"""


def get_study():
    return dict(
        claim="Without positions, a Transformer sees a bag of patches and cannot tell digits.",
        config="configs/digits.py",
        overrides={
            "steps": 300,
            "model.encoder_layers": 2,
            "model.width": 32,
            "model.feed_forward": 64,
            "model.max_length": 17,
            "optimizer.name": "adamw",
            "optimizer.learning_rate": 5e-3,
            "optimizer.warmup_steps": 30,
            "log_every": 50,
            "eval.every": 100,
            "eval.samples": 0,
            "checkpoint.every": 100,
        },
        variants={
            "learned": {},
            "none": {"model.position": "none"},
        },
        seeds=(0, 1, 2),
        metrics=("eval/held_out/accuracy",),
        baseline="learned",
        plots=({"kind": "bars"}, {"kind": "curves"}),
    )
