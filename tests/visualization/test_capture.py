"""From a run and a prompt to everything that a page shows, for every family."""

import io

import jax
import numpy as np
import pytest
from PIL import Image

from configs import architectures, dates, digits, langid, langid_mlm
from experiment.schema import ConfigError
from input_pipeline.objectives.causal_lm import causal_lm
from input_pipeline.objectives.prefix_lm import prefix_lm_pair
from input_pipeline.objectives.seq2seq import seq2seq
from input_pipeline.tokenizers.tokenizer import ByteTokenizer
from tests.test_generate import ask, text_model, untrained
from training.losses import cross_entropy
from training.mesh import put_batch
from training.model_for_task import forward
from visualization.capture import log_softmax, model_view, refuse_heads
from visualization.captured_pass import lens_logits, run_and_capture
from visualization.model_inputs import read_input
from visualization.rollout import attention_rollout
from visualization.token_texts import token_texts

T = ByteTokenizer()
pytestmark = pytest.mark.usefixtures("compile_once")


def view_of(run, prompt, target=None, **options):
    return model_view(run, prompt, target, title="a run", **options)


def outputs(run, batch):
    """What the model answers without any capturing."""
    with jax.set_mesh(run.mesh):
        placed = put_batch(batch, run.mesh)
        return jax.device_get(forward(run.model, run.experiment.task, run.params, placed))


def assert_complete(run, view, depth):
    """What holds of every view."""
    for attention in view.maps:
        assert attention.layers == tuple(range(depth))
        shape = (depth, run.model_config.heads, len(attention.queries), len(attention.keys))
        assert attention.weights_lhts.shape == shape
        assert attention.weights_lhts.dtype == np.float32
        assert attention.visible_lts.shape == (depth, *shape[2:])
        assert attention.visible_lts.dtype == bool
        np.testing.assert_allclose(attention.weights_lhts.sum(axis=-1), 1, atol=1e-5)
        hidden = ~np.broadcast_to(attention.visible_lts[:, None], shape)
        assert not attention.weights_lhts[hidden].any()
        if attention.name != "cross":
            np.testing.assert_array_equal(
                attention.rollout_ts, attention_rollout(attention.weights_lhts)
            )
    for stack, norms in view.norms:
        (attention,) = (each for each in view.maps if each.name == stack)
        assert norms.shape == (depth + 1, len(attention.queries))
        assert (norms > 0).all()


TWO = dict(encoder_layers=2, decoder_layers=2)


def test_a_model_with_mixers_shows_its_cross_attention():
    model = architectures.seq2seq_attention() | TWO | dict(width=8, feed_forward=8)
    run = untrained(dates, model=model)
    view = view_of(run, "9 mars", "1987")
    (cross,) = view.maps
    assert cross.name == "cross"
    assert set(cross.kinds) == {"additive"}
    np.testing.assert_allclose(cross.weights_lhts.sum(axis=-1), 1, atol=1e-5)
    facts = dict(view.facts)
    assert facts["mixer"] == "gru; there is no self-attention to show"
    assert facts["cross-attention"] == "additive" and "attention" not in facts
    refuse_heads(run, [("cross", 0, 0)], ())
    with pytest.raises(ConfigError, match="this model has no encoder; it has cross"):
        refuse_heads(run, [("encoder", 0, 0)], ())


def test_a_model_without_attention_has_no_maps():
    model = architectures.seq2seq_lstm() | TWO | dict(width=8, feed_forward=8)
    run = untrained(dates, model=model)
    view = view_of(run, "9 mars", "1987")
    assert view.maps == ()
    assert view.lens is not None
    assert dict(view.facts)["bridge"] == "context_vector; there is no cross-attention to show"
    with pytest.raises(ConfigError, match="no layer of this model attends"):
        refuse_heads(run, [("", 0, 0)], ())


@pytest.fixture(scope="module")
def masked(compile_once):
    return untrained(langid_mlm, model=TWO)


@pytest.fixture(scope="module")
def classifier(compile_once):
    return untrained(langid, model=TWO)


@pytest.fixture(scope="module")
def decoder(compile_once):
    return text_model(length=40, **TWO)


