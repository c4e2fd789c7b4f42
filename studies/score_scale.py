"""Why are scores divided by sqrt(d_k)? Head sizes from 8 to 512 with and without the scale.

Command:  python sweep.py --study=studies/score_scale.py --jobs=2
Verdict:  docs/claims.md
"""

from studies._small_pydoc import BITS, MODEL, TRAINING

OFF = {"model.attention_scale": False, "model.attention_scale_init": False}


def get_study():
    return dict(
        claim="Without the scale, large heads have saturated softmaxes and small gradients.",
        config="configs/pydoc.py",
        overrides={**MODEL, **TRAINING, "steps": 300, "data.length": 64, "model.heads": 2},
        variants={
            f"{name}_{size}": {**keys, "model.head_size": size}
            for size in (8, 32, 128, 512)
            for name, keys in {"scaled": {}, "unscaled": OFF}.items()
        },
        seeds=(0, 1, 2),
        baseline="scaled_32",
        metrics=(
            BITS,
            "probe/attention_entropy/init/all",
            "probe/attention_entropy/trained/all",
            "probe/gradient_by_layer/decoder_*",
        ),
        probes=("attention_entropy", "gradient_by_layer"),
    )
