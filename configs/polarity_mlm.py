"""Masked-language-model pretraining on the training sentences of configs/polarity.py.

Command:  python train.py --config=configs/polarity_mlm.py --config.data.path=polarity.tsv
Hardware: 2 CPU cores
Time:     5 min 38 s of one core for the second half, shared with other work
Score:    25.2% of the masked word pieces of held-out sentences
"""

from configs import polarity


def get_config(arg=None):
    config = polarity.get_config(arg)
    config.steps = 1000
    config.model.update(dict(dropout_embedding=0.1, dropout_residual=0.1))
    config.data.batch_size = 128
    config.task.update(dict(objective="masked_lm", label_smoothing=0.0))
    config.optimizer.update(dict(name="muon", learning_rate=3e-3, beta1=0.95))
    config.eval.update(dict(every=500, metrics=()))
    config.checkpoint.every = 500
    return config
