"""ImageNet's thousand classes with ViT-S/16, in 90 epochs, after big_vision's recipe.

Command:  python train.py --config=configs/imagenet.py
Data:     tfds build imagenet2012 --file_format=array_record, once the two archives of ILSVRC2012
          are in downloads/manual of the data directory
Hardware: not yet run; meant for 8 accelerators
Time:     not yet run
Score:    not yet run: needs the data set
"""

from configs import architectures, default


def get_config(arg=None):
    config = default.get_config()
    config.steps = 112_600  # 90 epochs of 1,281,167 images
    architectures.choose(config.model, "vit_s16")
    config.model.update(dict(class_token=False, pooling="mean", dtype="bfloat16"))
    architectures.choose(config.model, arg)
    config.data.update(dict(source="tfds", name="imagenet2012", kind="images", batch_size=1024))
    config.data.update(dict(image_size=224, image_mean=(0.5,), image_std=(0.5,)))
    architectures.take_pixels(config.data, arg)
    # Crops come from the central square, not the whole image, so they are larger than big_vision's.
    config.data.update(dict(crop_scale=0.25, flip=True, mixup=0.2))
    config.task.objective = "classify_images"
    # In big_vision, weight decay is 1e-4 times the schedule, not times the learning rate.
    config.optimizer.update(dict(learning_rate=1e-3, warmup_steps=10_000, weight_decay=0.1))
    config.eval.update(dict(every=5000, batch_size=1024, metrics=("top5_accuracy",)))
    config.checkpoint.every = 5000
    return config
