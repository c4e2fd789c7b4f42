"""Prepares the data of a run: python prepare.py --config=configs/x.py --config.data.path=...

Trains the tokenizer, tokenizes all splits and plans the packing, as train.py does at its start;
train.py with the same config then finds everything in data.cache_dir. With --beam, an Apache Beam
pipeline tokenizes the text; its own options follow two dashes:

    python prepare.py --config=configs/x.py --beam -- --runner=FlinkRunner --flink_master=...
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from experiment import command_line, sections
from experiment.schema import ConfigError
from input_pipeline import pipeline
from input_pipeline.token_cache import TokenCache


def prepare(config: Mapping[str, Any], beam_options: Sequence[str] | None = None) -> str:
    """Fills the cache, and returns a report. With `beam_options`, Beam tokenizes the text."""
    start = time.perf_counter()
    experiment = sections.from_mapping(config)
    if beam_options is None:
        cache = TokenCache(experiment.data)
    else:
        from input_pipeline.beam_preparation import on_beam

        cache = TokenCache(experiment.data, on_beam(experiment.data, beam_options))
    data = pipeline.load(
        experiment.data,
        objective=experiment.task.objective,
        masking=experiment.masking,
        seed=experiment.run.seed,
        cache=cache,
    )
    seconds = time.perf_counter() - start
    lines = [f"{cache.place} is ready, after {seconds:.1f} s"]
    if data.tokenizer is not None:
        lines.append(f"tokenizer: {data.tokenizer.vocab_size:,} ids")
    for split, table in cache.tables:
        size = f"{len(table):,} entries, {table.tokens:,} tokens"
        lines.append(f"{split}: {size}, in {table.directory.name}/")
    if not cache.tables:
        lines.append(f"data.source={experiment.data.source} stores no text there")
    return "\n".join(lines)


def main(beam_options: list[str]) -> None:
    if beam_options and not BEAM.value:
        raise ConfigError(f"unexpected argument {beam_options[0]!r}; Beam's options need --beam")
    print(prepare(CONFIG.value.to_dict(), beam_options if BEAM.value else None))


if __name__ == "__main__":
    CONFIG = command_line.config_flag("configs/dates.py")
    BEAM = flags.DEFINE_bool("beam", False, "Tokenize with an Apache Beam pipeline.")
    command_line.launch(main, more_options=True)
