"""Your own images in classes, such as MNIST, with a small ViT.

DIR is either MNIST's four files (gzipped or not), or folders of PNG and JPEG files:
DIR/train/CLASS/*.png and DIR/test/CLASS/*.png. If the images are not square or differ
in size, set --config.data.image_size. Large images need a larger --config.model.patch_size.

Command:  python train.py --config=configs/classify_images.py --config.data.path=DIR
Hardware: one CPU core, shared with other work
Time:     11 min 21 s of wall time, 8 min 12 s of CPU time
Score:    MNIST: 98.7% accuracy on its test images (9,874 of 10,000); other data: not yet run
"""

from configs import architectures, default


def get_config(arg=None):
    config = default.get_config()
    config.steps = 1500
    config.model.update(architectures.vit_style())
    config.model.update(dict(encoder_layers=4, width=64, heads=4, feed_forward=256, patch_size=4))
    architectures.choose(config.model, arg)
    config.data.update(dict(source="image_files", eval_split="test", batch_size=128))
    config.data.update(dict(image_mean=(0.5,), image_std=(0.5,), crop_padding=2))
    architectures.take_pixels(config.data, arg)
    config.task.update(dict(objective="classify_images", label_smoothing=0.1))
    config.optimizer.update(dict(name="muon", learning_rate=2e-3, beta1=0.95))
    config.optimizer.update(dict(warmup_steps=100, weight_decay=0.1))
    config.eval.update(dict(every=500, batch_size=500))
    return config
