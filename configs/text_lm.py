"""A language model of your own text, byte by byte, such as Tiny Shakespeare.

PATH is a text file, a directory or a glob. The last tenth of the text is held out, unless PATH is
a directory with train.txt and validation.txt, or shards of them. Files may be gzipped. For larger
texts use --config.data.tokenizer=bpe and a larger model.

Command:  python train.py --config=configs/text_lm.py --config.data.path=PATH
Hardware: 2 CPU cores, shared with much other work
Time:     10 min 24 s of CPU time for 570 of the 1,500 steps: it was stopped at step 402 and
          continued with --config.time_limit=13
Score:    1.591 nats a byte (2.30 bits) on the last tenth of Tiny Shakespeare
"""

from configs import architectures, default


def get_config(arg=None):
    config = default.get_config()
    config.steps = 1500
    config.model.update(architectures.gpt2_style())
    config.model.update(dict(decoder_layers=4, width=192, heads=6, feed_forward=768))
    config.model.update(dict(position="rope", dropout_residual=0.1))
    architectures.choose(config.model, arg)
    config.data.update(dict(source="text_files", batch_size=16, length=256))
    config.task.objective = "causal_lm"
    config.optimizer.update(dict(name="muon", learning_rate=3e-3, beta1=0.95, beta2=0.98))
    config.optimizer.update(dict(warmup_steps=100, weight_decay=0.1))
    config.eval.update(dict(every=250, batch_size=64))
    config.checkpoint.every = 250
    return config
