"""Model sizes inferred from the data, and checks that data and model fit each other."""

import dataclasses
import re
import reprlib
from pathlib import Path

from checkpointing.loaded_run import LoadedRun
from experiment.schema import ConfigError
from input_pipeline.pipeline import Data
from input_pipeline.tokenizers.tokenizer import Tokenizer
from model.config import TransformerConfig
from model.positions import ABSOLUTE_POSITIONS
from storage.hub import is_hub_address


def fit_to_data(model: TransformerConfig, data: Data, init_from: str = "") -> TransformerConfig:
    """Returns the model's config with the sizes that depend on the data.

    `init_from` is the run to start from, for error messages.
    """
    sizes = {"num_classes": len(data.labels)}
    if data.tokenizer is not None:
        sizes["vocab_size"] = data.tokenizer.vocab_size
        sizes["separator_id"] = data.tokenizer.sep_id or 0
        if model.needs_separator and not (model.separator_id or data.tokenizer.sep_id):
            raise ConfigError(
                f"model.global_tokens={model.global_tokens} needs a token that separates texts, "
                "which the tokenizer does not have; set model.separator_id, or global_tokens=first"
            )
        if model.token_dropout:
            sizes["mask_id"] = data.tokenizer.mask_id or 0
        if model.token_dropout and not (model.mask_id or data.tokenizer.mask_id):
            raise ConfigError(
                "model.token_dropout=True needs a token that masks others, which the tokenizer "
                "does not have; set model.mask_id, or model.token_dropout=False"
            )
        if 0 < model.vocab_size < data.tokenizer.vocab_size:
            raise ConfigError(
                f"model.vocab_size={model.vocab_size} is too small for the data, whose tokenizer "
                f"has {data.tokenizer.vocab_size} ids; for a model with the tokenizer of a run, "
                f"set data.tokenizer={_tokenizer_of(init_from)}; for a new model, set "
                "model.vocab_size=0 to take that number"
            )
    if data.text_pairs and not tells_pairs_apart(model, data.tokenizer):
        raise ConfigError(
            "model.token_types=1 cannot tell the two texts of an example apart; "
            "set it to 2, or to 0 for none"
        )
    if len(data.labels) == 1:
        raise ConfigError(
            f"the data has only one class, {data.labels[0]!r}, so there is nothing to learn; "
            "check which column or directory names the class"
        )
    if 0 < model.num_classes < len(data.labels):
        raise ConfigError(
            f"model.num_classes={model.num_classes} is too small for the data, which has "
            f"{len(data.labels)} classes; set it to 0 to take that number"
        )
    if data.image_shape is not None:
        sizes |= image_sizes(model, data.image_shape)
    if data.signal_shape is not None:
        sizes |= signal_sizes(model, data.signal_shape)
        sizes |= dict(zip(("input_mean", "input_std"), data.mean_and_std, strict=True))
        sizes["horizon"] = data.horizon
        if model.horizon not in (0, data.horizon):
            raise ConfigError(
                f"model.horizon={model.horizon} is not that of the data, {data.horizon}; set it to "
                "0, or set data.options.horizon"
            )
    return model.resolve(**sizes)


def _tokenizer_of(run: str) -> str | Path:
    """Returns the tokenizer file of WORKDIR or WORKDIR:STEP; of a model on the hub, its address."""
    if is_hub_address(run):
        return run
    return Path(re.sub(r":\d+$", "", run) or "WORKDIR", "tokenizer.json")


def tells_pairs_apart(model: TransformerConfig, tokenizer: Tokenizer) -> bool:
    """Whether the model has as many token types as the tokenizer gives to a pair of texts."""
    return not 0 < model.token_types < tokenizer.encoder_template.token_types


def image_sizes(model: TransformerConfig, shape: tuple[int, int, int]) -> dict[str, int]:
    """Returns the sizes for images of shape (rows, columns, channels); refuses a mismatch."""
    rows, columns, channels = shape
    wanted = (model.image_size or rows, model.image_channels or channels)
    if rows != columns or wanted != (rows, channels):
        raise ConfigError(
            f"the data's images are {rows}x{columns}x{channels}, but model.image_size="
            f"{model.image_size} and model.image_channels={model.image_channels}; set both to 0"
        )
    patches = (rows // model.patch_size) ** 2
    if rows % model.patch_size:
        raise ConfigError(
            f"model.patch_size={model.patch_size} does not divide the images' {rows} rows"
        )
    tokens = patches + model.leading_tokens
    has_table = model.position in ABSOLUTE_POSITIONS and not model.position_image_size
    if has_table and tokens > model.max_length:
        raise ConfigError(
            f"an image becomes {tokens} tokens, more than model.max_length={model.max_length}, "
            f"the most that model.position={model.position} can address; raise it"
        )
    return {"image_size": rows, "image_channels": channels}


def signal_sizes(model: TransformerConfig, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Returns the shape of sounds or series, (axes..., channels); refuses a mismatch."""
    if model.input_shape not in ((), shape):
        raise ConfigError(
            f"the data's examples have the shape {shape}, but model.input_shape="
            f"{model.input_shape}; set it to ()"
        )
    sized = dataclasses.replace(model, input_shape=shape)
    if problems := [each for each in sized.problems() if "input_" in each]:
        raise ConfigError(problems)
    if model.position in ABSOLUTE_POSITIONS and sized.patch_tokens > model.max_length:
        raise ConfigError(
            f"an example becomes {sized.patch_tokens} tokens, more than model.max_length="
            f"{model.max_length}, the most that model.position={model.position} can address; raise "
            "it, or model.patch_size"
        )
    return {"input_shape": shape}


def refuse_other_data(model: LoadedRun, data: Data) -> None:
    """Refuses data whose classes, shapes or text pairs the trained model cannot read."""
    config = model.model_config
    if data.labels != model.labels[: len(data.labels)]:
        raise ConfigError(
            f"the data's classes, {reprlib.repr(data.labels)}, are not among those that the model "
            f"was trained on, {reprlib.repr(model.labels)}; name them as there"
        )
    sizes = config.image_size, config.image_size, config.image_channels
    if data.image_shape is not None and data.image_shape != sizes:
        raise ConfigError(
            f"the data's images are {'x'.join(map(str, data.image_shape))}, but the model was "
            f"trained on {'x'.join(map(str, sizes))}; set data.image_size"
        )
    if data.signal_shape is not None and data.signal_shape != config.input_shape:
        raise ConfigError(
            f"the data's examples have the shape {data.signal_shape}, but the model was trained on "
            f"{config.input_shape}; change data.options back"
        )
    if data.signal_shape is not None and data.horizon != config.horizon:
        raise ConfigError(
            f"the data's windows have {data.horizon} values to forecast, but the model forecasts "
            f"{config.horizon}; set data.options.horizon={config.horizon}"
        )
    if data.text_pairs and not tells_pairs_apart(config, model.tokenizer):
        raise ConfigError(
            "the data's examples are pairs of texts, but the model was trained on single texts and "
            "has model.token_types=1; choose other data"
        )
