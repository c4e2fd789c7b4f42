"""Forecasts a time series: quantiles of its next values, from patches of the last ones.

FILE is a CSV with a heading, a column of times and one of numbers (docs/data.md). This takes one
from the package statsmodels: weekly CO2 at Mauna Loa, 1958 to 2001, with gaps.

          pip download --no-deps statsmodels && unzip -p statsmodels-*.whl '*/co2/co2.csv' > co2.csv

Command:  python train.py --config=configs/series.py --config.data.path=co2.csv
          python evaluate.py --workdir=runs/series --split=test
          python benchmarks/series_baselines.py --workdir=runs/series --split=test --period=52
          python generate.py --workdir=runs/series --prompt=co2.csv
Hardware: one CPU core, shared with much other work
Time:     7 min 55 s of wall time, 1 min 9 s of CPU time
Score:    CO2, test split, two seeds: pinball loss 0.141 and 0.140 ppm, error of the median 0.444
          and 0.437 ppm. A linear model: 0.149 and 0.463; seasonal naive 0.369 and 1.693, with drift
          0.216 and 0.679. On the validation split the linear model is better: 0.128 and 0.406
          against 0.161 and 0.496 (seed 0). The settings were not tuned
"""

from configs import architectures, default


def get_config(arg=None):
    config = default.get_config()
    config.steps = 1500
    config.model.update(architectures.vit_style())
    config.model.update(dict(encoder_layers=2, width=64, heads=4, feed_forward=256, patch_size=4))
    config.model.update(dict(dropout_residual=0.1))
    architectures.choose(config.model, arg)
    # Two years to read, half a year to forecast
    config.data.update(dict(source="series_files", length=104, batch_size=64, eval_share=0.15))
    config.data.options = dict(horizon=26, longest_gap=20)
    config.task.update(dict(objective="forecast"))
    config.optimizer.update(dict(name="adamw", learning_rate=1e-3))
    config.optimizer.update(dict(warmup_steps=100, weight_decay=0.1))
    config.eval.update(dict(every=300, batch_size=100))
    return config
