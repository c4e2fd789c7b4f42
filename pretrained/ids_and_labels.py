"""Reads special ids and class names from a published config.json, by transformers' rules."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from experiment.schema import ConfigError
from pretrained.architecture import Architecture, Head, PublishedConfig, Specials

CLASSIFIES = ("classify_text", "classify_images", "classify_tokens")
MOST_LABELS = 2**20  # the largest number of classes that is accepted


def without_aliases(
    config: Mapping[str, Any], architecture: Architecture, path: str
) -> dict[str, Any]:
    """The config with the values of aliases under the keys that they stand for.

    Raises ConfigError if a key and its alias have different values.
    """
    named = dict(config)
    for alias, key in architecture.aliases.items():
        value = config.get(alias)
        if value is None:
            continue
        if named.get(key) not in (None, value):
            raise ConfigError(
                f"{path}: {alias}={value!r} and {key}={named[key]!r} are two names of one number; "
                "correct the wrong one, or leave it out with --ignore_keys"
            )
        named[key] = value
    return named


def read_specials(
    options: PublishedConfig,
    architecture: Architecture,
    model: Mapping[str, Any],
    notes: list[str],
    generation: PublishedConfig | None = None,
) -> Specials:
    """Reads the special ids; appends warnings to `notes`.

    `generation` is generation_config.json, if there is one.
    """

    def read_ids(key: str, options: PublishedConfig = options) -> list[int]:
        ids = options.get(key, None)
        ids = ids if isinstance(ids, list) else [ids]  # several ids may end a text
        for id in ids:
            if id is not None and type(id) is not int:
                options.refuse(key, id, "an id must be a whole number from 0 on")
        size = model.get("vocab_size", 2**31)
        inside = [id for id in ids if id is not None and 0 <= id < size]
        if not inside and any(id is not None for id in ids):
            # As in transformers. Small test models often have the ids of a large model.
            notes.append(
                f"{key}={ids[0] if len(ids) == 1 else ids} is not an id of a vocabulary of {size}: "
                "read as missing, so that the tokenizer's own id is used"
            )
        return inside

    def read_id(key: str) -> int | None:
        return next(iter(read_ids(key)), None)

    pad, bos, eos = read_id("pad_token_id"), read_id("bos_token_id"), read_ids("eos_token_id")
    if generation is not None and (ends := read_ids("eos_token_id", generation)):
        # As in transformers, generation_config.json takes precedence.
        eos = [id for id in eos[:1] if id in ends] + [id for id in ends if id not in eos[:1]]
    # As in transformers, config.json counts only without generation_config.json.
    forcing = options if generation is None else generation
    forced_bos = next(iter(read_ids("forced_bos_token_id", forcing)), None)
    if generation is None and options.get("force_bos_token_to_be_generated") is True:
        forced_bos = bos
    specials = Specials(
        pad=pad,
        bos=bos,
        eos=next(iter(eos), None),
        decoder_start=read_id("decoder_start_token_id"),
        more_eos=tuple(dict.fromkeys(eos[1:])),
        forced_bos=forced_bos,
        forced_eos=not set(eos).isdisjoint(read_ids("forced_eos_token_id", forcing)),
        banned=tuple(id for id in single_tokens(forcing.get("bad_words_ids")) if id not in eos),
    )
    if architecture.style.get("family") == "encoder_decoder" and specials.decoder_start is None:
        # T5's config has no such key: the padding token begins an output.
        specials = dataclasses.replace(specials, decoder_start=specials.pad)
    return specials


def single_tokens(bad_words: Any) -> list[int]:
    """The ids in bad_words_ids that are words of one token; [] if it has another form."""
    words = bad_words if isinstance(bad_words, list) else []
    words = [word for word in words if isinstance(word, list) and len(word) == 1]
    return [id for (id,) in words if type(id) is int and id >= 0]


def read_labels(options: PublishedConfig, head: Head) -> tuple[Head, tuple[str, ...]]:
    """The head and the class names, () without classes. A single label stands for a regression.

    As in transformers, num_labels overrides id2label.
    """
    if head.objective not in CLASSIFIES:
        return head, ()
    named, count = options.get("id2label"), options.get("num_labels")
    if count is not None and (type(count) is not int or not 1 <= count <= MOST_LABELS):
        options.refuse(
            "num_labels", count, f"it must be a number of classes from 1 to {MOST_LABELS:,}"
        )
    if named is not None and not isinstance(named, dict):
        options.refuse("id2label", named, "it must be an object that maps class numbers to names")
    if named is None or count not in (None, len(named)):
        count = count or min(max(options.get("_num_labels", 2), 1), MOST_LABELS)
        named = {str(number): f"LABEL_{number}" for number in range(count)}
    kind = options.get("problem_type")
    is_single = len(named) == 1
    if is_single and head.objective == "classify_text" and kind in (None, "regression"):
        return dataclasses.replace(head, objective="regress_text"), ()
    if is_single or kind == "regression":
        options.refuse(
            "problem_type" if kind == "regression" else "id2label",
            kind or named,
            "a regression has one label, and it is about texts",
        )
    if kind not in (None, "single_label_classification"):
        options.refuse(
            "problem_type", kind, "only heads that choose one of several classes are supported"
        )
    if sorted(named) != sorted(map(str, range(len(named)))):
        options.refuse("id2label", named, "classes must be numbered from 0 on")
    return head, tuple(str(named[str(number)]) for number in range(len(named)))
