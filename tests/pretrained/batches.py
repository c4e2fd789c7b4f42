"""What transformers was given and answered, as our batches, without padding."""

import numpy as np


def our_batch(stored):
    given = {name.removeprefix("input/"): x for name, x in stored.items() if "input/" in name}
    if "pixel_values" in given:
        return {"images": given["pixel_values"].transpose(0, 2, 3, 1)}
    names = dict(
        input_ids="inputs", attention_mask="segment_ids", token_type_ids="token_types",
        position_ids="positions",
    )  # fmt: skip
    if "decoder_input_ids" in given:
        names = dict(
            input_ids="encoder_inputs", attention_mask="encoder_segment_ids",
            decoder_input_ids="inputs", decoder_attention_mask="segment_ids",
        )  # fmt: skip
    return {names[name]: array.astype(np.int32) for name, array in given.items()}


def parts_of(stored, prefix):
    return {name.removeprefix(prefix): x for name, x in stored.items() if name.startswith(prefix)}


def real(batch, name, array):
    """The entries that are no padding."""
    prefix = "encoder_" if name == "encoder" and "encoder_inputs" in batch else ""
    if name not in ("encoder", "decoder", "logits") or f"{prefix}segment_ids" not in batch:
        return array
    return array[batch[f"{prefix}segment_ids"] != 0] if array.ndim == 3 else array
