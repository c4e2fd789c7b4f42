"""generation_config.json: how transformers generates text with a model.

generate.py takes such settings as flags. An import stores them for a later export, and names the
flags that have the same effect.
"""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pretrained import model_files
from pretrained.ids_and_labels import single_tokens

# Ids that our models store elsewhere, and keys that say nothing about the text.
EXCLUDED = (
    "pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id",
    "forced_bos_token_id", "transformers_version", "_from_model_config",
)  # fmt: skip
WITHOUT_EFFECT = (
    "use_cache", "return_dict_in_generate", "output_attentions", "output_hidden_states",
    "output_logits", "output_scores", "cache_implementation", "disable_compile",
    "num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold",
    "assistant_lookbehind", "target_lookbehind",
)  # fmt: skip
# transformers' defaults; settings that are not listed have the default None, which means no effect.
DEFAULTS = {
    "max_length": 20, "min_length": 0, "do_sample": False, "early_stopping": False, "num_beams": 1,
    "num_beam_groups": 1, "diversity_penalty": 0.0, "temperature": 1.0, "top_k": 50, "top_p": 1.0,
    "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0, "length_penalty": 1.0, "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0, "num_return_sequences": 1, "remove_invalid_values": False,
}  # fmt: skip
# Settings that only sampling uses, and settings that only beam search uses.
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")
BEAMS = ("length_penalty", "early_stopping", "num_beam_groups", "diversity_penalty")
# Settings whose flags of generate.py have the same name.
SAME = ("max_new_tokens", "repetition_penalty", "temperature", "top_k", "top_p", "min_p")
BAD_WORDS = "bad_words_ids"
LONGEST = 40  # the most characters of a value in a log line


def read(directory: Path) -> dict[str, Any]:
    """The settings in the directory's generation_config.json; {} if there is no such file."""
    if not (directory / model_files.GENERATION).is_file():
        return {}
    found = model_files.read_json(directory, model_files.GENERATION)
    return {key: value for key, value in found.items() if key not in EXCLUDED}


def describe(settings: Mapping[str, Any], *, family: str) -> str:
    """A line on what the settings change and on the flags of generate.py that do the same.

    "" if they change nothing.
    """
    samples, beams = settings.get("do_sample") is True, _number(settings.get("num_beams")) > 1
    active = {key: value for key, value in settings.items() if _has_effect(key, value)}
    idle = (() if samples else SAMPLING) + (() if beams else BEAMS)
    if _number(active.get("max_new_tokens")):
        idle += ("max_length",)
    active = {key: value for key, value in active.items() if key not in idle}
    if not active:
        return ""
    found, without = [], []
    for key, value in active.items():
        flag = _flag(key, value, family)
        # With beam search, generate.py neither samples nor penalises repetition.
        if beams and key in (*SAMPLING, "do_sample", "repetition_penalty"):
            flag = ""
        (found if flag else without).append(flag or _shown(key, value))
    if samples and not beams and settings.get("top_k") in (None, DEFAULTS["top_k"]):
        found.append(
            f"--top_k={DEFAULTS['top_k']}"
        )  # the default in transformers, not in generate.py
    line = (
        f"{model_files.GENERATION} asks for {', '.join(_shown(*each) for each in active.items())}"
    )
    parts = [f"generate.py takes {' '.join(found)}"] if found else []
    if without:
        parts.append(f"{', '.join(without)} {'has' if len(without) == 1 else 'have'} no flag here")
    return f"{line}: {'; '.join(parts)}"


def _has_effect(key: str, value: Any) -> bool:
    if key in WITHOUT_EFFECT or key.endswith("_token_id") or value in (None, [], {}):
        return False
    if key == BAD_WORDS and len(single_tokens(value)) == len(value):
        return False  # the tokenizer's record has them, and generate.py never writes them
    return value != DEFAULTS.get(key)


def _flag(key: str, value: Any, family: str) -> str:
    """The flag for a setting, or "". Length penalties have none: the formulas differ."""
    if key == "do_sample" and value is True:
        return "--method=sample"
    if key == "stop_strings":
        texts = [value] if isinstance(value, str) else value
        return " ".join(f"--stop={_quoted(str(text))}" for text in texts)
    if not _number(value):
        return ""
    if key == "num_beams":
        return f"--method=beam --beam_size={value}"
    if key == "num_return_sequences":
        return f"--num_outputs={value}"
    if key == "max_length" and family == "encoder_decoder":  # a decoder's counts the prompt
        return f"--max_new_tokens={max(1, value - 1)}"
    return f"--{key}={value}" if key in SAME else ""


def _quoted(text: str) -> str:
    """The text quoted for a shell, on one line."""
    if text.isprintable():
        return shlex.quote(text)
    return "$'{}'".format(text.encode("unicode_escape").decode().replace("'", r"\'"))


def _number(value: Any) -> float:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else 0


def _shown(key: str, value: Any) -> str:
    text = str(value) if isinstance(value, bool) else json.dumps(value)
    return f"{key}={text if len(text) <= LONGEST else text[:LONGEST] + '...'}"
