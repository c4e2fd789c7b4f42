"""Which mixer translates best at the same size? English to German on Multi30k's captions.

DIR holds the raw text of configs/multi30k.py.

Command:  python sweep.py --study=studies/quality_multi30k.py --config.data.path=DIR --jobs=2
Verdict:  docs/claims.md
"""

from studies._small_multi30k import METRICS, OVERRIDES

RECURRENT = {"model.position": "none", "model.embedding_scale": False}


def get_study():
    return dict(
        claim="At the same number of parameters, the Transformer is two BLEU better.",
        config="configs/multi30k.py",
        overrides=OVERRIDES,
        variants={
            "transformer": {},
            "lstm": {**RECURRENT, "model.mixer": "lstm"},
            "conv": {"model.mixer": "conv"},
            "gru": {**RECURRENT, "model.mixer": "gru"},
        },
        seeds=(0, 1, 2),
        match="parameters",
        metrics=METRICS,
        plots=({"kind": "bars"},),
    )
