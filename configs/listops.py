"""The value of nested lists of digits, ">29<47]0]" -> 9: an encoder with ten classes.

Command:  python train.py --config=configs/listops.py
          longer rows, not yet run: --config.data.length=512 --config.data.options.max_length=510
          --config.data.options.depth=6
Hardware: 2 CPU cores
Time:     11 min of CPU time, 23 min of wall time on a shared machine
Score:    52.2% held-out accuracy; guessing gets 10%, and symbol counts with the first operator 28%
          (tests/input_pipeline/sources/embedded/test_listops.py). It learns nesting but not
          addition. Of the first 1,000 held-out lists, it gets 86% of those without a sum right,
          and 12% of those whose outermost operator is a sum
"""

import ml_collections

from configs import architectures, default


def get_config(arg=None):
    config = default.get_config()
    config.steps = 2500
    config.model.update(architectures.bert_style())
    config.model.update(dict(norm_placement="pre", embedding_norm=False, init_std=0.0))
    config.model.update(dict(position="rope", token_types=0, pooling="first", pooler=False))
    config.model.update(dict(encoder_layers=4, width=128, heads=4, feed_forward=512))
    config.model.rope_theta = 100.0  # lists are short: higher frequencies tell neighbours apart
    architectures.choose(config.model, arg)
    config.data.update(dict(source="listops", batch_size=64, length=32))
    bounds = dict(depth=3, arguments=3, min_length=4, max_length=30)
    config.data.options = ml_collections.ConfigDict(bounds)
    config.task.objective = "classify_text"
    config.optimizer.update(dict(name="muon", learning_rate=3e-3, beta1=0.95))
    config.optimizer.update(dict(warmup_steps=100, weight_decay=0.1))
    config.eval.update(dict(every=500, batch_size=200))
    return config
