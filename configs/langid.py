"""Which of 20 languages is this name in? An encoder that classifies short texts."""

from configs import architectures, default


def get_config(arg=None):
    config = default.get_config()
    config.steps = 2000
    config.model.update(architectures.bert_style())
    # What makes BERT slow to start on so little text: absolute positions, norms after the
    # residual, small initial weights, and a summary that must be learned.
    config.model.update(dict(position="rope", norm_placement="pre", embedding_norm=False))
    config.model.update(dict(init_std=0.0, token_types=0, pooling="mean", pooler=False))
    config.model.update(dict(encoder_layers=2, width=128, heads=4, feed_forward=512))
    config.model.update(dict(dropout_residual=0.2, dropout_embedding=0.1))
    architectures.choose(config.model, arg)
    config.data.update(dict(source="names", batch_size=128, length=32))
    config.task.objective = "classify_text"
    config.optimizer.update(dict(learning_rate=2e-3, warmup_steps=100, weight_decay=0.1))
    config.eval.update(dict(every=400, batch_size=256))
    return config
