"""CIFAR-10, small photographs of ten kinds of things, with a small ViT.

Command:  python train.py --config=configs/cifar10.py
Data:     tfds build cifar10 --file_format=array_record
Hardware: not yet run; meant for one accelerator
Time:     not yet run
Score:    not yet run: needs the data set
"""

from configs import architectures, default


def get_config(arg=None):
    config = default.get_config()
    config.steps = 39_000  # 200 epochs of 50,000 images
    config.model.update(architectures.vit_style())
    config.model.update(dict(encoder_layers=6, width=256, heads=4, feed_forward=1024))
    config.model.update(dict(patch_size=4, dropout_residual=0.1))
    architectures.choose(config.model, arg)
    config.data.update(dict(source="tfds", name="cifar10", kind="images", eval_split="test"))
    config.data.update(dict(batch_size=256, crop_padding=4, flip=True))
    architectures.take_pixels(config.data, arg)
    config.task.update(dict(objective="classify_images", label_smoothing=0.1))
    config.optimizer.update(dict(learning_rate=1e-3, warmup_steps=2000, weight_decay=0.1))
    config.eval.update(dict(every=2000, batch_size=512))
    config.checkpoint.every = 2000
    return config
