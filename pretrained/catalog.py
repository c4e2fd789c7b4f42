"""The supported architectures; finds the one that a config.json names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiment.schema import ConfigError, did_you_mean
from pretrained import files
from pretrained.architecture import Architecture, Head
from pretrained.bart import BART, MARIAN
from pretrained.bert import BERT
from pretrained.distilbert import DISTILBERT
from pretrained.gpt2 import GPT2
from pretrained.llama import LLAMA
from pretrained.roberta import ROBERTA
from pretrained.t5 import MT5, T5
from pretrained.vit import VIT

# An export takes the first architecture that fits: a RoBERTa model also fits BERT, mT5 also T5.
ARCHITECTURES = {
    each.model_type: each
    for each in (DISTILBERT, ROBERTA, BERT, GPT2, LLAMA, T5, MT5, VIT, MARIAN, BART)
}
REFUSED = {
    "deit": "its distillation token is not supported; models without one are published as vit",
    "albert": "layers with shared weights are not supported",
}
# Other architectures of transformers. Their names resemble supported ones, but are not misspelt,
# so their error messages have no "did you mean".
OTHERS = {
    "aria", "bamba", "bark", "beit", "biogpt", "bit", "bitnet", "bort", "camembert", "convbert",
    "cvt", "deberta", "deberta-v2", "diffllama", "eurobert", "flaubert", "flava", "git",
    "gpt_bigcode", "gpt_neo", "gpt_neox", "gpt_oss", "gptj", "granite", "hubert", "ibert", "jamba",
    "levit", "llama4", "llama4_text", "llava", "longt5", "lxmert", "mamba", "mamba2", "mbart",
    "megatron-bert", "mistral", "mixtral", "mllama", "mobilebert", "mobilevit", "modernbert",
    "mpt", "mvp", "nezha", "openai-gpt", "owlvit", "plbart", "pvt", "pvt_v2", "rembert",
    "roc_bert", "seggpt", "switch_transformers", "ultrabert", "umt5", "videomt", "vilt",
    "vipllava", "visual_bert", "vit_hybrid", "vit_mae", "vit_msn", "vitdet", "vitpose", "vits",
    "vivit", "xlm-roberta", "xlm-roberta-xl", "zamba",
}  # fmt: skip


def recognise(directory: Path, config: Mapping[str, Any]) -> tuple[Architecture, Head]:
    """The architecture and the head that a published config names; refuses unsupported ones."""
    path, kind = directory / files.CONFIG, config.get("model_type")
    classes = config.get("architectures")
    name = classes[0] if isinstance(classes, list) and classes else classes
    if kind is None:
        raise ConfigError(f"{path} has no model_type; {_type_to_add(config, name)}")
    if isinstance(kind, str) and kind in REFUSED:
        raise ConfigError(f"{path}: model_type={kind!r} is not supported; {REFUSED[kind]}")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        guess = "" if str(kind) in OTHERS else did_you_mean(str(kind).lower(), ARCHITECTURES)
        raise ConfigError(
            f"{path}: model_type={kind!r} is not supported.{guess} "
            f"Supported are: {', '.join(ARCHITECTURES)}"
        )
    heads = ARCHITECTURES[kind].heads
    name = name or next(iter(heads))
    if not isinstance(name, str) or name not in heads:
        raise ConfigError(
            f"{path}: architectures={name!r} is not supported; for model_type={kind} these are: "
            f"{', '.join(heads)}"
        )
    return ARCHITECTURES[kind], heads[name]


def _type_to_add(config: Mapping[str, Any], name: Any) -> str:
    if isinstance(config.get("model"), dict) and isinstance(config.get("task"), dict):
        return (
            "this is the config of a run of train.py without its checkpoints; give the complete "
            "workdir"
        )
    if not isinstance(name, str):
        name = None
    for kind, each in ARCHITECTURES.items():
        if name in each.heads:
            return f'its architectures name {name}, so add "model_type": "{kind}" to it'
    of_name = "" if name is None else f"its architectures name {name}, which is not supported; "
    return (
        f'{of_name}if the model is one of these, add it, such as "model_type": "bert": '
        f"{', '.join(ARCHITECTURES)}"
    )
