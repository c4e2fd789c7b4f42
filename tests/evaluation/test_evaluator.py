"""Scores against figures worked out by hand, with a table of bigrams in place of the model."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.default import get_config
from evaluation import evaluator as evaluator_module
from evaluation import metrics
from evaluation.evaluator import EvalSet, Evaluator, metric_names, refuse_metrics
from evaluation.target_rows import prompt_lengths
from experiment.schema import ConfigError
from inference.generation import Generator
from tests.tiny import tiny_config
from training.config import EvalConfig, TaskConfig

TASK = TaskConfig(**get_config().task.to_dict())
EVAL = EvalConfig(**get_config().eval.to_dict())
PAD, BOS, EOS, SEP = 0, 1, 2, 3
V = 9


class Tokenizer:
    pad_id, bos_id, eos_id = PAD, BOS, EOS
    text_start_ids, more_eos_ids, banned_ids = (), (), ()

    def decode(self, ids):
        return "".join(str(i) for i in np.asarray(ids) if i > SEP)


class Bigrams:
    """Predicts the next token from the last one, by a table. Replaces every head."""

    config = tiny_config()

    def apply(self, variables, inputs, *source, method=None, cache=None, last_only=False, **_):
        table_vv = variables["params"]["table"]
        if method == "encode":
            return inputs[..., None]
        logits_btv = table_vv[inputs[:, -1:] if last_only else inputs]
        return (logits_btv, cache) if method == "decode" else logits_btv


class FirstTokenClassifier:
    config = tiny_config()

    def apply(self, variables, inputs_bt, **_):
        return variables["params"]["table"][inputs_bt[:, 0]]


def params_with(table):
    """Parameters of a decoder without layers, with the table."""
    return {"backbone": {"decoder": {"blocks": {}}}, "table": jnp.asarray(table)}


class WithNextSentence(Bigrams):
    """Says that the second sentence follows where the first token is even."""

    def apply(self, variables, inputs_bt, **options):
        follows_b = 1 - inputs_bt[:, 0] % 2
        return super().apply(variables, inputs_bt), 4 * jax.nn.one_hot(follows_b, 2)


def batch(**rows):
    floats = ("weights",)
    return {
        name: jnp.asarray(values, jnp.float32 if name in floats else jnp.int32)
        for name, values in rows.items()
    }


def make_evaluator(objective, model=None, metrics=(), labels=(), **task):
    task = dataclasses.replace(TASK, objective=objective, **task)
    settings = dataclasses.replace(EVAL, metrics=metrics)
    config = tiny_config(tie_output=False)  # these models have no table of embeddings
    return Evaluator(model or Bigrams(), config, task, settings, Tokenizer(), labels), task


def measure(objective, table, *batches, text_bytes=0, has_target=False, references=(), **options):
    evaluator, task = make_evaluator(objective, **options)
    eval_set = EvalSet(batches, text_bytes, has_target, references)
    scores = evaluator.evaluate(params_with(table), eval_set)
    promised = metric_names(task, eval_set, options.get("metrics", ()))
    assert sorted(scores) == sorted(promised)  # before any compile
    return scores


# After any token, the next one is 0 with probability 1/2, 1 with 1/4, 2 and 3 with 1/8.
HALVES = jnp.log(jnp.broadcast_to(jnp.asarray([1 / 2, 1 / 4, 1 / 8, 1 / 8]), (4, 4)))
# Predicts 5 6 and the end, after bos and after a separator; 8 otherwise.
CHAIN = np.full((V, V), -2.0, np.float32)
for token, successor in {BOS: 5, SEP: 5, 5: 6, 6: EOS}.items():
    CHAIN[token, successor] = 2.0
CHAIN[[0, EOS, 4, 7, 8], 8] = 2.0


def test_a_language_model_by_hand():
    scores = measure(
        "causal_lm",
        HALVES,
        batch(inputs=[[1, 0, 1]], targets=[[0, 1, 2]], weights=[[1, 1, 1]]),
        # One bit in the second batch: a mean of the batches' means would be 1.5 bits.
        batch(inputs=[[1, 0, 1]], targets=[[0, 3, 3]], weights=[[1, 0, 0]]),
        text_bytes=5,
    )
    bits = (1 + 2 + 3) + 1
    assert scores == {
        "loss": pytest.approx(bits * math.log(2) / 4),
        "accuracy": pytest.approx(2 / 4),
        "perplexity": pytest.approx(2 ** (bits / 4)),
        "bits_per_byte": pytest.approx(bits / 5),
    }


def test_smoothing_and_z_loss_stay_out_of_the_scores():
    rows = batch(inputs=[[1, 0]], targets=[[0, 1]], weights=[[1, 1]])
    smoothed = measure("causal_lm", HALVES, rows, label_smoothing=0.2, z_loss=0.1)
    assert smoothed == measure("causal_lm", HALVES, rows)
    assert smoothed["perplexity"] == pytest.approx(2**1.5)


def test_perplexity_stays_finite_for_huge_losses():
    far = jnp.asarray([[0.0, -1e4]] * 2)
    scores = measure("causal_lm", far, batch(inputs=[[0]], targets=[[1]], weights=[[1]]))
    assert scores["loss"] == pytest.approx(1e4)
    assert math.isfinite(scores["perplexity"])


SOURCE = dict(encoder_inputs=[[4, EOS]] * 5, encoder_segment_ids=[[1, 1]] * 5)


def test_exact_match_needs_every_token():
    scores = measure(
        "seq2seq",
        CHAIN,
        batch(
            **SOURCE,
            segment_ids=[[1, 1, 1, 1]] * 5,
            inputs=[[BOS, 5, 6, 0], [BOS, 5, 7, 0], [BOS, 5, 6, 6], [BOS, 5, 0, 0], [BOS, 5, 6, 0]],
            targets=[
                [5, 6, EOS, 0],  # right
                [5, 7, EOS, 0],  # another token
                [5, 6, 6, EOS],  # goes on where the model ends
                [5, EOS, 0, 0],  # ends where the model goes on
                [5, 6, EOS, 0],  # right, but fills up the batch
            ],
            weights=[[1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]],
        ),
        has_target=True,
    )
    assert scores["exact_match"] == pytest.approx(1 / 4)
    # With the true tokens as inputs: 3 of 3, 1 of 3, 3 of 4, 1 of 2.
    assert scores["accuracy"] == pytest.approx(8 / 12)
    assert scores["perplexity"] == pytest.approx(math.exp(scores["loss"]))
    assert "bits_per_byte" not in scores


def test_a_truncated_target_counts_as_wrong():
    rows = dict(
        **SOURCE,
        segment_ids=[[1, 1, 1]] * 5,
        inputs=[[BOS, 5, 6]] * 5,
        targets=[[5, 6, EOS]] * 5,
        weights=[[1, 1, 1]] * 5,
    )
    scores = measure("seq2seq", CHAIN, batch(**rows), has_target=True)
    assert scores["exact_match"] == 1
    cut = batch(**rows, target_cut=[0, 1, 0, 1, 0])
    assert measure("seq2seq", CHAIN, cut, has_target=True)["exact_match"] == pytest.approx(0.6)


def test_the_answer_begins_where_the_prompt_ends():
    scores = measure(
        "prefix_lm",
        CHAIN,
        batch(
            inputs=[
                [BOS, 4, SEP, 5, 6],
                [BOS, SEP, 5, 6, 0],  # a shorter prompt
                [BOS, 4, SEP, 7, 6],  # another answer than the model's
                [BOS, SEP, 5, 6, 0],  # fills up the batch
            ],
            targets=[
                [4, SEP, 5, 6, EOS],
                [SEP, 5, 6, EOS, 0],
                [4, SEP, 7, 6, EOS],
                [SEP, 5, 6, EOS, 0],
            ],
            prefix=[[1, 1, 1, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 0, 0, 0]],
            weights=[[0, 0, 1, 1, 1], [0, 1, 1, 1, 0], [0, 0, 1, 1, 1], [0, 0, 0, 0, 0]],
        ),
        has_target=True,
    )
    assert scores["exact_match"] == pytest.approx(2 / 3)


def test_classes_by_hand():
    scores = measure(
        "classify_text",
        HALVES,
        batch(inputs=[[1], [2], [3], [0]], labels=[0, 0, 1, 0], weights=[1, 1, 1, 0]),
        model=FirstTokenClassifier(),
    )
    assert scores == {
        "loss": pytest.approx((1 + 1 + 2) * math.log(2) / 3),
        "accuracy": pytest.approx(2 / 3),
    }


# The model always answers "56": right, then wrong, then a padding row.
TWO_ANSWERS = dict(
    segment_ids=[[1, 1, 1]] * 3,
    encoder_inputs=[[4, EOS]] * 3,
    encoder_segment_ids=[[1, 1]] * 3,
    inputs=[[BOS, 5, 6], [BOS, 7, 7], [BOS, 5, 6]],
    targets=[[5, 6, EOS], [7, 7, EOS], [5, 6, EOS]],
    weights=[[1, 1, 1], [1, 1, 1], [0, 0, 0]],
)


def test_texts_are_compared_with_the_references_and_not_with_the_targets():
    """Targets may be truncated, or have lost characters in the tokenizer."""
    scores = measure(
        "seq2seq",
        CHAIN,
        batch(**TWO_ANSWERS),
        batch(**TWO_ANSWERS),
        has_target=True,
        metrics=("bleu", "chrf", "rouge"),
        references=["56", "77", None, "a 56", "56", None],
    )
    # Words in common: 1 of 1 and 1; 0; 1 of 1 and 2; 1 of 1 and 1.
    assert scores["rouge1"] == scores["rougeL"] == pytest.approx((1 + 0 + 2 / 3 + 1) / 4)
    assert scores["exact_match"] == pytest.approx(1 / 2)
    assert scores["rouge2"] == 0
    expected, _ = metrics.chrf(["56"] * 4, ["56", "77", "a 56", "56"])
    assert scores["chrf"] == expected > 0


def test_any_eos_id_ends_an_answer(monkeypatch):
    monkeypatch.setattr(Tokenizer, "more_eos_ids", (SEP,))
    table = CHAIN.copy()
    table[5, SEP] = 3.0  # it says 5, the other end, and would go on with 5
    scores = measure(
        "seq2seq", table, batch(**TWO_ANSWERS), has_target=True,
        metrics=("rouge",), references=["5", "5", None],
    )  # fmt: skip
    assert scores["rouge1"] == 1


def test_an_answer_is_generated_once_for_all_metrics(monkeypatch):
    calls = []
    generate = Evaluator._generate

    def counted(*args, **options):
        calls.append(1)
        return generate(*args, **options)

    monkeypatch.setattr(Evaluator, "_generate", counted)
    measure(
        "seq2seq",
        CHAIN,
        batch(**TWO_ANSWERS),
        has_target=True,
        metrics=("bleu", "chrf", "rouge"),
        references=["56", "77", None],
    )
    assert len(calls) == 1


# Predicts the class of the token's number with probability 1/2; the others have 1/4.
CLASSES = jnp.log(jnp.asarray([[2, 1, 1], [1, 2, 1], [1, 1, 2]]) / 4)


def test_metrics_of_classes_by_hand():
    scores = measure(
        "classify_text",
        CLASSES,
        batch(inputs=[[0], [0], [1]], labels=[0, 0, 1], weights=[1, 1, 1]),
        batch(inputs=[[1], [2], [0]], labels=[0, 2, 2], weights=[1, 1, 0]),
        model=FirstTokenClassifier(),
        metrics=("macro_f1", "matthews", "pearson", "spearman"),
        labels=("0", "1", "5"),
    )
    # Guesses 0 0 1 1 2 for 0 0 1 0 2. F1: 2 right of 2 and 3; 1 of 2 and 1; 1 of 1 and 1.
    assert scores["accuracy"] == pytest.approx(4 / 5)
    assert scores["macro_f1"] == pytest.approx((4 / 5 + 2 / 3 + 1) / 3)
    # 4 right of 5; guessed 2 2 1 times, occurring 3 1 1 times.
    expected = (4 * 5 - 9) / math.sqrt((25 - 9) * (25 - 11))
    assert scores["matthews"] == pytest.approx(expected)
    # The classes stand for 0, 1 and 5; the prediction is their mean by probability.
    said = np.array([6, 6, 7, 7, 11]) / 4
    assert scores["pearson"] == pytest.approx(np.corrcoef(said, [0, 0, 1, 0, 5])[0, 1])
    ranks = np.corrcoef([1.5, 1.5, 3.5, 3.5, 5], [2, 2, 4, 2, 5])[0, 1]
    assert scores["spearman"] == pytest.approx(ranks)


def test_top_5_accuracy():
    logits = jnp.asarray([[6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0]] * 7)
    scores = measure(
        "classify_images",
        logits,
        dict(batch(labels=[0, 4, 5, 6], weights=[1, 1, 1, 0]), images=jnp.zeros((4, 1), jnp.int32)),
        model=FirstTokenClassifier(),
        metrics=("top5_accuracy",),
        labels=tuple("abcdefg"),
    )
    assert scores["accuracy"] == pytest.approx(1 / 3)
    assert scores["top5_accuracy"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("measure", "labels", "has_target", "reason"),
    [
        ("bleu", (), False, "bleu compares outputs with references, and some has none"),
        ("pearson", ("1", "2.5", "many"), False, "but one of the data's is 'many'; take it out"),
        ("spearman", ("1", "nan"), False, "but one of the data's is 'nan'"),
        ("top5_accuracy", ("a",) * 5, False, "top5_accuracy of 5 classes is always 1"),
    ],
)
def test_metrics_that_the_data_does_not_allow_are_refused(measure, labels, has_target, reason):
    sets = {"some": EvalSet([], 0, has_target)}
    with pytest.raises(ConfigError, match=reason):
        refuse_metrics((measure,), labels, sets)
    allowed = {"some": EvalSet([], 0, has_target=True)}
    refuse_metrics((measure,), ("1", "-2.5", "3e1", "4", "5", "6"), allowed)


def test_padding_rows_do_not_count_in_next_sentence_accuracy():
    scores = measure(
        "masked_lm",
        HALVES,
        batch(
            inputs=[[0, 1], [1, 1], [2, 1], [1, 1]],
            targets=[[0, 1], [0, 1], [0, 1], [0, 1]],
            weights=[[1, 1], [1, 0], [1, 0], [0, 0]],
            segment_ids=[[1, 1], [1, 1], [1, 1], [1, 1]],
            next_sentence=[1, 1, 1, 0],
        ),
        model=WithNextSentence(),
        next_sentence=True,
    )
    assert scores["accuracy"] == pytest.approx(3 / 4)
    assert scores["next_sentence_accuracy"] == pytest.approx(2 / 3)


def test_answers_begin_after_the_start_ids_of_texts(monkeypatch):
    # After BOS the model predicts 7: it answers 5 6 only if SEP follows.
    table = CHAIN.copy()
    table[BOS] = np.eye(V, dtype=np.float32)[7]
    rows = batch(
        **SOURCE,
        segment_ids=[[1, 1, 1, 1]] * 5,
        inputs=[[BOS, SEP, 5, 6]] * 5,
        targets=[[SEP, 5, 6, EOS]] * 4 + [[SEP, 5, 7, EOS]],
        weights=[[1, 1, 1, 1]] * 5,
    )
    assert measure("seq2seq", table, rows, has_target=True)["exact_match"] == 0
    monkeypatch.setattr(Tokenizer, "text_start_ids", (SEP,))
    assert measure("seq2seq", table, rows, has_target=True)["exact_match"] == pytest.approx(0.8)


def test_samples_show_question_answer_and_truth():
    evaluator, _ = make_evaluator("seq2seq")
    rows = batch(
        **SOURCE,
        segment_ids=[[1, 1, 1]] * 5,
        inputs=[[BOS, 5, 7]] * 5,
        targets=[[5, 7, EOS]] * 5,
        weights=[[1, 1, 1]] * 5,
    )
    eval_set = EvalSet([rows], 0, has_target=True)
    text = evaluator.samples(params_with(CHAIN), eval_set, [{"source": "four"}] * 2)
    block = "given:    four\nanswer:   56\nexpected: 57"
    assert text == f"{block}\n\n{block}\n"


def test_parameters_are_laid_out_for_decoding_once_per_evaluation(monkeypatch):
    calls = []

    class Counting(Generator):
        def __init__(self, *args, **named):
            super().__init__(*args, **named)
            lay_out = self.lay_out
            self.lay_out = lambda params: calls.append(params) or lay_out(params)

    monkeypatch.setattr(evaluator_module, "Generator", Counting)
    evaluator, _ = make_evaluator("seq2seq")
    rows = batch(
        **SOURCE,
        segment_ids=[[1, 1, 1]] * 5,
        inputs=[[BOS, 5, 6]] * 5,
        targets=[[5, 6, EOS]] * 5,
        weights=[[1, 1, 1]] * 5,
    )
    eval_set = EvalSet([rows] * 3, 0, has_target=True)
    params = params_with(CHAIN)
    for _ in range(2):  # two sets
        assert evaluator.evaluate(params, eval_set)["exact_match"] == 1
    evaluator.samples(params, eval_set, [{"source": "four"}])
    assert len(calls) == 1
    evaluator.release()
    other = params_with(np.zeros((V, V), np.float32))
    assert evaluator.evaluate(other, eval_set)["exact_match"] == 0
    assert len(calls) == 2, "other parameters are laid out anew"
    evaluator.evaluate(params, eval_set)
    assert len(calls) == 3


def test_samples_of_a_classifier_name_the_classes():
    evaluator, _ = make_evaluator(
        "classify_text", model=FirstTokenClassifier(), labels=("half", "quarter")
    )
    rows = batch(inputs=[[1], [2], [3]], labels=[0, 1, 0], weights=[1, 1, 1])
    examples = [{"text": "x", "label": 0}, {"text": "y", "label": 1}]
    text = evaluator.samples(params_with(HALVES), EvalSet([rows], 0, False), examples)
    assert text == "x -> half (half)\ny -> half (quarter)\n"


def test_a_sample_of_a_conversation_begins_with_its_question():
    """The prompt ends at the first weight; that of running text is half of the row."""
    weights = np.zeros((4, 8))
    weights[0, 2:4] = weights[1, 6:] = weights[2] = 1
    batch = {"inputs": np.zeros((4, 8), int), "weights": weights}
    assert prompt_lengths(batch).tolist() == [3, 4, 4, 4]
