"""The supported architectures; finds the one that a config.json names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiment.schema import ConfigError, did_you_mean
from pretrained import model_files
from pretrained.albert import ALBERT
from pretrained.architecture import Architecture, Head
from pretrained.bart import BART, M2M_100, MARIAN, MBART, PEGASUS
from pretrained.bert import BERT
from pretrained.cohere import COHERE, STABLELM, STARCODER2
from pretrained.dinov2 import DINOV2
from pretrained.distilbert import DISTILBERT
from pretrained.electra import ELECTRA
from pretrained.esm import ESM
from pretrained.gemma import GEMMA, GEMMA2, GEMMA3
from pretrained.gpt2 import GPT2
from pretrained.gpt_neox import FALCON, GPT_NEOX
from pretrained.llama import GRANITE, LLAMA, MISTRAL, OLMO2, PHI3, QWEN2, QWEN3, SMOLLM3
from pretrained.mixtures import GPT_OSS, MIXTRAL, QWEN3_MOE
from pretrained.modernbert import MODERNBERT
from pretrained.mpnet import MPNET
from pretrained.opt import OPT
from pretrained.roberta import CAMEMBERT, ROBERTA, XLM_ROBERTA
from pretrained.t5 import MT5, T5, T5_ENCODER, UMT5
from pretrained.vit import DEIT, DEIT_DISTILLED, VIT

# An export takes the first architecture that fits: a RoBERTa model also fits BERT, mT5 also T5, and
# many Llamas also Mistral, Phi-3 or Granite.
ARCHITECTURES = {
    each.model_type: each
    for each in (
        DISTILBERT, ROBERTA, XLM_ROBERTA, CAMEMBERT, BERT, MODERNBERT, ELECTRA, MPNET, ESM, ALBERT,
        GPT2, LLAMA, MISTRAL, QWEN2, QWEN3, OLMO2, PHI3, SMOLLM3,
        GRANITE, GEMMA, GEMMA2, GEMMA3, GPT_NEOX, FALCON, COHERE, STABLELM, STARCODER2, OPT,
        MIXTRAL, QWEN3_MOE, T5, MT5, UMT5, VIT, DEIT, DINOV2, MARIAN, BART, MBART, PEGASUS,
        M2M_100, GPT_OSS,
    )
}  # fmt: skip
# Further architectures of a model_type, which other classes have.
VARIANTS = {"t5": (T5_ENCODER,), "deit": (DEIT_DISTILLED,)}
EVERY = (*ARCHITECTURES.values(), *(each for more in VARIANTS.values() for each in more))
REFUSED = {
    "clip": "its two towers and the space that they share are missing here; image encoders are vit",
    "deberta": "its disentangled attention to positions is missing here",
    "deberta-v2": "its disentangled attention to positions is missing here",
    "gemma3": "image inputs of decoders are missing here; text models are gemma3_text",
    "qwen2_moe": "the gate of its shared expert is missing here; dense models are qwen2",
    "deepseek_v3": "its latent attention is missing here",
    "phi": "the bias of its output layer is missing in decoders here; Phi-3 and Phi-4 are phi3",
    "gptj": "its RoPE, which turns neighbouring columns of a part of each head, is missing here",
}
# Other architectures of transformers. Their names resemble supported ones, but are not misspelt,
# so their error messages have no "did you mean".
OTHERS = {
    "apertus", "aria", "aria_text", "bamba", "bark", "beit", "bigbird_pegasus", "biogpt", "bit",
    "bitnet", "bort", "canine", "codegen", "cohere2", "cohere2_moe", "cohere2_vision", "cohere_asr",
    "cohere_compass", "colmodernvbert", "colqwen2", "convbert", "csm", "cvt", "deimv2", "detr",
    "diffllama", "diffusion_gemma_text", "dinat", "dinov3_vit", "dpt", "embedding_gemma2_text",
    "emu3_text_model", "ernie", "esmc", "eurobert", "exaone_moe", "falcon_h1", "falcon_mamba",
    "flaubert", "flava", "fnet", "gemma3n", "gemma3n_text", "gemma4", "gemma4_text",
    "gemma4_unified_text", "git", "glm4v_text", "glm5_next", "glm_ocr_text", "glmga", "gpt_bigcode",
    "gpt_neo", "gpt_neox_japanese", "granite4_vision", "granite_docling", "granite_speech",
    "granite_swa", "granitemoe", "granitemoe_swa", "granitemoehybrid", "granitemoeshared", "gte",
    "hrm_text", "hubert", "ibert", "iquestcoder", "jamba", "kosmos-2", "lasr_encoder", "levit",
    "lfm2", "llama4", "llama4_text", "llava", "longt5", "lxmert", "mamba", "mamba2",
    "megatron-bert", "mellum", "minimax_m3_vl_text", "ministral", "ministral3", "mistral3",
    "mistral4", "mistral_large4", "mllama", "mobilebert", "mobilevit", "modernbert-decoder",
    "modernvbert", "molmo2", "molmo2_text", "mpt", "mra", "mvp", "nezha", "olmo", "olmo3", "olmoe",
    "openai-gpt", "owlv2", "owlvit", "paligemma", "pegasus_x", "phimoe", "pixtral", "plbart",
    "pp_lcnet", "pvt", "pvt_v2", "qwen2_5_vl", "qwen2_audio", "qwen2_vl", "qwen3_5", "qwen3_5_moe",
    "qwen3_5_moe_text", "qwen3_5_moe_vision", "qwen3_5_text", "qwen3_5_vision", "qwen3_asr",
    "qwen3_asr_encoder", "qwen3_next", "qwen3_omni_moe", "qwen3_omni_moe_text", "qwen3_vl",
    "qwen3_vl_moe", "qwen3_vl_moe_text", "qwen3_vl_moe_vision", "qwen3_vl_text", "qwen4_exp",
    "rembert", "rf_detr_dinov2", "roc_bert", "sam", "seggpt", "shieldgemma2", "smolvlm", "swinv2",
    "switch_transformers", "t5gemma", "t5gemma2", "t5gemma2_text", "timesfm", "ultrabert",
    "ultravbert", "upernet", "vaultgemma", "videomt", "vilt", "vipllava", "visual_bert",
    "vit_hybrid", "vit_mae", "vit_msn", "vitdet", "vitpose", "vits", "vivit", "voxtral",
    "xlm-roberta-xl", "xlnet", "yolos", "zamba",
}  # fmt: skip


def recognise(directory: Path, config: Mapping[str, Any]) -> tuple[Architecture, Head]:
    """The architecture and the head that a published config names; refuses unsupported ones."""
    path, kind = directory / model_files.CONFIG, config.get("model_type")
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
    choices = ARCHITECTURES[kind], *VARIANTS.get(kind, ())
    heads = {known: (each, each.heads[known]) for each in choices for known in each.heads}
    name = name or next(iter(heads))
    if not isinstance(name, str) or name not in heads:
        raise ConfigError(
            f"{path}: architectures={name!r} is not supported; for model_type={kind} these are: "
            f"{', '.join(heads)}"
        )
    return heads[name]


def _type_to_add(config: Mapping[str, Any], name: Any) -> str:
    if isinstance(config.get("model"), dict) and isinstance(config.get("task"), dict):
        return (
            "this is the config of a run of train.py without its checkpoints; give the complete "
            "workdir"
        )
    if not isinstance(name, str):
        name = None
    for each in EVERY:
        if name in each.heads:
            return f'its architectures name {name}, so add "model_type": "{each.model_type}" to it'
    of_name = "" if name is None else f"its architectures name {name}, which is not supported; "
    return (
        f'{of_name}if the model is one of these, add it, such as "model_type": "bert": '
        f"{', '.join(ARCHITECTURES)}"
    )
