"""RoPE in a published config.json: theta, partial rotation and scaling."""

from typing import Any

from model.config import TransformerConfig
from pretrained.architecture import MisfitError, PublishedConfig
from pretrained.decoder_parts import ConfigPart

ORIGINAL_LENGTH = "original_max_position_embeddings"
# Kind of RoPE scaling -> {our key: their key}.
ROPE_FACTORS = {
    "default": {},
    "linear": dict(rope_factor="factor"),
    "llama3": dict(
        rope_factor="factor",
        rope_low_frequency="low_freq_factor",
        rope_high_frequency="high_freq_factor",
        rope_original_length=ORIGINAL_LENGTH,
    ),
    "yarn": dict(
        rope_factor="factor",
        rope_low_frequency="beta_slow",
        rope_high_frequency="beta_fast",
        rope_original_length=ORIGINAL_LENGTH,
        rope_attention_factor="attention_factor",
        rope_truncate="truncate",
    ),
    "longrope": dict(
        rope_factor="factor",
        rope_short_factors="short_factor",
        rope_long_factors="long_factor",
        rope_original_length=ORIGINAL_LENGTH,
        rope_attention_factor="attention_factor",
    ),
}
# Their keys that may be missing, with our values for them.
OPTIONAL = {"beta_slow": 1.0, "beta_fast": 32.0, "attention_factor": 0.0, "truncate": True}
OURS = (
    "rope_theta", "rope_scaling", "rope_factor", "rope_low_frequency", "rope_high_frequency",
    "rope_original_length", "rope_attention_factor", "rope_short_factors", "rope_long_factors",
    "rope_truncate",
)  # fmt: skip


def rope_part(
    *,
    default_theta: float = 10_000.0,
    theta: str = "rope_theta",
    fraction: str = "",
    default_fraction: float = 1.0,
) -> ConfigPart:
    """RoPE. `theta` and `fraction` are their keys outside of the scaling's object.

    An architecture without `fraction` rotates whole heads.
    """

    def read(config: PublishedConfig) -> dict[str, Any]:
        scaling = scaling_of(config)
        top = config.get(theta, default_theta)
        ours = dict(rope_theta=scaling.get("rope_theta", top))
        if fraction:
            share = config.get(fraction, default_fraction)
            ours |= dict(rope_fraction=scaling.pop("partial_rotary_factor", share))
        return ours | read_scaling(config, scaling)

    def write(model: TransformerConfig) -> dict[str, Any]:
        theirs = {theta: model.rope_theta, "rope_scaling": write_scaling(model)}
        if model.rope_scaling == "longrope":
            theirs |= {ORIGINAL_LENGTH: model.rope_original_length}
            theirs |= dict(max_position_embeddings=_full_length(model))
        return theirs | ({fraction: model.rope_fraction} if fraction else {})

    return ConfigPart((*OURS, *(("rope_fraction",) if fraction else ())), read, write)


def two_ropes_part(
    full: tuple[str, float], local: tuple[str, float], *, same_scaling: bool = False
) -> ConfigPart:
    """RoPE with two bases: layers with windows have their own, and no scaling.

    `full` and `local` are their keys and defaults for a config without rope_parameters. With
    `same_scaling`, their scaling applies to all layers, so any is refused.
    """

    def read(config: PublishedConfig) -> dict[str, Any]:
        scaling = scaling_of(config)
        bases = [config.get(*each) for each in (full, local)]
        of_full, of_local = scaling, {}
        if "full_attention" in scaling or "sliding_attention" in scaling:
            kinds = ("full", "sliding")
            of_full, of_local = (scaling.get(f"{kind}_attention") or {} for kind in kinds)
            for kind, each in (("full", of_full), ("sliding", of_local)):
                if not isinstance(each, dict):
                    config.refuse(f"rope_parameters.{kind}_attention", each, "it must be an object")
        elif same_scaling and scaling.get("rope_type", "default") != "default":
            config.refuse("rope_scaling", scaling, "layers with windows support only default")
        if (kind := of_local.get("rope_type", "default")) != "default":
            config.refuse("rope_type", kind, "layers with windows support only default")
        return dict(
            rope_theta=of_full.get("rope_theta", bases[0]),
            rope_local_theta=of_local.get("rope_theta", bases[1]),
            **read_scaling(config, of_full),
        )

    def write(model: TransformerConfig) -> dict[str, Any]:
        has_windows = any(kind.attention == "local" for kind in model.layer_pattern)
        if has_windows and not model.rope_local_theta and write_scaling(model):
            raise MisfitError(
                "has no model.rope_scaling in layers with windows; set model.rope_local_theta"
            )
        local = dict(rope_type="default", rope_theta=model.rope_local_theta or model.rope_theta)
        full = dict(write_scaling(model) or {"rope_type": "default"}, rope_theta=model.rope_theta)
        return dict(rope_parameters=dict(full_attention=full, sliding_attention=local))

    return ConfigPart((*OURS, "rope_local_theta"), read, write)


