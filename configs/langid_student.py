"""The classifier of configs/langid.py with half its layers, to be taught by it.

Command:  python train.py --config=configs/langid_student.py --config.task.teacher=runs/langid
Hardware: 2 CPU cores
Time:     not yet run
Score:    not yet run; without --config.task.teacher the same student learns from the data alone
"""

from configs import langid


def get_config(arg=None):
    config = langid.get_config(arg)
    if not arg:
        config.model.encoder_layers = 1
    config.task.update(dict(teacher_weight=0.7, teacher_temperature=2.0))
    return config