@pytest.fixture(scope="module")
def translator(compile_once):
    return untrained(dates, model=TWO)


def test_masked_lm(masked):
    view = view_of(masked, "a[MASK]c")
    assert_complete(masked, view, 2)
    (attention,) = view.maps
    assert attention.name == "encoder"
    assert attention.queries == attention.keys == ("[CLS]", "a", "[MASK]", "c", "[SEP]")
    assert attention.visible_lts.all()
    assert view.special_tokens == {"[CLS]", "[MASK]", "[SEP]"}
    assert attention.gradients_lhts is None and view.scores is None
    assert view.lens.positions == attention.queries
    batch = read_input(masked, "a[MASK]c", None).batch(masked.mesh)
    shares = np.exp(log_softmax(outputs(masked, batch)["logits"][0]))
    best = T.text_ids[shares[2][T.text_ids].argmax()]  # as generate.py, without special tokens
    assert view.prediction == f"{token_texts([best], T)[0]} ({shares[2][best]:.1%})"
    assert [layer[0] for layer in view.lens.layers[-1].tokens] == list(
        token_texts(shares[:5].argmax(axis=-1), T)
    )


def test_masked_lm_without_a_mask(masked):
    assert view_of(masked, "abc").maps[0].queries == ("[CLS]", "a", "b", "c", "[SEP]")


def test_classifier_and_its_gradients(classifier):
    view = view_of(classifier, "Anna Kournikova")
    assert_complete(classifier, view, 2)
    (attention,) = view.maps
    assert attention.gradients_lhts.shape == attention.weights_lhts.shape
    assert np.abs(attention.gradients_lhts).max() > 1e-3
    (((best, *_),),) = [ask(classifier, ["Anna Kournikova"], batch_size=1)]
    assert view.prediction == f"{best['label']} ({best['probability']:.1%})"
    assert view.lens.positions == ("class",)
    assert view.lens.layers[-1].tokens[0][0] == best["label"]
    assert view.lens.layers[-1].probabilities[0, 0] == pytest.approx(best["probability"], abs=1e-5)
    assert len(view.lens.layers) == 3


def test_decoder(decoder):
    view = view_of(decoder, "hello world")
    assert_complete(decoder, view, 2)
    (attention,) = view.maps
    assert attention.name == "decoder"
    assert attention.queries == ("[BOS]", *"hello world")
    np.testing.assert_array_equal(attention.visible_lts[0], np.tril(np.ones((12, 12), bool)))
    assert view.scores.tokens == tuple("hello world")
    assert len(view.lens.layers) == 3 and view.lens.positions == attention.queries


def test_a_target_continues_the_prompt(decoder):
    view, full_view = view_of(decoder, "hel", "lo"), view_of(decoder, "hello")
    assert view.maps[0].queries == full_view.maps[0].queries
    np.testing.assert_array_equal(view.maps[0].weights_lhts, full_view.maps[0].weights_lhts)
    assert view.scores.tokens == tuple("hello")


def test_log_probabilities_are_those_of_the_loss(decoder):
    text = "def f(x): return x"
    view = view_of(decoder, text)
    given = read_input(decoder, text, None)
    logits = outputs(decoder, given.batch(decoder.mesh))["logits"][0].astype(np.float64)
    logs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    expected = [logs[t, id] for t, id in enumerate(T.encode(text))]
    np.testing.assert_allclose(view.scores.log_probabilities, expected, rtol=0, atol=1e-5)
    ranks = [1 + (logs[t] > logs[t, id]).sum() for t, id in enumerate(T.encode(text))]
    assert view.scores.ranks.tolist() == ranks
    # The row of training and evaluation, and their loss.
    row = causal_lm({"text": T.encode(text)}, None, tokenizer=T)
    batch = {name: np.asarray(x)[None] for name, x in row.items()}
    found = outputs(decoder, {"inputs": batch["inputs"].astype(np.int32)})["logits"]
    nll = cross_entropy(found, batch["targets"], batch["weights"]).nll
    assert -view.scores.log_probabilities.sum() == pytest.approx(float(nll), rel=1e-5)


