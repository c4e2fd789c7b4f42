"""Your own texts in classes, such as sentences of film reviews, with a small encoder.

PATH is a directory with train.tsv and validation.tsv, whose lines are label, tab, text (for pairs
of texts, another tab and the second text), or train.jsonl and validation.jsonl with the keys label,
text and text_pair. They may be gzipped, and in shards such as train-00000-of-00004.tsv. Or PATH is
one such file, or a glob; then a tenth of the texts is held out (docs/data.md says how).

The settings suit a few thousand short texts in which words decide the class. If parts of words
decide, as in names, set --config.data.tokenizer=wordpiece. For many or long texts use a larger
model: --config.model.encoder_layers=4 --config.model.width=256. The run ends when accuracy has not
improved in four evaluations; evaluate.py and generate.py use its best step with --step=best.

This model has no published form: convert.py refuses to export it. A run with
--config=configs/classify_text.py:bert_style goes out as BertForSequenceClassification; its score is
not measured.

Command:  python train.py --config=configs/classify_text.py --config.data.path=PATH
          python benchmarks/bag_of_words.py --workdir=runs/classify_text --step=best --split=test
Hardware: 2 CPU cores, shared with other work
Time:     not measured with these settings; the runs ended at steps 350 to 450
Score:    Sentence polarity (for its source see configs/polarity.py), mean of three seeds: 76.8% of
          1,162 test sentences after training on 8,500; a bag of words has 77.0% (counts) and
          76.1% (tf-idf). With at most 20 words: 74.9% of 858 after 4,000; a bag of words has
          74.8% and 73.8%. See docs/results.md
"""

from configs import architectures, default


def get_config(arg=None):
    config = default.get_config()
    config.steps = 2000
    config.model.update(architectures.bert_style())
    # Mean pooling, pre-norm and small initial weights suit training from scratch on little text:
    # a word that occurs twice has little influence at first.
    config.model.update(dict(norm_placement="pre", embedding_norm=False, init_std=0.02))
    config.model.update(dict(position="rope", pooling="mean", pooler=False))
    config.model.update(dict(encoder_layers=1, width=64, heads=4, feed_forward=128))
    config.model.update(dict(dropout_embedding=0.5, dropout_residual=0.3))
    architectures.choose(config.model, arg)
    config.data.update(dict(source="labelled_text_files", batch_size=64, length=64))
    config.data.update(dict(tokenizer="word", tokenizer_size=32768, lowercase=True, bucket_count=3))
    config.task.update(dict(objective="classify_text", label_smoothing=0.1))
    # Decay of the embeddings prevents overfitting on rare words.
    config.optimizer.update(dict(learning_rate=3e-3, warmup_steps=30, weight_decay=1.0))
    config.optimizer.update(dict(decay_embeddings=True, ema_decay=0.98))
    if arg and not arg.endswith("_style"):
        # A published size, or a run with its tokenizer: undo the settings above, which are for a
        # small model and few words.
        config.data.update(dict(tokenizer="wordpiece", lowercase=False))
        config.optimizer.update(dict(learning_rate=1e-3, warmup_steps=100, weight_decay=0.1))
        config.optimizer.update(dict(decay_embeddings=False, ema_decay=0.0))
    config.eval.update(dict(every=50, patience=4, batch_size=256, metrics=("macro_f1",)))
    return config
