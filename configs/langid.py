"""Which of 20 languages is this name in? An encoder that classifies short texts."""

from configs import architectures, default


def get_config(arg=None):
    config = default.get_config()
    config.steps = 2000
    config.model.update(architectures.bert_style())
    config.model.update(dict(encoder_layers=2, width=128, heads=4, feed_forward=512))
    config.model.update(dict(dropout_residual=0.1, dropout_embedding=0.1, token_types=0))
    architectures.choose(config.model, arg)
    config.data.update(dict(source="names", batch_size=64, length=48))
    config.task.objective = "classify_text"
    config.optimizer.update(dict(learning_rate=1e-3, warmup_steps=200, weight_decay=0.1))
    config.eval.update(dict(every=500, batch_size=256))
    return config
