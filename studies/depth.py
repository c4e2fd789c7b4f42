"""Which deep stacks train at all? Residual connections and norms at 2 to 24 layers.

Command:  python sweep.py --study=studies/depth.py --jobs=2
Verdict:  docs/claims.md
"""

KINDS = {
    "pre": {},
    "post": {"model.norm_placement": "post"},
    "no_norm": {"model.norm": "none"},
    "no_residual": {"model.residual": False},
    "neither": {"model.norm": "none", "model.residual": False},
}
DEPTHS = (2, 6, 12, 24)
ACCURACY = "eval/held_out/accuracy"
GRADIENTS = "probe/gradient_by_layer/encoder_*"


def get_study():
    return dict(
        claim="Without residual connections deep Transformers do not train; post-norm needs care.",
        config="configs/digits.py",
        overrides={
            "steps": 300,
            "model.width": 32,
            "model.feed_forward": 64,
            "model.dropout_residual": 0.0,
            "model.dropout_embedding": 0.0,
            "optimizer.name": "adamw",
            "optimizer.learning_rate": 2e-3,
            "optimizer.warmup_steps": 30,
            "failure.nonfinite": "skip",
            "failure.limit": 1000,
            "eval.every": 0,
            "eval.samples": 0,
            "checkpoint.every": 0,
        },
        variants={
            f"{name}_{layers}": {**keys, "model.encoder_layers": layers}
            for name, keys in KINDS.items()
            for layers in DEPTHS
        },
        seeds=(0, 1, 2),
        metrics=(ACCURACY, GRADIENTS),
        probes=("gradient_by_layer",),
        plots=({"kind": "bars"}, {"kind": "profile", "metric": GRADIENTS, "log_y": True}),
    )
