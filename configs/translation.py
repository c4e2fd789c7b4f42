"""Translation of your own parallel text, such as Multi30k, with a small Transformer of 2017.

DIR holds train.en, train.de, validation.en and validation.de (or other names and languages). Line i
of one file translates line i of the other. The files may be gzipped, and in shards such as
train.part1.en and train.part1.de (docs/data.md says which).

Command:  python train.py --config=configs/translation.py --config.data.path=DIR
          with --config.data.source_language=de --config.data.target_language=en for the other
          direction, and --config.data.eval_split=val if the files are called val.en and val.de
Hardware: 2 CPU cores, shared with other work
Time:     14 min 34 s for 544 of the 3,000 steps and an evaluation, with
          --config.time_limit=13 --config.optimizer.warmup_steps=100 --config.eval.every=0
Score:    18.7 BLEU, 42.1 chrF on Multi30k's 1,014 validation captions, English to German, at
          step 544 of 3,000. configs/multi30k.py has the settings of a complete run: 39.3 BLEU
"""

from configs import architectures, default


def get_config(arg=None):
    config = default.get_config()
    config.steps = 3000
    config.model.update(architectures.transformer_style())
    config.model.update(dict(width=256, encoder_layers=3, decoder_layers=3, heads=4))
    # The paper's post-norm trains only with careful tuning at this size.
    config.model.update(dict(feed_forward=1024, norm_placement="pre"))
    config.model.update(dict(dropout_embedding=0.1, dropout_residual=0.2))
    architectures.choose(config.model, arg)
    config.data.update(dict(source="translation_files", source_language="en", target_language="de"))
    config.data.update(dict(tokenizer="bpe", tokenizer_size=8192))
    # Packed: a row of 128 holds about eight captions, a batch some 2,000 tokens in each language.
    config.data.update(dict(packing=True, batch_size=16, length=128, encoder_length=128))
    config.task.update(dict(objective="seq2seq", label_smoothing=0.1))
    config.optimizer.update(dict(learning_rate=1e-3, warmup_steps=400, beta2=0.98))
    config.eval.update(dict(every=500, batch_size=128, metrics=("bleu", "chrf")))
    return config
