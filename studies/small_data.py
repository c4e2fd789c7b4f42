"""How many examples does a classifier need? From scratch, and from masked-LM pretraining.

The pretrained model has seen all training names without their languages.

Command:  python train.py --config=configs/langid_mlm.py --config.steps=1000 --config.model.width=64
          --config.model.heads=4 --config.model.feed_forward=256 --config.eval.every=0
          --workdir=runs/names_mlm
          python sweep.py --study=studies/small_data.py --jobs=2
Verdict:  docs/claims.md
"""

KINDS = {"scratch": {}, "pretrained": {"init_from": "runs/names_mlm"}}
SIZES = (100, 1000, 10_000)


def get_study():
    return dict(
        claim="With little data, a Transformer overfits unless it is pretrained.",
        config="configs/langid.py",
        overrides={
            "steps": 200,
            "model.width": 64,
            "model.heads": 4,
            "model.feed_forward": 256,
            "data.batch_size": 64,
            "data.buckets": (20,),
            "task.auxiliary_masked_lm": 0.0,
            "optimizer.name": "adamw",
            "optimizer.beta1": 0.9,
            "optimizer.warmup_steps": 20,
            "eval.every": 0,
            "eval.samples": 0,
            "checkpoint.every": 0,
            "log_every": 20,
        },
        variants={
            f"{name}_{size}": {**keys, "data.train_examples": size}
            for size in SIZES
            for name, keys in KINDS.items()
        },
        seeds=(0, 1, 2),
        metrics=("eval/held_out/accuracy", "eval/held_out/loss", "train/loss"),
        plots=({"kind": "bars"},),
    )
