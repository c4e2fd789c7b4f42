"""How much faster is training by attention than by recurrence? Tokens per second by length.

Run this on a machine with nothing else to do, or on a core of its own.

Command:  taskset -c 0 python sweep.py --study=studies/parallelism.py
Verdict:  docs/claims.md
"""

from studies._small_pydoc import MODEL

LENGTHS = (32, 256, 2048)
MIXERS = {
    "attention": {},
    "lstm": {"model.mixer": "lstm", "model.position": "none"},
    "gru": {"model.mixer": "gru", "model.position": "none"},
    "rnn": {"model.mixer": "rnn", "model.position": "none"},
    "conv": {"model.mixer": "conv", "model.position": "sinusoidal"},
}
SPEED = "perf/tokens_per_second"


def get_study():
    return dict(
        claim="Transformers train five to ten times faster than recurrent networks.",
        config="configs/pydoc.py",
        overrides={
            **MODEL,
            "model.max_length": 2048,
            "steps": 24,
            "log_every": 2,
            "optimizer.warmup_steps": 10,
            "eval.every": 0,
            "eval.batches": 1,
            "eval.samples": 0,
            "checkpoint.every": 0,
        },
        variants={
            f"{name}_{length}": {
                **keys,
                "data.length": length,
                "data.batch_size": 2048 // length,
                "model.mixer": keys.get("model.mixer", "attention"),
            }
            for length in LENGTHS
            for name, keys in MIXERS.items()
        },
        seeds=(0, 1, 2),
        match="parameters",
        metrics=(SPEED,),
        plots=(
            {
                "kind": "lines",
                "metric": SPEED,
                "x": "data.length",
                "by": "model.mixer",
                "log_x": True,
            },
        ),
    )
