"""The `data` section of a config."""

import dataclasses
from typing import Literal

from schema import Count, PositiveInt


@dataclasses.dataclass(frozen=True)
class DataConfig:
    source: Literal["dates", "pydoc", "names", "digits"]
    tokenizer: Literal["byte"]
    batch_size: PositiveInt
    length: PositiveInt
    encoder_length: PositiveInt
    prefetch: Count
