"""Masked-language-model pretraining on the names of configs/langid.py."""

from configs import langid


def get_config(arg=None):
    config = langid.get_config(arg)
    config.task.objective = "masked_lm"
    return config
