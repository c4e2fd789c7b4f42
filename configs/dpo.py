"""Learns which of two answers is better (DPO), from preference pairs of your own.

PATH is a directory with train.jsonl and validation.jsonl, whose lines have `prompt`, `chosen` and
`rejected`; or one such file, of which a tenth is held out. The run in
the command (runs/talk) is a finished run or a converted published model: it gives the shape, the
first parameters and the frozen reference. Without it, runs/chat does, which configs/chat.py makes.

Command:  python train.py --config=configs/dpo.py:runs/talk --config.data.path=PATH
Hardware: 2 CPU cores, shared with much other work
Time:     27 s for the small run on made sums in docs/finetune.md
Score:    there, reward accuracy 0.98 and margin 0.136 on held-out pairs
"""

from pathlib import Path

from configs import chat


def get_config(arg=None):
    config = chat.get_config(arg)
    config.init_from = arg if arg and Path(arg, "config.json").is_file() else "runs/chat"
    config.steps = 150
    config.data.update(dict(source="preference_files", packing=False))
    config.task.objective = "dpo"
    config.finetune.lora_rank = 16
    config.optimizer.learning_rate = 1e-4
    config.eval.every = 50
    config.checkpoint.every = 50
    return config
