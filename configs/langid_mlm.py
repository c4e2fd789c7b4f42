"""Masked-language-model pretraining on the names of configs/langid.py.

Command:  python train.py --config=configs/langid_mlm.py
Score:    not yet run to the end
"""

from configs import langid


def get_config(arg=None):
    config = langid.get_config(arg)
    config.task.update(dict(objective="masked_lm", label_smoothing=0.0))
    return config
