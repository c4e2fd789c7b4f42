"""Files with results: written in one step, and JSON without NaN."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def without_nan(value: Any) -> Any:
    """NaN and infinity as text, as in metrics.jsonl: JSON has no numbers for them."""
    if isinstance(value, Mapping):
        return {key: without_nan(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def write_text(path: Path, text: str) -> None:
    """Writes a file in one step: several processes may write it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
