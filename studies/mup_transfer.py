"""Does the best learning rate stay when a model becomes wider? Widths 64 to 512, two rules.

Command:  python sweep.py --study=studies/mup_transfer.py --jobs=2
Verdict:  docs/claims.md
"""

from studies._small_pydoc import BITS, MODEL, TRAINING

WIDTHS = (64, 256, 512)
RATES = (1e-3, 2e-3, 5e-3, 1.25e-2)
STANDARD = {"model.parametrization": "standard"}
MUP = {"model.parametrization": "mup", "model.mup_base_width": 64, "model.mup_base_head_size": 16}


def get_study():
    return dict(
        claim="With muP, the best learning rate is the same at all widths.",
        config="configs/pydoc.py",
        overrides={
            **MODEL,
            **TRAINING,
            "steps": 100,
            "data.length": 32,
            "model.head_size": 16,
            "eval.batches": 10,
        },
        variants={
            f"{name}_{width}_{rate:g}": {
                **keys,
                "model.width": width,
                "model.heads": width // 16,
                "model.feed_forward": 4 * width,
                "optimizer.learning_rate": rate,
            }
            for name, keys in {"standard": STANDARD, "mup": MUP}.items()
            for width in WIDTHS
            for rate in RATES
            if (name, width) != ("mup", 64)  # the base width: the standard rule, to the bit
        },
        seeds=(0, 1, 2),
        metrics=(BITS, "train/loss"),
        plots=(
            {
                "kind": "lines",
                "metric": BITS,
                "x": "optimizer.learning_rate",
                "by": ("model.parametrization", "model.width"),
                "log_x": True,
            },
        ),
    )
