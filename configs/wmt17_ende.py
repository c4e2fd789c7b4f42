"""English to German, WMT 2017, with the base model and recipe of the 2017 paper.

Command:  python train.py --config=configs/wmt17_ende.py
Data:     tfds build wmt17_translate/de-en --file_format=array_record
Hardware: not yet run; meant for 8 accelerators
Time:     not yet run
Score:    not yet run: needs the data set
"""

from configs import architectures, default


def get_config(arg=None):
    config = default.get_config()
    config.steps = 100_000
    architectures.choose(config.model, "transformer_base")
    config.model.dtype = "bfloat16"
    architectures.choose(config.model, arg)
    config.data.update(dict(source="tfds", name="wmt17_translate/de-en", kind="pairs"))
    config.data.update(dict(source_language="en", target_language="de"))
    config.data.update(dict(tokenizer="bpe", tokenizer_size=32_000))
    # Packed rows are nearly full: about the paper's 25,000 target tokens in a step.
    config.data.update(dict(packing=True, batch_size=96, length=256, encoder_length=256))
    config.task.update(dict(objective="seq2seq", label_smoothing=0.1))
    config.optimizer.update(dict(name="adam", beta1=0.9, beta2=0.98, epsilon=1e-9, clip_norm=0.0))
    config.optimizer.update(dict(schedule="inverse_sqrt", learning_rate=1.0, warmup_steps=4000))
    config.eval.update(dict(every=5000, batch_size=256, metrics=("bleu", "chrf")))
    config.checkpoint.every = 5000
    return config
