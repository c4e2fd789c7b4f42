"""Tiny Shakespeare, byte by byte, in the small setting that nanoGPT's README gives for a CPU.

FILE is the text of 1,115,394 bytes that nanoGPT downloads as input.txt; the last tenth of it is
held out. nanoGPT states a validation loss of 1.88 nats a character; the text is ASCII, so a
character is a byte.

Command:  python train.py --config=configs/shakespeare.py --config.data.path=FILE
Hardware: one core of two, shared with other work
Time:     3 min 40 s of CPU time (14 min 43 s of wall time)
Score:    1.594 nats a byte held out (2.30 bits); with learned positions and AdamW (learning rate
          0.001, beta2 0.99), as in nanoGPT, 1.898. Each window of 64 bytes starts without
          context here, so its first byte can only be guessed.
"""

from configs import architectures, default


def get_config(arg=None):
    config = default.get_config()
    config.steps = 2000
    config.model.update(architectures.gpt2_style())
    config.model.update(dict(decoder_layers=4, width=128, heads=4, feed_forward=512))
    config.model.position = "rope"
    architectures.choose(config.model, arg)
    config.data.update(dict(source="text_files", batch_size=12, length=64))
    config.task.objective = "causal_lm"
    config.optimizer.update(dict(name="muon", learning_rate=3e-3, beta1=0.95, beta2=0.98))
    config.optimizer.update(dict(warmup_steps=100, weight_decay=0.1))
    config.eval.update(dict(every=500, batch_size=128))
    return config
