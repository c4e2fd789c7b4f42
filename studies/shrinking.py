"""How small can a classifier become? Pruning, distillation and a smaller model from scratch.

The teacher is a run of `full`. Latency needs a machine that does little else.

Command:  python train.py --config=configs/langid.py --config.steps=300 --workdir=runs/teacher
          --config.task.auxiliary_masked_lm=0.0
          python sweep.py --study=studies/shrinking.py
Verdict:  docs/claims.md
"""

SMALL = {"model.encoder_layers": 1, "model.width": 64, "model.heads": 4, "model.feed_forward": 128}
TAUGHT = {"task.teacher": "runs/teacher", "task.teacher_weight": 0.7}


def pruned(method, share=0.0):
    """The keys of a run that prunes this share with this method."""
    return {"prune.method": method, "prune.share": share, "prune.every": 25}


def get_study():
    return dict(
        claim="Distillation and sparsity shrink a model at a small cost in accuracy.",
        config="configs/langid.py",
        overrides={
            "steps": 300,
            "task.auxiliary_masked_lm": 0.0,
            "eval.every": 0,
            "eval.samples": 0,
            "checkpoint.every": 0,
        },
        variants={
            "full": {},
            "pruned_50": pruned("magnitude", 0.5),
            "pruned_90": pruned("magnitude", 0.9),
            "pruned_2_of_4": pruned("2:4"),
            "small": SMALL,
            "small_distilled": {**SMALL, **TAUGHT},
        },
        seeds=(0, 1, 2),
        metrics=("eval/held_out/accuracy", "probe/latency/batch_1", "probe/latency/batch_64"),
        probes=("latency",),
        plots=({"kind": "bars"},),
    )
