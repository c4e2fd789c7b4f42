"""Does post-norm need a warm-up? Both norm placements with and without one, at two learning rates.

Command:  python sweep.py --study=studies/warmup.py --jobs=2
Verdict:  docs/claims.md
"""

from studies._small_pydoc import BITS, MODEL, TRAINING


def get_study():
    return dict(
        claim="Post-norm Transformers need a warm-up of the learning rate; pre-norm ones do not.",
        config="configs/pydoc.py",
        overrides={
            **MODEL,
            **TRAINING,
            "steps": 300,
            "model.decoder_layers": 6,
            "data.length": 64,
        },
        variants={
            f"{placement}_{'warmup' if steps else 'none'}_{rate:g}": {
                "model.norm_placement": placement,
                "optimizer.warmup_steps": steps,
                "optimizer.learning_rate": rate,
            }
            for placement in ("pre", "post")
            for rate in (1e-3, 4e-3)
            for steps in (100, 0)
        },
        seeds=(0, 1, 2),
        metrics=(BITS, "train/loss"),
        plots=({"kind": "bars", "metric": BITS}, {"kind": "curves", "metric": "train/loss"}),
    )
