"""A language model of single news sentences: the One Billion Word benchmark, with GPT-2 small.

Command:  python train.py --config=configs/lm1b.py
Data:     tfds build lm1b --file_format=array_record
Hardware: not yet run; meant for 8 accelerators
Time:     not yet run
Score:    not yet run: needs the data set
"""

from configs import architectures, default


def get_config(arg=None):
    config = default.get_config()
    config.steps = 200_000
    architectures.choose(config.model, "gpt2")
    config.model.dtype = "bfloat16"
    architectures.choose(config.model, arg)
    config.data.update(dict(source="tfds", name="lm1b", kind="documents", eval_split="test"))
    config.data.update(dict(tokenizer="bpe", tokenizer_size=50_257))
    # Packed, because neighbouring sentences are unrelated.
    config.data.update(dict(packing=True, batch_size=512, length=128))
    config.task.objective = "causal_lm"
    config.optimizer.update(dict(learning_rate=6e-4, warmup_steps=2000, final_fraction=0.1))
    config.optimizer.update(dict(beta2=0.95, weight_decay=0.1))
    config.eval.update(dict(every=10_000, batch_size=512))
    config.checkpoint.every = 10_000
    return config
