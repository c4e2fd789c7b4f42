"""Tags of words, such as the names in a text, with a small encoder.

PATH is a directory with train.jsonl and validation.jsonl, whose lines have the keys tokens and
tags, or train.conll and validation.conll; see docs/data.md.

Command:  python train.py --config=configs/classify_tokens.py --config.data.path=PATH
Hardware: not yet run with these settings
Time:     not yet run
Score:    not yet run
"""

from configs import classify_text


def get_config(arg=None):
    config = classify_text.get_config(arg or "bert_style")
    config.data.update(dict(source="tagged_files"))
    config.task.update(dict(objective="classify_tokens", label_smoothing=0.0))
    config.eval.update(dict(metrics=("entity_f1",)))
    if not arg:
        config.model.update(dict(pooler=False))
    return config
