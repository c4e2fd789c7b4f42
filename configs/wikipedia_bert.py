"""BERT's pretraining, masked tokens and next sentences, on the English Wikipedia only.

Command:  python train.py --config=configs/wikipedia_bert.py
Data:     tfds build wikipedia/20230601.en --file_format=array_record, with Apache Beam
          (pip install 'tensorflow-datasets[wikipedia]')
Hardware: not yet run; meant for 16 accelerators
Time:     not yet run
Score:    not yet run: needs the data set
"""

from configs import architectures, default


def get_config(arg=None):
    config = default.get_config()
    config.steps = 1_000_000
    architectures.choose(config.model, "bert_base")
    config.model.dtype = "bfloat16"
    architectures.choose(config.model, arg)
    config.data.update(dict(source="tfds", name="wikipedia/20230601.en", kind="documents"))
    # The data set has one split.
    config.data.update(dict(train_split="train[:-5000]", eval_split="train[-5000:]"))
    config.data.update(dict(tokenizer="wordpiece", tokenizer_size=30_522))
    config.data.update(dict(batch_size=256, length=512))
    config.task.update(dict(objective="masked_lm", next_sentence=True))
    config.optimizer.update(dict(schedule="linear", learning_rate=1e-4, warmup_steps=10_000))
    config.optimizer.update(dict(epsilon=1e-6, weight_decay=0.01))
    config.eval.update(dict(every=10_000, batches=20))
    config.checkpoint.every = 10_000
    return config
