"""Are several heads better than one? 1 to 16 heads at the same width, and pruned ones.

Command:  python sweep.py --study=studies/heads.py --jobs=2
Verdict:  docs/claims.md
"""

from studies._small_pydoc import BITS, MODEL, TRAINING

PRUNED = {"prune.method": "heads", "prune.begin_step": 200, "prune.end_step": 300}


def get_study():
    return dict(
        claim="Several heads attend to different things; many of them can be removed.",
        config="configs/pydoc.py",
        overrides={**MODEL, **TRAINING, "steps": 500},
        variants={
            **{f"heads_{heads}": {"model.heads": heads} for heads in (8, 1, 2, 4, 16)},
            **{
                f"heads_8_pruned_{share * 100:.0f}": {
                    **PRUNED,
                    "model.heads": 8,
                    "prune.share": share,
                    "prune.every": 50,
                }
                for share in (0.25, 0.5, 0.75)
            },
        },
        seeds=(0, 1, 2),
        metrics=(BITS, "probe/head_similarity/divergence/all"),
        probes=("head_similarity",),
        plots=({"kind": "bars"},),
    )
