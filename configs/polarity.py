"""Is this sentence of a film review positive or negative? An encoder on 9,600 sentences.

The corpus (Pang and Lee, 2005) is two files in Latin-1. This joins them into lines with label, tab
and text:

    (iconv -f latin1 -t utf-8 rt-polarity.pos | sed 's/^/positive\t/'
     iconv -f latin1 -t utf-8 rt-polarity.neg | sed 's/^/negative\t/') > polarity.tsv

A tenth of the sentences is held out, by a hash of the text.

Command:  python train.py --config=configs/polarity.py --config.data.path=polarity.tsv
          and, to start from masked-LM pretraining (configs/polarity_mlm.py):
          python train.py --config=configs/polarity.py --config.data.path=polarity.tsv
          --workdir=runs/polarity_tuned --config.init_from=runs/polarity_mlm
Hardware: 2 CPU cores
Time:     1 min 51 s of one core, shared with other work
Score:    75.4% of 1,066 held-out sentences; 75.2% from masked-LM pretraining
"""

from configs import architectures, default


def get_config(arg=None):
    config = default.get_config()
    config.steps = 600
    config.model.update(architectures.bert_style())
    # Mean pooling and pre-norm suit training from scratch on little text.
    config.model.update(dict(norm_placement="pre", embedding_norm=False, init_std=0.0))
    config.model.update(dict(position="rope", pooling="mean", pooler=False, token_types=0))
    config.model.update(dict(encoder_layers=2, width=128, heads=4, feed_forward=512))
    config.model.update(dict(dropout_embedding=0.3, dropout_residual=0.3))
    architectures.choose(config.model, arg)
    config.data.update(dict(source="labelled_text_files", batch_size=64, length=64))
    config.data.update(dict(tokenizer="wordpiece", tokenizer_size=4096, buckets=(20, 32)))
    config.task.update(dict(objective="classify_text", label_smoothing=0.1))
    config.optimizer.update(dict(learning_rate=1e-3, warmup_steps=100, weight_decay=0.1))
    config.eval.update(dict(every=300, batch_size=256, metrics=("macro_f1",)))
    config.checkpoint.every = 300
    return config
