"""Answers to questions, as parts of a text, with a small encoder.

PATH is a directory with train.jsonl and validation.jsonl, whose lines have the keys question,
context and answer; see docs/data.md.

Command:  python train.py --config=configs/answer_span.py --config.data.path=PATH
Hardware: not yet run with these settings
Time:     not yet run
Score:    not yet run
"""

from configs import classify_text


def get_config(arg=None):
    config = classify_text.get_config(arg or "bert_style")
    config.data.update(dict(source="question_files"))
    config.task.update(dict(objective="answer_span", label_smoothing=0.0))
    config.eval.update(dict(metrics=("squad_exact_match", "squad_f1")))
    if not arg:
        config.model.update(dict(pooler=False))
        config.data.update(dict(length=384))
    return config
