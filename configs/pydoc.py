"""A byte-level language model of Python's documentation and standard library.

Command:  python train.py --config=configs/pydoc.py
Hardware: 2 CPU cores
Time:     5 min 25 s, with compilation and two evaluations
Score:    2.08 bits per byte on held-out files (Python 3.11.7; the files differ between versions)
"""

from configs import architectures, default


def get_config(arg=None):
    config = default.get_config()
    config.steps = 600
    config.model.update(architectures.gpt2_style())
    config.model.update(dict(decoder_layers=4, width=192, heads=6, feed_forward=768))
    config.model.position = "rope"
    architectures.choose(config.model, arg)
    config.data.update(dict(source="pydoc", batch_size=8, length=256))
    config.task.objective = "causal_lm"
    config.optimizer.update(dict(name="muon", learning_rate=3e-3, beta1=0.95, beta2=0.98))
    config.optimizer.update(dict(warmup_steps=100, weight_decay=0.1))
    config.eval.update(dict(every=300, batch_size=64))
    config.checkpoint.every = 300
    return config
