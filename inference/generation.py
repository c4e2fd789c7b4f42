"""Generates tokens after prompts with a model; compiles once per shape."""

import functools
from collections.abc import Iterator

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax import Array
from jax.stages import Compiled

from experiment.schema import ConfigError
from inference.beam_search import Beams, beam_search
from inference.cpu_layout import decoding_options, decoding_order, lay_out, reading, restore
from inference.decoding import GREEDY, Decode, Ends, Progress, Sampling, advance, begin, repeat_rows
from inference.speculative_decoding import Speculated, speculate
from model.config import TransformerConfig
from model.kv_cache import Cache, empty_cache


@flax.struct.dataclass
class Prompts:
    """Prompts, one per row, with padding after the text."""

    tokens_bt: Array  # the decoder's input: at least one token, such as the start of a sequence
    lengths_b: Array
    source_bs: Array | None = None  # the encoder's input
    source_segments_bs: Array | None = None


class Generator:
    """Generates up to `steps` tokens after prompts.

    Methods take parameters as `lay_out` returns them and, for sampling, one random key per output
    row. If the cache has fewer `slots` than prompt and steps need, it drops its oldest tokens.
    Prompts of the same padded length share a compilation.
    """

    def __init__(
        self,
        model: nn.Module,
        config: TransformerConfig,
        ends: Ends,
        *,
        steps: int,
        rows: int,  # per model call: prompts times beams or outputs
        slots: int = 0,  # of the cache; 0: as many as needed
        bidirectional_prompt: bool = False,  # every prompt token attends to all others (prefix LM)
        sampling: Sampling = GREEDY,
    ):
        self.config, self.steps = config, steps
        self._model, self._ends, self._sampling = model, ends, sampling
        self._slots, self._bidirectional_prompt = slots, bidirectional_prompt
        self.order = order = decoding_order(rows)
        jit = functools.partial(jax.jit, compiler_options=decoding_options(rows))
        self.lay_out = jax.jit(lambda params: lay_out(params, config, order))
        self._begin = jit(self._begin, static_argnames="outputs")
        self._advance = jit(self._advance, donate_argnames="progress")
        self.search = jit(self._search, static_argnames="beams")
        self._speculate = jit(self._speculate, static_argnames=("drafter", "ahead"))

    def sequences(
        self, params: dict, prompts: Prompts, keys_b: Array | None = None, *, outputs: int = 1
    ) -> Array:
        """Generated tokens (B * outputs, steps), the outputs of one prompt next to each other."""
        *_, tokens_bt = self.stream(params, prompts, keys_b, outputs=outputs, every=self.steps)
        return tokens_bt

    def stream(
        self,
        params: dict,
        prompts: Prompts,
        keys_b: Array | None = None,
        *,
        outputs: int = 1,
        every: int,
    ) -> Iterator[Array]:
        """Yields the tokens of `sequences` so far, after every `every` new ones."""
        progress = self._begin(params, prompts, outputs=outputs)
        rest = repeat_rows(outputs, (prompts.lengths_b, prompts.source_segments_bs))
        for until in range(every, self.steps + every, every):
            until = min(until, self.steps)
            progress = self._advance(params, progress, *rest, keys_b, until=until)
            # A copy, because the next call donates `progress`.
            yield jnp.copy(progress.tokens_bt)
            if until < self.steps and bool(progress.ended_b.all()):
                return

    def compiled(self, params: dict, prompts: Prompts) -> tuple[Compiled, Compiled]:
        """Compiles the two programs of `stream`, prefill and decoding, from shapes alone.

        `params` are the shapes and shardings of the model's parameters.
        """

        def results(lowered, compiled):
            return jax.tree.map(_with_sharding, lowered.out_info, compiled.output_shardings)

        laid_out = self.lay_out.lower(params)
        params = results(laid_out, laid_out.compile())
        lowered_prefill = self._begin.lower(params, prompts, outputs=1)
        prefill = lowered_prefill.compile()
        decoding = self._advance.lower(
            params,
            results(lowered_prefill, prefill),
            prompts.lengths_b,
            prompts.source_segments_bs,
            None,
            until=jax.ShapeDtypeStruct((), jnp.int32),
        )
        return prefill, decoding.compile()

    def speculate(
        self,
        params: dict,
        drafter: "Generator",
        draft_params: dict,
        prompts: Prompts,
        keys_b: Array | None = None,
        *,
        ahead: int,
    ) -> Speculated:
        """Generates as `sequences` does; a smaller model with the same tokenizer drafts the tokens.

        `drafter` drafts `ahead` tokens per round.
        """
        if self._sampling.repetition_penalty != 1:
            raise ConfigError(
                f"repetition_penalty={self._sampling.repetition_penalty} depends on tokens that "
                "are only drafted; with a draft model set it to 1"
            )
        needed = self.slots(prompts) + ahead
        slots = min(self._slots or needed, drafter._slots or needed)
        if slots < needed:
            raise ConfigError(
                f"a cache of {slots} slots drops old tokens, so drafts cannot be taken back; "
                f"with a draft model give it {needed}, or 0 for as many as are needed"
            )
        return self._speculate(params, draft_params, prompts, keys_b, drafter=drafter, ahead=ahead)

    def slots(self, prompts: Prompts, beams: int = 1) -> int:
        """The cache slots that the prompt, shared by all beams, and the tokens after it need."""
        return prompts.tokens_bt.shape[1] + beams * self.steps

    def _begin(self, params: dict, prompts: Prompts, outputs: int) -> Progress:
        needed = self.slots(prompts)
        is_sliding = 0 < self._slots < needed
        slots = self._slots or needed
        logits_bv, cache = self._prefill(params, prompts, slots, keep_tokens=is_sliding)
        occurred_bv = None
        if self._sampling.repetition_penalty != 1:
            inside_bt = jnp.arange(prompts.tokens_bt.shape[1]) < prompts.lengths_b[:, None]
            tokens_bt = jnp.where(inside_bt, prompts.tokens_bt, -1)  # one_hot gives zeros for -1
            occurred_bv = jax.nn.one_hot(tokens_bt, logits_bv.shape[1], dtype=bool).any(axis=1)
        logits_bv, cache, occurred_bv = repeat_rows(outputs, (logits_bv, cache, occurred_bv))
        pad_id = self._ends.pad_id
        return begin(logits_bv, cache, steps=self.steps, pad_id=pad_id, occurred_bv=occurred_bv)

    def _advance(
        self,
        params: dict,
        progress: Progress,
        positions_b: Array,
        source_segments_bs: Array | None,
        keys_b: Array | None,
        until: Array,
    ) -> Progress:
        return advance(
            self._decoder(params, source_segments_bs), progress, positions_b, keys_b,
            until=until, sampling=self._sampling, ends=self._ends,
        )  # fmt: skip

    def _search(self, params: dict, prompts: Prompts, *, beams: int, alpha: Array) -> Beams:
        """Finds the best `beams` sequences; `alpha` is the exponent of the length penalty."""
        stops = self._ends.stops
        if longer := [stop for stop in stops if len(stop) > 1]:
            raise ConfigError(
                f"beam search ends at single tokens, not at sequences such as {longer[0]}; leave "
                "them out, or decode greedily or by sampling"
            )
        # Tokens outside the window are masked, but stay in their slots.
        slots = self.slots(prompts, beams)
        logits_bv, cache = self._prefill(params, prompts, slots, keep_tokens=True)
        return beam_search(
            self._decoder(params, prompts.source_segments_bs),
            logits_bv, prompts.lengths_b, cache,
            beams=beams, steps=self.steps, alpha=alpha,
            eos_id=self._ends.eos_id, pad_id=self._ends.pad_id,
            prompt_slots=prompts.tokens_bt.shape[1], window=self._slots,
            more_eos_ids=[id for (id,) in stops],
        )  # fmt: skip

    def _speculate(
        self,
        params: dict,
        draft_params: dict,
        prompts: Prompts,
        keys_b: Array | None,
        drafter: "Generator",
        ahead: int,
    ) -> Speculated:
        slots = self.slots(prompts) + ahead
        logits_bv, cache = self._prefill(params, prompts, slots, keep_tokens=True)
        _, draft_cache = drafter._prefill(draft_params, prompts, slots, keep_tokens=True)
        return speculate(
            self._decoder(params, prompts.source_segments_bs),
            drafter._decoder(draft_params, prompts.source_segments_bs),
            logits_bv, prompts.lengths_b, cache, draft_cache, keys_b,
            ahead=ahead, steps=self.steps, sampling=self._sampling, ends=self._ends,
        )  # fmt: skip

    def _prefill(
        self, params: dict, prompts: Prompts, slots: int, *, keep_tokens: bool
    ) -> tuple[Array, Cache]:
        """The logits of the token after each prompt, and a cache that holds the prompts."""
        batch, length = prompts.tokens_bt.shape
        # Align prompts to the right, so that all rows continue in the same slot.
        positions_bt = jnp.arange(length, dtype=jnp.int32) - (length - prompts.lengths_b[:, None])
        inside_bt = positions_bt >= 0
        positions_bt = jnp.maximum(positions_bt, 0)
        tokens_bt = jnp.take_along_axis(prompts.tokens_bt, positions_bt, axis=1)
        given = dict(segments_bt=inside_bt.astype(jnp.int32), last_only=True)
        if self._bidirectional_prompt:
            given["prefix_bt"] = inside_bt
        if 0 < self._slots < length:
            raise ConfigError(
                f"a cache of {self._slots} slots cannot hold prompts of {length} tokens; "
                "give it at least as many, or shorten the prompts"
            )
        source_slots = 0
        if prompts.source_bs is not None:
            source_slots = prompts.source_bs.shape[1]
            given["source_bsd"] = self._model.apply(
                {"params": restore(params)},
                prompts.source_bs,
                segments_bt=prompts.source_segments_bs,
                method="encode",
            )
        cache = empty_cache(self.config, batch, slots, source_slots, keep_tokens=keep_tokens)
        decode = self._decoder(params, prompts.source_segments_bs)
        logits_b1v, cache = decode(tokens_bt, positions_bt, cache, **given)
        return logits_b1v[:, 0], cache

    def _decoder(self, params: dict, source_segments_bs: Array | None) -> Decode:
        """The model as the function `decode` that decoding, beam search and speculation take."""

        def decode(tokens_bt, positions_bt, cache, **options):
            with reading(self.order):
                logits_btv, cache = self._model.apply(
                    {"params": restore(params)},
                    tokens_bt,
                    positions_bt=positions_bt,
                    source_segments_bs=source_segments_bs,
                    cache=cache,
                    method="decode",
                    **options,
                )
            if self._ends.banned:
                logits_btv = logits_btv.at[..., jnp.array(self._ends.banned)].set(-jnp.inf)
            return logits_btv, cache

        return decode


def _with_sharding(shape: jax.ShapeDtypeStruct, sharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)
