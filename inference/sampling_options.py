"""The sampling options of the command line, validated."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from experiment.schema import (
    RUN_SCHEMES,
    Bounds,
    ConfigError,
    Count,
    NonNegativeFloat,
    PositiveFloat,
    Probability,
    build,
    path_problems,
)

# The bounds catch typing errors; training/device_memory.py estimates what fits into memory.
MOST_TOKENS = 2**24
RowCount = Annotated[int, Bounds(at_least=1, at_most=2**16)]  # outputs or beams of a prompt


@dataclasses.dataclass(frozen=True)
class SamplingOptions:
    """Each field is a flag of generate.py; its help text explains the field."""

    method: Literal["greedy", "beam", "sample"]
    max_new_tokens: Annotated[int, Bounds(at_least=0, at_most=MOST_TOKENS)]
    num_outputs: RowCount
    beam_size: RowCount
    length_penalty: NonNegativeFloat
    temperature: Annotated[float, Bounds(at_least=1e-6)]  # logits / 1e-38 overflow
    top_k: Count
    top_p: Annotated[float, Bounds(above=0, at_most=1)]
    min_p: Probability
    repetition_penalty: PositiveFloat
    seed: Annotated[int, Bounds(at_least=0, below=2**32)]  # jax truncates larger seeds
    stop: tuple[str, ...]
    prefix: str
    suffix: str
    slide: bool
    stream: bool
    draft_workdir: str
    draft_tokens: Annotated[int, Bounds(at_least=1, at_most=1000)]

    @property
    def rows_per_prompt(self) -> int:
        """Rows that a model call has for each prompt."""
        return self.beam_size if self.method == "beam" else self.num_outputs

    def problems(self) -> Iterator[str]:
        if self.method == "greedy" and self.num_outputs > 1:
            yield (
                f"num_outputs={self.num_outputs} does not go with --method=greedy, which has one "
                "output; choose --method=beam or --method=sample"
            )
        if self.method == "beam" and self.num_outputs > self.beam_size:
            yield (
                f"num_outputs={self.num_outputs} exceeds --beam_size={self.beam_size}, the number "
                "of outputs that beam search returns; raise --beam_size"
            )
        if "" in self.stop:
            yield "stop is empty, and every text contains the empty text; leave it out"
        if self.stream and self.num_outputs > 1:
            yield (
                f"stream shows one output as it is written, not --num_outputs={self.num_outputs}; "
                "leave one of them out"
            )
        yield from path_problems("draft_workdir", self.draft_workdir, RUN_SCHEMES)
        if self.draft_workdir:
            yield from self._draft_problems()

    def _draft_problems(self) -> Iterator[str]:
        if self.repetition_penalty != 1:
            yield (
                "repetition_penalty depends on all tokens so far, which a draft does not know yet; "
                "leave it or --draft_workdir out"
            )
        for name in ("slide", "stream"):
            if getattr(self, name):
                yield (
                    f"{name} does not go with --draft_workdir: drafted tokens come several at a "
                    "time and may be rejected; leave one of them out"
                )


DEFAULTS = SamplingOptions(
    method="greedy", max_new_tokens=0, num_outputs=1, beam_size=4, length_penalty=0.6,
    temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, seed=0, stop=(),
    prefix="", suffix="", slide=False, stream=False, draft_workdir="", draft_tokens=4,
)  # fmt: skip

NAMES = tuple(field.name for field in dataclasses.fields(SamplingOptions))

# Option -> the methods that use it. All methods use the options that are not listed.
METHODS_WITH = {
    **dict.fromkeys(("beam_size", "length_penalty"), ("beam",)),
    **dict.fromkeys(("temperature", "top_k", "top_p", "min_p", "seed"), ("sample",)),
    **dict.fromkeys(
        ("repetition_penalty", "stop", "stream", "draft_workdir", "draft_tokens"),
        ("greedy", "sample"),
    ),
}


def from_flags(given: Mapping[str, Any]) -> SamplingOptions:
    """Options from the flags that were given; refuses options without effect."""
    options, problems = build(SamplingOptions, {**dataclasses.asdict(DEFAULTS), **given}, "")
    if not problems:
        # A default value is allowed with every method.
        changed = [name for name in NAMES if getattr(options, name) != getattr(DEFAULTS, name)]
        problems = [
            f"{name} does not go with --method={options.method}; leave it out, or choose "
            + " or ".join(f"--method={method}" for method in METHODS_WITH[name])
            for name in changed
            if options.method not in METHODS_WITH.get(name, (options.method,))
        ]
        if "draft_tokens" in changed and not options.draft_workdir:
            problems.append(
                "draft_tokens needs a model that drafts them; name it with --draft_workdir=DIR"
            )
    if problems:
        # Problems begin with the name of an option, which is also the name of its flag.
        raise ConfigError([f"--{problem}" for problem in problems])
    return options