def scaling_of(config: PublishedConfig) -> dict[str, Any]:
    """The object of RoPE parameters. transformers 4 writes rope_scaling, 5 rope_parameters."""
    parameters, scaling = config.get("rope_parameters"), config.get("rope_scaling")
    scaling = scaling or parameters or {}  # rope_scaling first, as in transformers
    if not isinstance(scaling, dict):
        config.refuse("rope_scaling", scaling, "it must be an object")
    return dict(scaling)


def read_scaling(config: PublishedConfig, scaling: dict[str, Any]) -> dict[str, Any]:
    """Our keys of the scaling; refuses kinds and parameters that are not known."""
    if (top_length := config.get(ORIGINAL_LENGTH)) is not None:
        scaling = scaling | {ORIGINAL_LENGTH: top_length}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if not isinstance(kind, str) or kind not in ROPE_FACTORS:
        config.refuse("rope_type", kind, f"supported are: {', '.join(ROPE_FACTORS)}")
    if kind == "longrope":
        scaling = _with_factor(config, scaling)
    factors = {}
    for ours, theirs in ROPE_FACTORS[kind].items():
        value = scaling.get(theirs)
        if value is None and theirs not in OPTIONAL:
            config.refuse("rope_type", kind, f"it lacks {theirs}")
        factors[ours] = OPTIONAL[theirs] if value is None else value
    known = {"rope_theta", "rope_type", "type", *ROPE_FACTORS[kind].values()}
    for key in sorted(scaling.keys() - known):
        # A config with rope_type=default may also give the original length.
        neutral = (None, 1.0) if key != "truncate" else (None, True)
        if key != ORIGINAL_LENGTH and scaling[key] not in neutral:
            config.refuse(
                f"rope parameter {key}", scaling[key], f"rope_type={kind} has no such parameter"
            )
    if kind == "longrope":
        # Texts up to the original length get the short factors; see model.rope_short_factors.
        factors |= dict(max_length=factors["rope_original_length"])
    return dict(rope_scaling=kind, **factors)


def _with_factor(config: PublishedConfig, scaling: dict[str, Any]) -> dict[str, Any]:
    """LongRoPE's object with the factor that follows from the two lengths."""
    original, length = scaling.get(ORIGINAL_LENGTH), config.size("max_position_embeddings")
    if isinstance(original, bool) or not isinstance(original, int) or original < 1:
        config.refuse(ORIGINAL_LENGTH, original, "rope_type=longrope needs it")
    if scaling.get("factor") not in (None, length / original):
        config.refuse(
            "rope parameter factor", scaling["factor"],
            f"max_position_embeddings / {ORIGINAL_LENGTH} is {length / original:g}",
        )  # fmt: skip
    return scaling | dict(factor=length / original)


def _full_length(model: TransformerConfig) -> int:
    return round(model.rope_original_length * model.rope_factor)


def write_scaling(model: TransformerConfig) -> dict[str, Any] | None:
    """Their object of RoPE scaling, or None; raises MisfitError if transformers has none such."""
    if model.rope_scaling not in ROPE_FACTORS:
        known = ", ".join(ROPE_FACTORS)
        raise MisfitError(f"model.rope_scaling={model.rope_scaling} is not one of: {known}")
    if model.rope_scaling == "default":
        return None
    factors = ROPE_FACTORS[model.rope_scaling]
    scaling = {theirs: getattr(model, ours) for ours, theirs in factors.items()}
    scaling = {key: list(v) if isinstance(v, tuple) else v for key, v in scaling.items()}
    if not scaling.get("attention_factor", 1):
        del scaling["attention_factor"]
    if scaling.get("truncate"):
        del scaling["truncate"]  # the default
    if model.rope_scaling == "longrope":
        del scaling["factor"]  # follows from the lengths
    return scaling | {"rope_type": model.rope_scaling}
