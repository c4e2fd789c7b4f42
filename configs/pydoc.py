"""A byte-level language model of Python's documentation and standard library."""

from configs import architectures, default


def get_config(arg=None):
    config = default.get_config()
    config.steps = 1200
    config.model.update(architectures.gpt2_style())
    config.model.update(dict(decoder_layers=4, width=192, heads=6, feed_forward=768))
    architectures.choose(config.model, arg)
    config.data.update(dict(source="pydoc", batch_size=32, length=256))
    config.task.objective = "causal_lm"
    config.optimizer.update(dict(learning_rate=3e-3, warmup_steps=100, beta2=0.98))
    config.optimizer.update(dict(weight_decay=0.1))
    config.eval.update(dict(every=400, batch_size=64))
    return config
