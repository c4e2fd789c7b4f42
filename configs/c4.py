"""Pretraining on the news part of C4. The architecture chooses the objective.

Command:  python train.py --config=configs/c4.py            a Llama of 134M: causal LM
          python train.py --config=configs/c4.py:t5_small   T5: span corruption
          python train.py --config=configs/c4.py:bert_base  BERT: masked LM
Data:     tfds build c4/realnewslike --file_format=array_record, which filters Common Crawl with
          Apache Beam on a cluster (pip install 'tensorflow-datasets[c4]'); or the result of 15 GB:
          --config.data.source=huggingface --config.data.name=allenai/c4:realnewslike
Hardware: not yet run; meant for 8 accelerators
Time:     not yet run
Score:    not yet run: needs the data set
"""

from configs import architectures, default

OBJECTIVES = {"decoder": "causal_lm", "encoder_decoder": "span_corruption", "encoder": "masked_lm"}


def get_config(arg=None):
    config = default.get_config()
    config.steps = 100_000
    config.model.update(architectures.llama_style())
    config.model.update(dict(decoder_layers=12, width=768, heads=12, feed_forward=2048))
    config.model.update(dict(max_length=512, dtype="bfloat16"))
    architectures.choose(config.model, arg)
    config.data.update(dict(source="tfds", name="c4/realnewslike", kind="documents"))
    config.data.update(dict(tokenizer="bpe", tokenizer_size=32_000, batch_size=256))
    config.data.update(dict(length=512, encoder_length=512))
    config.task.objective = OBJECTIVES[config.model.family]
    if config.task.objective == "span_corruption":
        config.data.length = 114  # the decoder's part if 15% is masked in spans of 3
    config.optimizer.update(dict(learning_rate=6e-4, warmup_steps=2000, final_fraction=0.1))
    config.optimizer.update(dict(beta2=0.95, weight_decay=0.1))
    config.eval.update(dict(every=5000, batches=20))
    config.checkpoint.every = 5000
    return config
