"""A model that answers as an assistant, from conversations of your own.

PATH is a directory with train.jsonl and validation.jsonl, whose lines have `messages`, or `prompt`
and `completion`; or one such file, of which a tenth is held out. docs/data.md has the format. Only
the assistant's tokens are learnt. To start from a published model, convert it and name its workdir
twice; its tokenizer and its chat template are then used:

    python convert.py --from=MODEL --to=runs/base
    python train.py --config=configs/chat.py:runs/base --config.init_from=runs/base \
        --config.data.path=PATH --config.finetune.lora_rank=16

Command:  python train.py --config=configs/chat.py --config.data.path=PATH
Hardware: 2 CPU cores, shared with much other work
Time:     49 s for 800 steps of the small run on made sums in docs/finetune.md
Score:    loss 0.216 and token accuracy 90.9% on the held-out tenth of that data; with the
          sizes below not yet run
"""

from pathlib import Path

from configs import architectures, default


def get_config(arg=None):
    config = default.get_config()
    config.steps = 1000
    config.model.update(architectures.llama_style())
    config.model.update(dict(decoder_layers=4, width=192, heads=6, feed_forward=512))
    architectures.choose(config.model, arg)
    config.data.update(dict(source="chat_files", packing=True, batch_size=16, length=256))
    if arg and Path(arg, "tokenizer_roles.json").is_file():  # else the run reads bytes
        config.data.tokenizer = str(Path(arg, "tokenizer.json"))
    config.task.objective = "causal_lm"
    config.optimizer.update(dict(learning_rate=1e-3, warmup_steps=50, weight_decay=0.01))
    config.eval.update(dict(every=250, batch_size=16))
    config.checkpoint.every = 250
    return config
