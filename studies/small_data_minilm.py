"""How many examples does a published encoder need? MiniLM in full, with adapters, and frozen.

FILE holds labelled sentences as in configs/polarity.py, and MODEL is a directory with MiniLM
(docs/results.md says where to get it).

Command:  python convert.py --from=MODEL --to=runs/minilm
          python sweep.py --study=studies/small_data_minilm.py --config.data.path=FILE
Verdict:  docs/claims.md
"""

MINILM = {
    "model.encoder_layers": 6,
    "model.width": 384,
    "model.heads": 12,
    "model.head_size": 32,
    "model.feed_forward": 1536,
    "model.pooling": "mean",
    "model.pooler": False,
}
FROM = {"init_from": "runs/minilm"}
KINDS = {
    "scratch": {},
    "full": FROM,
    "lora": {**FROM, "finetune.lora_rank": 8, "optimizer.learning_rate": 1e-3},
    "frozen": {**FROM, "finetune.freeze": "backbone/.*", "optimizer.learning_rate": 1e-2},
}
SIZES = (100, 1000, 9000)


def get_study():
    return dict(
        claim="A published encoder needs few examples, and training a small part of it is enough.",
        config="configs/polarity.py:bert_base",
        overrides={
            "steps": 80,
            **MINILM,
            "data.tokenizer": "runs/minilm/tokenizer.json",
            "data.batch_size": 16,
            "data.length": 48,
            "data.buckets": (24, 36),
            "optimizer.learning_rate": 1e-4,
            "optimizer.warmup_steps": 10,
            "eval.every": 0,
            "eval.samples": 0,
            "checkpoint.every": 0,
        },
        variants={
            f"{name}_{size}": {**keys, "data.train_examples": size}
            for size in SIZES
            for name, keys in KINDS.items()
        },
        seeds=(0, 1),
        metrics=("eval/validation/accuracy", "eval/validation/loss"),
    )
