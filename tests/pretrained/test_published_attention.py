"""Imported models have the attention weights that transformers returns (output_attentions)."""

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from model.attention.attention_weights import CAPTURE
from tests.pretrained.batches import our_batch, parts_of
from tests.pretrained.make_fixtures import FIXTURES
from tests.pretrained.test_parity import imported
from tests.pretrained.transformers_models import oracle
from tests.tiny import quick_jit
from training.model_for_task import model_arguments

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

# The class of transformers; and our (stack, module) by its name for the weights.
ENCODER = {"attentions": ("encoder", "self_attention")}
DECODER = {"attentions": ("decoder", "self_attention")}
BOTH = {
    "encoder_attentions": ("encoder", "self_attention"),
    "decoder_attentions": ("decoder", "self_attention"),
    "cross_attentions": ("decoder", "cross_attention"),
}
MODELS = {
    "bert_masked_lm": ("BertForMaskedLM", ENCODER),
    "bert_classifier": ("BertForSequenceClassification", ENCODER),
    "roberta_masked_lm": ("RobertaForMaskedLM", ENCODER),
    "gpt2": ("GPT2LMHeadModel", DECODER),
    "llama": ("LlamaForCausalLM", DECODER),
    "llama3": ("LlamaForCausalLM", DECODER),
    "t5": ("T5ForConditionalGeneration", BOTH),
    "t5_v1_1": ("T5ForConditionalGeneration", BOTH),
    "bart": ("BartForConditionalGeneration", BOTH),
    "marian": ("MarianMTModel", BOTH),
    "vit_classifier": ("ViTForImageClassification", ENCODER),
}


def their_weights(name, stored):
    torch, hf = oracle()
    kind, modules = MODELS[name]
    model = getattr(hf, kind).from_pretrained(FIXTURES / name, attn_implementation="eager")
    model = model.double().eval()
    given = {key: torch.tensor(x) for key, x in parts_of(stored, "input/").items()}
    given = {key: x.double() if x.is_floating_point() else x for key, x in given.items()}
    with torch.no_grad():
        out = model(**given, output_attentions=True)
    return {
        place: np.stack([layer.numpy() for layer in getattr(out, key)])
        for key, place in modules.items()
    }


def our_weights(directory, batch):
    _, task, model, params = imported(directory)
    arguments, named = model_arguments(task, batch)

    def apply(params):
        return model.apply({"params": params}, *arguments, **named, mutable=[CAPTURE])[1]

    return jax.device_get(quick_jit(apply)(params))[CAPTURE]["backbone"]


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_transformers_own(name, record_property):
    stored = load_file(FIXTURES / name / "expected.safetensors")
    batch = our_batch(stored)
    ours = our_weights(FIXTURES / name, batch)
    worst = 0.0
    for (stack, module), theirs in their_weights(name, stored).items():
        found = ours[stack]["blocks"][module]
        assert found["weights"].shape == theirs.shape
        # Rows of padding have other weights there, and none here.
        seen = found["visible"].any(axis=-1)[:, :, None, :, None]
        compared = np.broadcast_to(seen, theirs.shape)
        assert compared.mean() > 0.3
        difference = np.abs(found["weights"] - theirs)[compared].max()
        worst = max(worst, float(difference))
        assert difference < 1e-5, (stack, module)
        masked = ~np.broadcast_to(found["visible"][:, :, None], theirs.shape)
        assert not theirs[masked & compared].any()
    record_property("largest_difference", worst)
