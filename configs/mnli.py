"""Does the hypothesis follow from the premise? GLUE's MNLI, by fine-tuning BERT.

Command:  python train.py --config=configs/mnli.py --config.init_from=runs/wikipedia_bert
          --config.data.tokenizer=runs/wikipedia_bert/tokenizer.json
Data:     tfds build glue/mnli --file_format=array_record
Hardware: not yet run; meant for one accelerator
Time:     not yet run
Score:    not yet run: needs the data set
"""

from configs import sst2


def get_config(arg=None):
    config = sst2.get_config(arg)
    config.steps = 36_800  # three epochs of 392,702 pairs
    config.data.update(dict(name="glue/mnli", eval_split="validation_matched"))
    config.data.update(dict(text_field="premise", text_pair_field="hypothesis"))
    config.optimizer.warmup_steps = 3680
    config.eval.every = config.checkpoint.every = 4000
    return config
