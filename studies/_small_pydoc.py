"""What the studies on configs/pydoc.py have in common: a model that a core trains in a minute."""

MODEL = {
    "model.decoder_layers": 2,
    "model.width": 64,
    "model.heads": 4,
    "model.feed_forward": 256,
}
# AdamW: the shapes of the parameters differ, and Muon treats matrices and vectors differently.
TRAINING = {
    "data.batch_size": 16,
    "data.length": 128,
    "optimizer.name": "adamw",
    "optimizer.beta1": 0.9,
    "optimizer.learning_rate": 3e-3,
    "optimizer.warmup_steps": 50,
    "eval.every": 0,
    "eval.batches": 20,
    "eval.samples": 0,
    "checkpoint.every": 0,
    "log_every": 25,
}
BITS = "eval/held_out/bits_per_byte"
