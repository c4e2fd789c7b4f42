"""Fiddle tunes in ABC notation, byte by byte: a small decoder.

PATH is a directory with train.txt and validation.txt, plain or gzip, with a blank line between
tunes. A prompt such as 'X: 1' begins a new tune, and --stop ends it at the blank line:

    python generate.py --workdir=runs/tunes --method=sample --temperature=0.8 --prompt='X: 1' \
        --max_new_tokens=800 --slide --stop=$'\n\n'

Command:  python train.py --config=configs/tunes.py --config.data.path=PATH
Hardware: not yet run
Time:     not yet run
Score:    not yet run. On the same 43,286 bytes, xz has 2.17 bits per byte, a 6-gram 2.55:
          python benchmarks/text_compression.py --path=PATH
"""

from configs import architectures, default


def get_config(arg=None):
    config = default.get_config()
    config.steps = 1500
    config.model.update(architectures.llama_style())
    config.model.update(dict(decoder_layers=4, width=192, heads=6, kv_heads=6, feed_forward=512))
    config.model.update(dict(dropout_residual=0.1))
    architectures.choose(config.model, arg)
    config.data.update(dict(source="text_files", batch_size=16, length=384))
    config.task.objective = "causal_lm"
    config.optimizer.update(dict(name="muon", learning_rate=3e-3, beta1=0.95, beta2=0.98))
    config.optimizer.update(dict(warmup_steps=100, weight_decay=0.1))
    config.eval.update(dict(every=250, batch_size=64))
    config.checkpoint.every = 250
    return config
