"""What do sparse and linear attention lose? A task that needs a far token, and one that does not.

Command:  python sweep.py --study=studies/sparse_attention.py --jobs=2
Verdict:  docs/claims.md
"""

# Far less than the farthest distance of 64.
REACH = {"model.attention_window": 16, "model.attention_chunk": 16}
KINDS = {
    "dot": {},
    "local": {},
    "longformer": {},
    "recurrent": {"model.attention_memory": 16},
    "hierarchical": {},
    "performer": {"model.attention_features": 64},
    "linear": {},
}
ACCURACY = "eval/distance_*/accuracy"


def get_study():
    return dict(
        claim="Sparse and linear attention cost accuracy where a far token matters.",
        config="configs/recall.py",
        overrides={**REACH, "steps": 200, "data.batch_size": 32},
        variants={
            f"{kind}_{name}": {
                **keys,
                "model.attention": kind,
                "data.options.key_place": place,
            }
            for name, place in {"far": "first", "near": "last"}.items()
            for kind, keys in KINDS.items()
        },
        seeds=(0, 1, 2),
        metrics=(ACCURACY,),
        plots=({"kind": "profile", "metric": ACCURACY, "log_x": True},),
    )
