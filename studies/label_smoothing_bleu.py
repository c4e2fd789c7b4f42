"""What does label smoothing do to BLEU? English to German on Multi30k's captions.

DIR holds the raw text of configs/multi30k.py.

Command:  python sweep.py --study=studies/label_smoothing_bleu.py --config.data.path=DIR --jobs=2
Verdict:  docs/claims.md
"""

from studies._small_multi30k import METRICS, OVERRIDES


def get_study():
    return dict(
        claim="Label smoothing costs perplexity and gains BLEU.",
        config="configs/multi30k.py",
        overrides=OVERRIDES,
        variants={f"smoothing_{s:g}": {"task.label_smoothing": s} for s in (0.0, 0.1)},
        seeds=(0, 1, 2),
        metrics=METRICS,
        plots=({"kind": "bars"},),
    )
