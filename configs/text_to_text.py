"""Several text-to-text tasks of your own, learnt together, with a small T5.

PATH is a directory with train.jsonl and validation.jsonl, with the keys task, inputs and targets;
they may be gzipped, and in shards such as train-00000-of-00004.jsonl. Or PATH is one such file, or
a glob; then a tenth of the inputs is held out (docs/data.md says how). Inputs should name the task,
as in "translate to German: ...". Tasks are mixed by size, or by
--config.data.mixture="(('summarize', 2.0), ('translate', 1.0))".

Command:  python train.py --config=configs/text_to_text.py --config.data.path=PATH
Hardware: 2 CPU cores, shared with much other work; meant for one accelerator
Time:     4 min 28 s of CPU time for 733 of the 5,000 steps, with a quarter of the batch size:
          --config.time_limit=11 --config.data.batch_size=4 --config.data.length=64
          --config.data.encoder_length=128 --config.optimizer.warmup_steps=50
Score:    6.66 nats a token (13.7% right) on 256 held-out synopses of Debian packages, from their
          descriptions; ROUGE-1 is 0.02: it runs, but has not learnt to summarize in this time
"""

from configs import architectures, default


def get_config(arg=None):
    config = default.get_config()
    config.steps = 5000
    config.model.update(architectures.t5_v1_1_style())
    config.model.update(dict(width=256, encoder_layers=4, decoder_layers=4, heads=4))
    config.model.update(dict(feed_forward=512, tie_output=True))
    config.model.update(dict(dropout_embedding=0.1, dropout_residual=0.1))
    architectures.choose(config.model, arg)
    config.data.update(dict(source="text_to_text_files", tokenizer="bpe", tokenizer_size=8192))
    config.data.update(dict(packing=True, batch_size=16, length=128, encoder_length=256))
    config.task.objective = "seq2seq"
    config.optimizer.update(dict(learning_rate=1e-3, warmup_steps=500, weight_decay=0.01))
    config.eval.update(dict(every=500, batch_size=64))
    return config
