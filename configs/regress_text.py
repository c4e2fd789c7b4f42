"""Numbers for your own texts or pairs of texts, such as similarities, with a small encoder.

PATH is a directory with train.tsv and validation.tsv, whose lines are number, tab, text, and for
pairs another tab and the second text; see docs/data.md.

Command:  python train.py --config=configs/regress_text.py --config.data.path=PATH
Hardware: not yet run with these settings
Time:     not yet run
Score:    not yet run
"""

from configs import classify_text


def get_config(arg=None):
    config = classify_text.get_config(arg or "bert_style")
    config.data.update(dict(source="scored_files"))
    config.task.update(dict(objective="regress_text", label_smoothing=0.0))
    config.eval.update(dict(metrics=("pearson", "spearman")))
    return config
