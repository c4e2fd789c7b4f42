"""Do more experts help, at the same number of parameters that a token uses? Python's documentation.

Command:  python sweep.py --study=studies/experts.py
Verdict:  docs/experts.md
"""

from studies._small_pydoc import BITS, MODEL, TRAINING


def get_study():
    half = MODEL["model.feed_forward"] // 2  # two experts of half the size
    return dict(
        claim="Eight experts, two for each token, beat the dense model of the same active size.",
        config="configs/pydoc.py",
        overrides={**MODEL, **TRAINING, "steps": 500},
        variants={
            "dense": {},
            # On CPUs, a capacity costs less time than dropping nothing.
            "experts": {
                "model.feed_forward": half,
                "model.experts": 8,
                "model.expert_capacity": 2.0,
            },
        },
        seeds=(0, 1, 2),
        metrics=(BITS,),
        plots=({"kind": "bars", "metric": BITS},),
    )
