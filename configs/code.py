"""Code completion with a suffix: fill-in-the-middle on Python's documentation and standard library.

Half of the training rows end in their middle, in both orders. --config.task.fim_rate=0 trains the
same model from left to right only.

    python generate.py --workdir=runs/code --prompt='def area(width, height): return ' \
        --suffix=' * height'

Command:  python train.py --config=configs/code.py
          python benchmarks/hidden_lines.py --workdir=runs/code
Hardware: one core of two, shared with much other work
Time:     128 s of CPU time (19 min of wall time) for a smaller model and 300 of the 600 steps:
          --config.steps=300 --config.model.decoder_layers=3 --config.model.width=128
          --config.model.heads=4 --config.model.kv_heads=4 --config.model.feed_forward=344
          --config.data.length=256 --config.optimizer.warmup_steps=50
Score:    3.043 bits per byte from left to right on held-out files, and 3.049 with
          --config.task.fim_rate=0: filling in the middle does no harm. One seed. Of 200 hidden
          rests of lines none is restored (a 4-gram with a cache: 11.0%): far too short a run.
          The sizes below have not been run
"""

from configs import architectures, default


def get_config(arg=None):
    config = default.get_config()
    config.steps = 600
    config.model.update(architectures.llama_style())
    config.model.update(dict(decoder_layers=4, width=192, heads=6, kv_heads=6, feed_forward=512))
    architectures.choose(config.model, arg)
    config.data.update(dict(source="pydoc", batch_size=8, length=384))
    config.task.objective = "fill_in_middle"
    config.optimizer.update(dict(name="muon", learning_rate=3e-3, beta1=0.95, beta2=0.98))
    config.optimizer.update(dict(warmup_steps=100, weight_decay=0.1))
    config.eval.update(dict(every=300, batch_size=64))
    config.checkpoint.every = 300
    return config
