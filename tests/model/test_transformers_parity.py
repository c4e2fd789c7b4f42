"""The same weights give the same logits and gradients as in Hugging Face transformers.

Their models are small and random in every weight, biases and norms included, so that nothing is
right by being zero or one. They compute in float64, so that the differences are our own rounding;
once more in float32, as they are used.
Rows have different lengths; padding is compared nowhere.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import architectures
from model.heads import Classifier, LanguageModel, MaskedLanguageModel
from tests.model import published_models
from tests.model import published_names as names
from tests.model.published_models import learned, oracle
from tests.tiny import quick_jit, random_params, tiny_config

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

SIZES = dict(
    vocab_size=29, width=24, heads=4, head_size=6, feed_forward=40,
    encoder_layers=2, decoder_layers=3, max_length=24,
)  # fmt: skip
TOLERANCE = 3e-5  # absolute, of logits and gradients of order one in float32
LENGTHS, SOURCE_LENGTHS = (20, 13, 1), (7, 18, 2)


@dataclasses.dataclass
class Pair:
    """One architecture twice. Each side answers with a list of logits, like `targets`."""

    theirs: object  # torch module
    their_logits: Callable[[], list]
    our_logits: Callable[[dict], list]
    to_ours: Callable[[dict], tuple]  # from their names to our parameters, and what is left
    targets: list[np.ndarray]  # -1 where nothing is compared


def padded(lengths, seed):
    """Tokens and their mask; 0 is padding everywhere, and never a real token."""
    rng = np.random.default_rng(seed)
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int32)
    return rng.integers(1, SIZES["vocab_size"], mask.shape).astype(np.int32) * mask, mask


def random_targets(mask, classes):
    targets = np.random.default_rng(11).integers(classes, size=mask.shape)
    return np.where(mask != 0, targets, -1)


def randomize(model):
    """Every weight but fixed sinusoids, drawn anew."""
    torch, _ = oracle()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in learned(model).items():
            centre = 1.0 if "norm" in name.lower() or "ln_" in name else 0.0
            weight.copy_(centre + 0.2 * torch.randn(weight.shape, generator=generator))
    return model.double().eval()


def pair(theirs, inputs, read, model, our_inputs, our_options, table, targets, adapt=dict):
    """`read` picks the logits from their answer; `adapt` mends their layout before the table."""
    torch, _ = oracle()
    randomize(theirs)
    inputs = {
        name: torch.tensor(array if array.dtype.kind == "f" else array.astype(np.int64))
        for name, array in inputs.items()
    }
    shapes = random_params(model, *our_inputs, **our_options)

    def our_logits(params):
        logits = model.apply({"params": params}, *our_inputs, **our_options)
        return [*logits] if isinstance(logits, tuple) else [logits]

    return Pair(
        theirs=theirs,
        their_logits=lambda: read(theirs(**in_precision_of(theirs, inputs))),
        our_logits=our_logits,
        to_ours=lambda weights: names.to_ours(shapes, table, adapt(weights)),
        targets=targets,
    )


def in_precision_of(model, inputs):
    return {
        name: tensor.to(model.dtype) if tensor.is_floating_point() else tensor
        for name, tensor in inputs.items()
    }


def config_of(style, **changes):
    return tiny_config(**{**style(), **SIZES, **changes})


def bert(config, **more):
    _, hf = oracle()
    return hf.BertConfig(
        vocab_size=config.vocab_size, hidden_size=config.width,
        num_hidden_layers=config.encoder_layers, num_attention_heads=config.heads,
        intermediate_size=config.feed_forward, max_position_embeddings=config.max_length,
        type_vocab_size=config.token_types, layer_norm_eps=config.norm_epsilon, hidden_act="gelu",
        **more,
    )  # fmt: skip


def bert_inputs():
    tokens, mask = padded(LENGTHS, seed=0)
    types = ((np.arange(tokens.shape[1]) >= 5) & (mask != 0)).astype(np.int32)
    theirs = dict(input_ids=tokens, attention_mask=mask, token_type_ids=types)
    ours = dict(segments_bt=mask, token_types_bt=types)
    return theirs, [tokens], ours


def bert_pretraining():
    _, hf = oracle()
    config = config_of(architectures.bert_style)
    theirs, inputs, options = bert_inputs()
    return pair(
        hf.BertForPreTraining(bert(config)), theirs,
        lambda out: [out.prediction_logits, out.seq_relationship_logits],
        MaskedLanguageModel(config, next_sentence=True), inputs, options, names.BERT_PRETRAINING,
        [random_targets(theirs["attention_mask"], config.vocab_size), np.array([0, 1, 1])],
    )  # fmt: skip


def bert_classifier():
    _, hf = oracle()
    config = config_of(architectures.bert_style, num_classes=5)
    theirs, inputs, options = bert_inputs()
    return pair(
        hf.BertForSequenceClassification(bert(config, num_labels=5)), theirs,
        lambda out: [out.logits],
        Classifier(config), inputs, options, names.BERT_CLASSIFIER, [np.array([4, 0, 2])],
    )  # fmt: skip


def gpt2():
    config = config_of(architectures.gpt2_style)
    tokens, mask = padded(LENGTHS, seed=0)
    return pair(
        published_models.gpt2(config), dict(input_ids=tokens, attention_mask=mask),
        lambda out: [out.logits],
        LanguageModel(config), [tokens], dict(segments_bt=mask), names.GPT2,
        [random_targets(mask, config.vocab_size)], names.gpt2_as_linear,
    )  # fmt: skip


def llama(left=False):
    _, hf = oracle()
    # A head size that is not width / heads, and groups of two query heads.
    config = config_of(architectures.llama_style, kv_heads=2, head_size=10, rope_theta=500.0)
    theirs = hf.LlamaForCausalLM(
        hf.LlamaConfig(
            vocab_size=config.vocab_size, hidden_size=config.width,
            num_hidden_layers=config.decoder_layers, num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads, head_dim=config.head_size,
            intermediate_size=config.feed_forward, rms_norm_eps=config.norm_epsilon,
            rope_parameters=dict(rope_type="default", rope_theta=config.rope_theta),
            tie_word_embeddings=False,
        )
    )  # fmt: skip
    tokens, mask = padded(LENGTHS, seed=0)
    if left:
        tokens, mask = tokens[:, ::-1], mask[:, ::-1]
    positions = np.maximum(np.cumsum(mask, axis=1, dtype=np.int32) - 1, 0)
    return pair(
        theirs, dict(input_ids=tokens, attention_mask=mask, position_ids=positions),
        lambda out: [out.logits],
        LanguageModel(config), [tokens], dict(segments_bt=mask, positions_bt=positions),
        names.LLAMA, [random_targets(mask, config.vocab_size)],
    )  # fmt: skip


def encoder_decoder(theirs, config, table):
    tokens, mask = padded(LENGTHS, seed=0)
    source, source_mask = padded(SOURCE_LENGTHS, seed=1)
    inputs = dict(
        input_ids=source, attention_mask=source_mask,
        decoder_input_ids=tokens, decoder_attention_mask=mask,
    )  # fmt: skip
    return pair(
        theirs, inputs, lambda out: [out.logits],
        LanguageModel(config), [tokens, source],
        dict(segments_bt=mask, encoder_segments_bs=source_mask),
        table, [random_targets(mask, config.vocab_size)],
    )  # fmt: skip


def t5(style, table, feed_forward):
    # So few buckets that these lengths reach the logarithmic ones, and the last.
    config = config_of(style, head_size=7, relative_buckets=8, relative_max_distance=12)
    return encoder_decoder(published_models.t5(config, feed_forward), config, table)


def marian(activation, their_activation):
    config = config_of(architectures.transformer_style, activation=activation, output_bias=True)
    theirs = published_models.marian(config, their_activation)
    return encoder_decoder(theirs, config, names.MARIAN)


def vit():
    _, hf = oracle()
    image = dict(image_size=12, image_channels=3, patch_size=4)
    config = config_of(architectures.vit_style, max_length=1 + 9, num_classes=5, **image)
    theirs = hf.ViTForImageClassification(
        hf.ViTConfig(
            hidden_size=config.width, num_hidden_layers=config.encoder_layers,
            num_attention_heads=config.heads, intermediate_size=config.feed_forward,
            image_size=12, patch_size=4, num_channels=3, num_labels=5, hidden_act="gelu",
            layer_norm_eps=config.norm_epsilon,
        )
    )  # fmt: skip
    images = np.random.default_rng(0).normal(size=(3, 12, 12, 3)).astype(np.float32)
    return pair(
        theirs, dict(pixel_values=images.transpose(0, 3, 1, 2)), lambda out: [out.logits],
        Classifier(config), [images], {}, names.VIT, [np.array([4, 0, 2])], names.vit_as_linear,
    )  # fmt: skip


PAIRS = dict(
    bert_pretraining=bert_pretraining,
    bert_classifier=bert_classifier,
    gpt2=gpt2,
    llama=llama,
    llama_left_padded=functools.partial(llama, left=True),
    t5=functools.partial(t5, architectures.t5_style, names.T5, "relu"),
    t5_v1_1=functools.partial(t5, architectures.t5_v1_1_style, names.T5_V1_1, "gated-gelu"),
    marian_relu=functools.partial(marian, "relu", "relu"),
    marian_swish=functools.partial(marian, "silu", "swish"),
    vit=vit,
)


@pytest.fixture(scope="module", params=PAIRS)
def models(request):
    return PAIRS[request.param]()


def their_weights(models):
    return {
        name: weight.detach().float().numpy() for name, weight in learned(models.theirs).items()
    }


def test_every_weight_has_a_place(models):
    _, unused = models.to_ours(their_weights(models))
    assert unused == set()


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_logits(models, precision, record_property):
    torch, _ = oracle()
    params, _ = models.to_ours(their_weights(models))
    models.theirs.to(getattr(torch, precision))
    with torch.no_grad():
        theirs = [logits.numpy() for logits in models.their_logits()]
    models.theirs.double()  # loses nothing: the weights were drawn in float32
    for expected, actual, targets in zip(
        theirs, quick_jit(models.our_logits)(params), models.targets, strict=True
    ):
        real = targets >= 0
        error = np.abs(expected[real] - actual[real]).max()
        record_property("largest_difference", float(error))
        assert np.abs(expected[real]).max() > 0.5, "too small to tell apart"
        assert error < TOLERANCE


def test_gradients_of_every_weight(models, record_property):
    torch, _ = oracle()

    def their_loss():
        return sum(
            torch.nn.functional.cross_entropy(
                logits.flatten(0, -2), torch.tensor(targets).flatten(), ignore_index=-1
            )
            for logits, targets in zip(models.their_logits(), models.targets, strict=True)
        )

    def our_loss(params):
        total = 0.0
        for logits, targets in zip(models.our_logits(params), models.targets, strict=True):
            likelihoods = jax.nn.log_softmax(logits[targets >= 0])
            chosen = targets[targets >= 0]
            total -= likelihoods[np.arange(len(chosen)), chosen].mean()
        return total

    weights = learned(models.theirs)
    loss = their_loss()
    # The layout of gradients is that of weights, so the same table translates them.
    gradients = torch.autograd.grad(loss, list(weights.values()))
    theirs, _ = models.to_ours(
        {name: g.numpy() for name, g in zip(weights, gradients, strict=True)}
    )
    params, _ = models.to_ours(their_weights(models))
    our_value, ours = quick_jit(jax.value_and_grad(our_loss))(jax.tree.map(jnp.asarray, params))
    assert float(our_value) == pytest.approx(float(loss.detach()), abs=TOLERANCE)
    errors = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), theirs, ours)
    record_property("largest_difference", max(jax.tree.leaves(errors)))
    for path, error in jax.tree_util.tree_leaves_with_path(errors):
        assert error < TOLERANCE, jax.tree_util.keystr(path)
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(theirs)) > 0.1
