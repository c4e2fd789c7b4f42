"""English to German on Multi30k's image captions, with a small Transformer.

DIR holds the raw text: train.en.gz, train.de.gz, val.en.gz, val.de.gz, test_2016_flickr.en.gz and
test_2016_flickr.de.gz, gzipped or not.

Command:  python train.py --config=configs/multi30k.py --config.data.path=DIR
          python evaluate.py --workdir=runs/multi30k --split=test_2016_flickr
Hardware: 2 CPU cores
Time:     108 min on one of the cores, with other work on the other
Score:    39.3 BLEU on test_2016_flickr with a beam of 4 (docs/results.md), 2.1 million parameters
"""

from configs import architectures, default


def get_config(arg=None):
    config = default.get_config()
    config.steps = 4000
    config.model.update(architectures.transformer_style())
    config.model.update(dict(width=128, encoder_layers=4, decoder_layers=4, heads=4))
    config.model.update(dict(feed_forward=256, norm_placement="pre"))
    # 29,000 pairs are few: less dropout leads to overfitting.
    config.model.update(dict(dropout_embedding=0.3, dropout_residual=0.3))
    architectures.choose(config.model, arg)
    config.data.update(dict(source="translation_files", source_language="en", target_language="de"))
    config.data.update(dict(eval_split="val", tokenizer="bpe", tokenizer_size=6000))
    # Packed: a row of 128 holds about eight captions, a batch some 4,000 tokens in each language.
    config.data.update(dict(packing=True, batch_size=32, length=128, encoder_length=128))
    config.task.update(dict(objective="seq2seq", label_smoothing=0.1))
    config.optimizer.update(dict(learning_rate=5e-3, warmup_steps=1000, beta2=0.98))
    config.eval.update(dict(every=1000, batch_size=128, metrics=("bleu", "chrf")))
    config.checkpoint.update(dict(every=250, keep=8))
    return config
