"""Is this film review favourable? A small encoder, trained from scratch.

Command:  python train.py --config=configs/imdb.py
Data:     tfds build imdb_reviews/plain_text --file_format=array_record
Hardware: not yet run; meant for one accelerator
Time:     not yet run
Score:    not yet run: needs the data set
"""

from configs import architectures, default


def get_config(arg=None):
    config = default.get_config()
    config.steps = 3000
    config.model.update(architectures.bert_style())
    config.model.update(dict(encoder_layers=4, width=256, heads=4, feed_forward=1024))
    config.model.update(dict(token_types=0, norm_placement="pre", embedding_norm=False))
    config.model.update(dict(dropout_embedding=0.1, dropout_residual=0.1))
    architectures.choose(config.model, arg)
    config.data.update(dict(source="tfds", name="imdb_reviews/plain_text", kind="labelled"))
    config.data.update(dict(eval_split="test", tokenizer="wordpiece", tokenizer_size=16_000))
    config.data.update(dict(batch_size=64, length=512))
    config.task.update(dict(objective="classify_text", label_smoothing=0.1))
    config.optimizer.update(dict(learning_rate=5e-4, warmup_steps=300, weight_decay=0.1))
    config.eval.update(dict(every=500, batch_size=256))
    return config
