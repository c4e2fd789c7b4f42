"""Keys of a published config.json that do not change the result; all other unread keys are refused.

HARMLESS has keys that no supported class reads in its forward pass. NEUTRAL has keys with values at
which a model computes the same as without the key. Keys of one architecture are in its own file. A
test sets each key to other values in transformers and compares the outputs.
"""

from collections.abc import Collection, Mapping
from typing import Any

from experiment.schema import ConfigError, did_you_mean

# Where a model comes from, which software wrote it, how to load it and what it returns.
# chunk_size_feed_forward splits the positions of a feed-forward layer, which are independent.
# is_encoder_decoder chooses classes for caches and for `generate`, and changes no forward pass.
_GENERIC = {
    "architectures", "model_type", "_name_or_path", "_model_name_or_path", "name_or_path", "name",
    "language", "author", "license", "_commit_hash", "transformers_version",
    "transformers.js_config", "tokenizer_class", "torch_dtype", "dtype", "use_bfloat16",
    "torchscript", "tf_legacy_loss", "xla_device", "return_dict", "use_return_dict",
    "output_attentions", "output_hidden_states", "output_past", "chunk_size_feed_forward",
    "is_encoder_decoder", "attn_implementation", "_attn_implementation",
    "_attn_implementation_autoset", "_attn_implementation_internal", "experts_implementation",
    "_experts_implementation", "_experts_implementation_internal", "unsloth_version",
    "unsloth_fixed",
}  # fmt: skip

# Class names; ids_and_labels.py reads them for classifiers.
_LABELS = {
    "id2label", "label2id", "num_labels", "_num_labels", "problem_type", "finetuning_task",
    "task_specific_params",
}  # fmt: skip

# Ids of special tokens; ids_and_labels.py reads the first four.
_IDS = {
    "pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "sep_token_id",
    "cls_token_id", "mask_token_id", "unk_token_id",
}  # fmt: skip

# Settings of `generate`; here they are flags of generate.py.
_GENERATION = {
    "assistant_confidence_threshold", "assistant_early_exit", "assistant_lookbehind",
    "bad_words_ids", "begin_suppress_tokens", "constraints", "diversity_penalty", "do_sample",
    "early_stopping", "encoder_no_repeat_ngram_size", "encoder_repetition_penalty",
    "epsilon_cutoff", "eta_cutoff", "exponential_decay_length_penalty",
    "force_bos_token_to_be_generated", "force_words_ids", "forced_bos_token_id",
    "forced_decoder_ids", "forced_eos_token_id", "guidance_scale", "length_penalty", "max_length",
    "max_new_tokens", "max_time", "min_length", "min_new_tokens", "min_p",
    "no_repeat_ngram_size", "num_assistant_tokens", "num_assistant_tokens_schedule",
    "num_beam_groups", "num_beams", "num_return_sequences", "output_logits", "output_scores",
    "penalty_alpha", "prefix", "remove_invalid_values", "renormalize_logits",
    "repetition_penalty", "return_dict_in_generate", "sequence_bias", "suppress_tokens",
    "target_lookbehind", "temperature", "top_k", "top_p", "typical_p", "use_cache",
}  # fmt: skip

# Keys that only training uses.
_TRAINING = {"gradient_checkpointing", "classifier_dropout", "save_step"}

HARMLESS = frozenset(_GENERIC | _LABELS | _IDS | _GENERATION | _TRAINING)

# Keys of all configs, or of related architectures, with the values that switch them off; null does
# so too. Granite's attention_multiplier is missing: it replaces the scale of the scores, so 1.0 is
# not neutral.
NEUTRAL: Mapping[str, tuple] = {
    # In all configs of transformers 4.
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (),
    "is_decoder": (False,),
    "pruned_heads": ({}, []),
    "tie_encoder_decoder": (False,),
    "position_embedding_type": ("absolute",),
    "per_layer_config": ({},),
    # Windows: Mistral, Qwen2, Gemma.
    "sliding_window": (),
    "use_sliding_window": (False,),
    "attention_window": (),
    # Multipliers and caps: Granite, Cohere, Gemma 2, OLMo.
    "embedding_multiplier": (1.0,),
    "residual_multiplier": (1.0,),
    "logits_scaling": (1.0,),
    "logit_scale": (1.0,),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "clip_qkv": (),
    # Parts that only other models have.
    "qk_norm": (False,),
    "use_qk_norm": (False,),
    "qkv_bias": (False,),
    "alibi": (False,),
    "parallel_attn": (False,),
    "use_parallel_residual": (False,),
    "partial_rotary_factor": (1.0,),
    "scale_attn_by_inverse_layer_idx": (False,),
}

MOST_NAMED = 40  # the most keys in one message
LONGEST_VALUE = 40  # the most characters of a value in a message


def leave_out(
    config: Mapping[str, Any], keys: Collection[str], path: str
) -> tuple[dict[str, Any], list[str]]:
    """The config without the keys of --ignore_keys, and log lines; refuses keys that it lacks."""
    absent = sorted(set(keys) - config.keys())
    if absent:
        raise ConfigError(
            f"--ignore_keys names {', '.join(absent)}, which {path} does not have."
            f"{did_you_mean(absent[0], config)} Remove it from the flag"
        )
    remaining = {key: value for key, value in config.items() if key not in keys}
    lines = [f"left out by --ignore_keys: {_named(config, key)}" for key in sorted(set(keys))]
    return remaining, lines


def not_harmless(
    config: Mapping[str, Any],
    read_keys: Collection[str],
    harmless: Collection[str],
    neutral: Mapping[str, tuple],
) -> list[str]:
    """The keys that nothing has read and that may change what the model computes, sorted."""
    neutral = {**NEUTRAL, **neutral}

    def is_neutral(key: str) -> bool:
        return key in neutral and (config[key] is None or _is_one_of(config[key], neutral[key]))

    known = HARMLESS | set(harmless) | set(read_keys)
    return sorted(key for key in config if key not in known and not is_neutral(key))


def _is_one_of(value: Any, values: tuple) -> bool:
    """Whether a value equals one of these; True does not equal 1."""
    return any(
        value == each and isinstance(value, bool) == isinstance(each, bool) for each in values
    )


def refusal(config: Mapping[str, Any], keys: list[str], path: str, model_type: str) -> str:
    """The error message for unknown keys."""
    shown = ", ".join(_named(config, key) for key in keys[:MOST_NAMED])
    more = f" and {len(keys) - MOST_NAMED} more" if len(keys) > MOST_NAMED else ""
    they, do = ("it", "does") if len(keys) == 1 else ("they", "do")
    return (
        f"{path}: {shown}{more} {'is' if len(keys) == 1 else 'are'} not known for "
        f"model_type={model_type} and may change what the model computes; if you know that "
        f"{they} {do} not, import without {they if they == 'it' else 'them'} by "
        f"--ignore_keys={','.join(keys[:MOST_NAMED])}"
    )


def _named(config: Mapping[str, Any], key: str) -> str:
    value = repr(config[key])
    return f"{key}={value if len(value) <= LONGEST_VALUE else f'{value[:LONGEST_VALUE]}…'}"