def test_candidates_are_the_likeliest(decoder):
    view = view_of(decoder, "abc")
    shares = view.scores.candidates.probabilities
    assert (np.diff(shares, axis=-1) <= 0).all()
    for n, rank in enumerate(view.scores.ranks):
        if rank <= shares.shape[1]:
            assert shares[n, rank - 1] == pytest.approx(np.exp(view.scores.log_probabilities[n]))


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_the_last_layer_of_the_lens_is_the_model(placement):
    run = text_model(norm_placement=placement, **TWO)
    batch = read_input(run, "hello", None).batch(run.mesh)
    found = run_and_capture(run, batch)
    hidden = found.hidden["decoder"]
    with jax.set_mesh(run.mesh):
        of_layers = [
            np.asarray(lens_logits(run, run.params, put_batch(batch, run.mesh), "decoder", x))
            for x in hidden
        ]
    np.testing.assert_allclose(of_layers[-1], outputs(run, batch)["logits"], atol=2e-5)
    assert np.abs(of_layers[-2] - of_layers[-1]).max() > 0.01
    view = view_of(run, "hello")
    for layer, candidates in zip(of_layers, view.lens.layers, strict=True):
        shares = np.sort(np.exp(log_softmax(layer[0, :6])))[:, ::-1][:, :5]
        np.testing.assert_allclose(candidates.probabilities, shares, rtol=1e-4, atol=1e-6)


def test_encoder_decoder_with_its_own_answer(translator):
    view = view_of(translator, "1. Mai")
    assert [each.name for each in view.maps] == ["encoder", "decoder", "cross"]
    assert_complete(translator, view, 2)
    encoder, decoder, cross = view.maps
    assert encoder.queries == (*"1. Mai", "[EOS]")
    assert decoder.queries[0] == "[BOS]"
    assert cross.queries == decoder.queries and cross.keys == encoder.queries
    assert cross.rollout_ts is None
    (((answer,),),) = [ask(translator, ["1. Mai"], batch_size=1)]
    assert view.prediction == answer["text"]
    assert view.facts[0] == ("input", "1. Mai") and "target" not in dict(view.facts)
    assert len(view.scores.tokens) == answer["tokens"] == len(decoder.queries)
    # Greedy: at every position the model prefers what it wrote.
    assert view.scores.ranks.tolist() == [1] * answer["tokens"]


def test_encoder_decoder_with_a_target(translator):
    view = view_of(translator, "1. Mai", "05-01")
    assert view.maps[1].queries == ("[BOS]", *"05-01")
    assert view.scores.tokens == (*"05-01", "[EOS]")
    assert view.facts[:2] == (("input", "1. Mai"), ("target", "05-01"))
    assert view.prediction == "", "a given target is no prediction"
    row = {"source": T.encode("1. Mai"), "target": T.encode("05-01")}
    fields = seq2seq(row, None, tokenizer=T)
    given = read_input(translator, "1. Mai", "05-01")
    np.testing.assert_array_equal(given.fields["inputs"], fields["inputs"])
    np.testing.assert_array_equal(given.fields["encoder_inputs"], fields["encoder_inputs"])
    np.testing.assert_array_equal(given.targets, fields["targets"])
    batch = {name: np.asarray(x)[None].astype(np.int32) for name, x in fields.items()}
    nll = cross_entropy(
        outputs(translator, batch)["logits"], batch["targets"], batch["weights"]
    ).nll
    assert -view.scores.log_probabilities.sum() == pytest.approx(float(nll), rel=1e-5)


@pytest.mark.parametrize("target", [None, "ab"])
def test_prefix_lm_of_pairs(target):
    run = text_model("prefix_lm pairs", length=24, **TWO)
    view = view_of(run, "1. Mai", target)
    assert_complete(run, view, 2)
    (attention,) = view.maps
    assert attention.queries[:8] == ("[BOS]", *"1. Mai", "[SEP]")
    assert attention.visible_lts[..., :8].all()
    if target:
        row = {"source": T.encode("1. Mai"), "target": T.encode(target)}
        fields = prefix_lm_pair(row, None, tokenizer=T)
        given = read_input(run, "1. Mai", target)
        np.testing.assert_array_equal(given.fields["inputs"], fields["inputs"])
        np.testing.assert_array_equal(given.fields["prefix"], fields["prefix"])
        np.testing.assert_array_equal(given.targets, fields["targets"][fields["weights"] > 0])
        assert view.scores.tokens == (*target, "[EOS]")


