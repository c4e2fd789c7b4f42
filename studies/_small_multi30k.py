"""What the studies on configs/multi30k.py have in common: a model that a core trains in minutes."""

OVERRIDES = {
    "steps": 500,
    "model.width": 64,
    "model.encoder_layers": 2,
    "model.decoder_layers": 2,
    "model.feed_forward": 256,
    "model.dropout_embedding": 0.1,
    "model.dropout_residual": 0.1,
    "data.tokenizer_size": 2000,
    "data.batch_size": 16,
    "optimizer.warmup_steps": 150,
    "eval.every": 0,
    "eval.batches": 4,
    "eval.samples": 0,
    "checkpoint.every": 0,
}
METRICS = ("eval/val/bleu", "eval/val/loss")
