"""How far back can each mixer look? The first symbol of a row, 8 to 256 tokens before the answer.

Command:  python sweep.py --study=studies/long_range.py --jobs=2
Verdict:  docs/claims.md
"""

DISTANCES = (8, 16, 32, 64, 128, 256)
RECURRENT = {"model.position": "none"}
ACCURACY = "eval/distance_*/accuracy"
GRADIENTS = ("probe/gradient_by_distance/init/*", "probe/gradient_by_distance/trained/*")


def get_study():
    return dict(
        claim="Attention reaches a far token in one hop; recurrent networks forget it.",
        config="configs/recall.py",
        overrides={
            "steps": 400,
            "data.options.distances": DISTANCES,
            "data.length": 259,
            "data.buckets": (11, 19, 35, 67, 131),
            "data.batch_size": 32,
        },
        variants={
            "attention": {},
            "lstm": {**RECURRENT, "model.mixer": "lstm"},
            "gru": {**RECURRENT, "model.mixer": "gru"},
            "rnn": {**RECURRENT, "model.mixer": "rnn"},
            "conv": {"model.mixer": "conv", "model.mixer_options": (("dilations", 2.0),)},
            "mean": {"model.mixer": "mean"},
        },
        seeds=(0, 1, 2),
        match="parameters",
        metrics=(ACCURACY, *GRADIENTS),
        probes=("gradient_by_distance",),
        plots=(
            {"kind": "profile", "metric": ACCURACY, "log_x": True},
            *(
                {"kind": "profile", "metric": each, "log_x": True, "log_y": True}
                for each in GRADIENTS
            ),
        ),
    )
