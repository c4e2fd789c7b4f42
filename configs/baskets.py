"""Completes baskets: which item goes with these? An encoder of sets, without positions.

PATH is a directory with train.tsv, validation.tsv and test.tsv; a line is a name, a tab and the
items, with spaces between them (docs/data.md).

Command:  python train.py --config=configs/baskets.py --config.data.path=PATH
          python benchmarks/item_neighbours.py --workdir=runs/baskets --split=test
          python generate.py --workdir=runs/baskets --prompt='libc6 libqt5core5a'
Hardware: one CPU core, shared with much other work
Time:     31 min 43 s of wall time; 3 min 59 s of CPU time for 1,300 of the 2,400 steps
Score:    what Debian packages depend on (17,827 baskets, 7,590 items), last item of 1,031 test
          baskets: hit@10 63.0%, NDCG@10 51.0%, MRR 48.2%. Item-to-item cosine has 64.6%, 46.2% and
          41.4%; popularity 23.5%, 17.0% and 15.9%. One seed. The aim was a hit@10 of 70%
"""

from configs import architectures, default


def get_config(arg=None):
    config = default.get_config()
    config.steps = 2400
    config.model.update(architectures.bert_style())
    config.model.update(dict(norm_placement="pre", embedding_norm=False, init_std=0.02))
    # A basket has no order.
    config.model.update(dict(position="none", token_types=0))
    config.model.update(dict(encoder_layers=1, width=128, heads=4, feed_forward=512))
    config.model.update(dict(dropout_embedding=0.1, dropout_residual=0.1))
    architectures.choose(config.model, arg)
    config.data.update(dict(source="item_files", tokenizer="item", batch_size=128))
    config.data.update(dict(length=50, buckets=(8, 12, 20)))
    config.task.update(dict(objective="masked_items", noise_rate=0.25))
    config.optimizer.update(dict(name="muon", learning_rate=3e-3, beta1=0.95, warmup_steps=200))
    config.optimizer.update(dict(weight_decay=0.1, decay_embeddings=True))
    config.eval.update(dict(every=400, batch_size=256, metrics=("hit@10", "ndcg@10", "mrr")))
    config.checkpoint.update(dict(every=400, best_metric="eval/validation/hit@10"))
    return config