def test_prefix_lm_of_documents():
    run = text_model("prefix_lm", length=24, **TWO)
    alone, more = view_of(run, "abc"), view_of(run, "abc", "de")
    assert alone.maps[0].visible_lts.all() and alone.scores is None
    assert more.maps[0].visible_lts[..., :4].all()
    assert more.scores.tokens == ("d", "e")


def test_images(tmp_path):
    run = untrained(digits, model=TWO)
    path = tmp_path / "digit.png"
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    view = view_of(run, str(path))
    assert dict(view.facts)["input"] == "digit.png", "without its directory"
    assert_complete(run, view, 2)
    rows, columns = view.patch_grid
    (attention,) = view.maps
    assert len(attention.queries) == view.leading_tokens + rows * columns
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(view.image_png))), pixels)
    assert attention.gradients_lhts is not None


@pytest.mark.parametrize(
    "attention", ["dot", "local", "longformer", "performer", "linear", "chunked", "recurrent"]
)
def test_masked_weights_differ_from_small_ones(attention):
    run = text_model(attention=attention, attention_window=3, attention_chunk=3, attention_memory=3,
                     attention_overlap=1, attention_features=8, position="rope", **TWO)  # fmt: skip
    view = view_of(run, "hello world")
    assert_complete(run, view, 2)
    visible = view.maps[0].visible_lts[0]
    is_local = attention in ("local", "longformer", "chunked", "recurrent")
    assert (visible == np.tril(np.ones_like(visible))).all() != is_local
    assert view.maps[0].kinds == (attention,) * 2
    assert ("weights" in dict(view.facts)) == (attention in ("performer", "linear"))


def test_layers_are_chosen_and_the_rollout_is_of_all(decoder):
    full_view, last = view_of(decoder, "hello"), view_of(decoder, "hello", layers=[1])
    assert last.maps[0].layers == (1,)
    np.testing.assert_array_equal(last.maps[0].weights_lhts, full_view.maps[0].weights_lhts[1:])
    np.testing.assert_array_equal(last.maps[0].rollout_ts, full_view.maps[0].rollout_ts)


def test_each_view_computes_only_its_own_parts(decoder):
    lens, logs = view_of(decoder, "hello", view="lens"), view_of(decoder, "hello", view="logprobs")
    full_view = view_of(decoder, "hello")
    assert not lens.maps and lens.scores is None and lens.lens.layers and lens.norms
    assert not logs.maps and logs.lens is None and logs.scores is not None
    np.testing.assert_array_equal(
        lens.lens.layers[-1].probabilities, full_view.lens.layers[-1].probabilities
    )
    np.testing.assert_allclose(
        logs.scores.log_probabilities, full_view.scores.log_probabilities, rtol=1e-5
    )


def test_refusals(decoder, classifier):
    with pytest.raises(ConfigError, match=r"--layers: there is no layer 2; .* are 0 to 1"):
        view_of(decoder, "hello", layers=[0, 2])
    with pytest.raises(ConfigError, match="--target is the text that a model writes"):
        view_of(classifier, "hello", "x")
    with pytest.raises(ConfigError, match="--view=logprobs"):
        view_of(classifier, "hello", view="logprobs")
    with pytest.raises(ConfigError, match="--view=heads is not one of"):
        view_of(decoder, "hello", view="heads")
    with pytest.raises(ConfigError, match="--target is not valid UTF-8"):
        view_of(decoder, "hello", "\udc80")
    with pytest.raises(ConfigError, match="attention weights"):
        view_of(decoder, "x" * 30_000)


def test_a_prompt_beyond_the_learned_positions_is_refused():
    run = text_model(position="learned", max_length=16)
    assert view_of(run, "x" * 14)
    with pytest.raises(ConfigError, match=r"model\.max_length=16; shorten it"):
        view_of(run, "x" * 17)
    with pytest.raises(ConfigError, match=r"model\.max_length=16"):
        view_of(run, "x" * 10, "y" * 9)
