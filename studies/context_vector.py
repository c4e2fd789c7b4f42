"""Is one vector for the whole source a bottleneck? Seq2seq models with and without attention.

Command:  python sweep.py --study=studies/context_vector.py --jobs=2
Verdict:  docs/claims.md
"""

VECTOR = {"model.bridge": "context_vector"}
LSTM = {"model.mixer": "lstm", "model.position": "none", "model.embedding_scale": False}


def get_study():
    return dict(
        claim="A fixed context vector loses long sources; attention does not.",
        config="configs/dates.py",
        overrides={
            "steps": 800,
            "model.width": 64,
            "model.feed_forward": 128,
            "model.dropout_embedding": 0.0,
            "model.dropout_residual": 0.0,
            "optimizer.learning_rate": 4e-3,
            "optimizer.warmup_steps": 100,
            "eval.every": 400,
            "eval.samples": 0,
            "checkpoint.every": 400,
        },
        variants={
            "transformer": {},
            "transformer_vector": VECTOR,
            "lstm_attention": LSTM,
            "lstm_vector": {**LSTM, **VECTOR},
        },
        seeds=(0, 1, 2),
        match="parameters",
        metrics=(
            "eval/dates/exact_match",
            "eval/languages/exact_match",
            "probe/score_by_length/exact_match/*",
        ),
        probes=("score_by_length",),
    )
