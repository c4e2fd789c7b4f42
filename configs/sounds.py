"""Sounds in classes, such as spoken digits, with a small ViT on spectrograms.

DIR/train/CLASS/*.wav, DIR/validation/CLASS/*.wav and DIR/test/CLASS/*.wav (docs/data.md). This
makes such a directory: espeak-ng speaks the digits in six languages, and the voices of validation
and test are not those of training.

          python benchmarks/spoken_digits.py --to=DIR

Command:  python train.py --config=configs/sounds.py --config.data.path=DIR
          python evaluate.py --workdir=runs/sounds --split=test
Hardware: one CPU core, shared with much other work
Time:     20 min 57 s of wall time, 2 min 54 s of CPU time; the sounds: about 5 min
Score:    95.4% of 1,800 test sounds (10 voices), 97.9% of 900 validation sounds (5 voices); one
          seed. With 600 steps, 90.2% in validation. The aim was 95%
"""

from configs import architectures, default


def get_config(arg=None):
    config = default.get_config()
    config.steps = 1200
    config.model.update(architectures.vit_style())
    config.model.update(dict(encoder_layers=4, width=64, heads=4, feed_forward=256, patch_size=16))
    architectures.choose(config.model, arg)
    config.data.update(dict(source="sound_files", batch_size=64))
    config.task.update(dict(objective="classify_sounds", label_smoothing=0.1))
    config.optimizer.update(dict(name="muon", learning_rate=2e-3, beta1=0.95))
    config.optimizer.update(dict(warmup_steps=100, weight_decay=0.1))
    config.eval.update(dict(every=400, batch_size=100))
    return config
