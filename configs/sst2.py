"""Is this sentence of a film review favourable? GLUE's SST-2, by fine-tuning BERT.

Command:  python train.py --config=configs/sst2.py --config.init_from=runs/wikipedia_bert
          --config.data.tokenizer=runs/wikipedia_bert/tokenizer.json
Data:     tfds build glue/sst2 --file_format=array_record
Hardware: not yet run; meant for one accelerator
Time:     not yet run
Score:    not yet run: needs the data set
"""

from configs import architectures, default


def get_config(arg=None):
    config = default.get_config()
    config.steps = 6300  # three epochs of 67,349 sentences
    architectures.choose(config.model, "bert_base")
    architectures.choose(config.model, arg)
    config.data.update(dict(source="tfds", name="glue/sst2", kind="labelled"))
    config.data.update(dict(text_field="sentence", batch_size=32, length=128))
    config.data.update(dict(tokenizer="wordpiece", tokenizer_size=30_522))
    config.task.objective = "classify_text"
    config.optimizer.update(dict(schedule="linear", learning_rate=2e-5, warmup_steps=630))
    config.optimizer.update(dict(epsilon=1e-6, weight_decay=0.01))
    config.eval.update(dict(every=1000, batch_size=128))
    config.checkpoint.every = 1000
    return config
