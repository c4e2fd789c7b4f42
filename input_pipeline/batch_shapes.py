"""The shapes and types of a batch, from the config alone: no data is read.

They come from running the objective on a made-up example.
"""

import numpy as np

from input_pipeline import task_spec
from input_pipeline.config import DataConfig, source_table
from input_pipeline.objectives.objective import Masking
from input_pipeline.rows import Fields, Row
from input_pipeline.sources.base import PATCHED
from input_pipeline.tokenizers.tokenizer import ByteTokenizer


def row_outline(
    data: DataConfig,
    *,
    objective: str,
    masking: Masking,
    image_shape: tuple[int, int, int] = (1, 1, 1),
) -> Fields:
    """One row of a training batch, with the right shapes and types and meaningless values.

    With `data.buckets` it has the longest length. Examples have two texts if
    `data.text_pair_field` is set. Whether the user's files hold pairs is known only when they are
    read; this function assumes single texts.
    """
    kind, tokenizer = data.example_kind, ByteTokenizer()
    outline = source_table()[data.source].outline
    text_pairs = kind == "questions" or (kind == "labelled" and bool(data.text_pair_field))
    chosen = task_spec.choose_task_spec(
        objective, kind, data, tokenizer, masking, text_pairs=text_pairs
    )
    row, rng = _example(image_shape), np.random.default_rng(0)
    if not text_pairs:
        del row["text_pair"]
    row |= outline(data) if outline else {}
    row["other"] = dict(row)
    if chosen.augment:
        row = chosen.augment(row, rng)
    fields = chosen.fields(row, rng)
    if kind in PATCHED:
        return fields
    layout = chosen.layout(data.length, data.encoder_length, packed=data.packing)
    return layout.row([fields])


def _example(image_shape: tuple[int, int, int]) -> Row:
    """Every field that an example of any kind may have."""
    text = np.full(2, ByteTokenizer.first_byte_id, np.int32)
    fields = ("text", "text_pair", "source", "target", "chat", "is_answer")
    fields += ("tags", "chosen_chat", "chosen_is_answer", "rejected_chat", "rejected_is_answer")
    image = np.zeros(image_shape, np.uint8)
    numbers = {"label": 0, "score": 0.0, "first": 0, "start": 0, "end": 0}
    return {**dict.fromkeys(fields, text), "sentences": [text] * 2, "image": image, **numbers}
