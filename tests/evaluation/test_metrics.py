"""Metrics against figures worked out by hand, and against scikit-learn and SciPy."""

import importlib.metadata
import itertools

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics

from evaluation import metrics

# The example in sacrebleu's README, with the first of its two sets of references.
REFERENCES = ["The dog bit the man.", "It was not unexpected.", "The man bit him first."]
HYPOTHESES = ["The dog bit the man.", "It wasn't surprising.", "The man had just bitten him."]


def test_bleu_by_hand():
    score, _ = metrics.bleu(["the cat sat on the mat"], ["the cat sat on a mat"])
    # Of 6 words 5 are right (the second "the" is one too many), of 5 pairs 3, 2 of 4, 1 of 3.
    assert score == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** (1 / 4))


def test_bleu_is_of_the_corpus_and_punishes_brevity():
    # The pairs together: the mean of a perfect one and one of nothing would be 50.
    score, _ = metrics.bleu(["a b c d", "e f g h"], ["a b c d", "i j k l m n"])
    precisions = 4 / 8 * 3 / 6 * 2 / 4 * 1 / 2
    assert score == pytest.approx(100 * np.exp(1 - 10 / 8) * precisions ** (1 / 4))


def test_bleu_cuts_off_punctuation_and_minds_capitals():
    assert metrics.bleu(["one two three, four!"], ["one two three , four !"])[0] == (
        pytest.approx(100)
    )
    assert metrics.bleu(["One Two Three Four"], ["one two three four"])[0] < 20


def test_chrf_by_hand():
    score, _ = metrics.chrf(["abc"], ["abd"])
    # 2 of 3 characters, 1 of 2 pairs, 0 of 1 triple; precision and recall are equal, so F is, too.
    assert score == pytest.approx(100 * (2 / 3 + 1 / 2 + 0) / 3)


def test_the_signatures_are_those_that_sacrebleu_prints():
    version = importlib.metadata.version("sacrebleu")
    expected = {
        "bleu": f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{version}",
        "chrf": f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:{version}",
    }
    assert metrics.signatures(["bleu", "rouge", "chrf", "macro_f1"]) == expected
    assert metrics.bleu(HYPOTHESES, REFERENCES)[1] == expected["bleu"]
    assert metrics.chrf(HYPOTHESES, REFERENCES)[1] == expected["chrf"]


def test_rouge_by_hand():
    # The example of the ROUGE paper: the same words in common, but not in the same order.
    reference = "Police killed the gunman."
    scores = metrics.rouge(["police kill the gunman"], [reference])
    turned = metrics.rouge(["the gunman kill police!"], [reference])
    assert scores == {"rouge1": 3 / 4, "rouge2": 1 / 3, "rougeL": 3 / 4}
    assert turned == {"rouge1": 3 / 4, "rouge2": 1 / 3, "rougeL": 2 / 4}


@pytest.mark.parametrize(
    ("hypothesis", "expected"),
    [
        ("testing", dict(rouge1=1 / 2)),
        ("testing one", dict(rouge1=4 / 5, rouge2=2 / 3, rougeL=4 / 5)),
        ("testing two", dict(rougeL=4 / 5)),
        ("", dict(rouge1=0, rouge2=0, rougeL=0)),
    ],
)
def test_rouge_is_that_of_the_package(hypothesis, expected):
    """The figures are those of rouge-score's own tests."""
    scores = metrics.rouge([hypothesis], ["testing one two"])
    assert {name: scores[name] for name in expected} == pytest.approx(expected)


def test_rouge_clips_counts_and_averages_over_texts():
    scores = metrics.rouge(["the the the", "ÉTÉ 2024"], ["the cat", "ete, 2024?"])
    # 1 of 3 and 1 of 2 words; then of "t", "2024" and "ete", "2024" one each. No pairs in common.
    assert scores["rouge1"] == pytest.approx((2 * 1 / 5 + 2 * 1 / 4) / 2)
    assert scores["rouge2"] == 0
    assert metrics.rouge(["", "月曜"], ["", "月曜"]) == dict(rouge1=0, rouge2=0, rougeL=0)


def test_the_longest_common_subsequence_is_that_of_trying_them_all():
    rng = np.random.default_rng(0)

    def subsequences(words):
        for size in range(len(words) + 1):
            yield from itertools.combinations(words, size)

    for _ in range(50):
        a, b = (["xyz"[i] for i in rng.integers(3, size=rng.integers(7))] for _ in range(2))
        longest = max(len(s) for s in set(subsequences(a)) & set(subsequences(b)))
        expected = 2 * longest / (len(a) + len(b)) if longest else 0
        assert metrics.rouge([" ".join(a)], [" ".join(b)])["rougeL"] == pytest.approx(expected)


def test_f1_and_matthews_by_hand():
    labels, guesses = np.array([1, 1, 1, 0, 0]), np.array([1, 1, 0, 0, 1])
    # Class 1: 2 right of 3 guessed and 3 true; class 0: 1 right of 2 and 2.
    assert metrics.macro_f1(labels, guesses) == pytest.approx((2 / 3 + 1 / 2) / 2)
    # (TP TN - FP FN) / sqrt((TP+FP)(TP+FN)(TN+FP)(TN+FN))
    assert metrics.matthews(labels, guesses) == pytest.approx((2 * 1 - 1 * 1) / np.sqrt(36))


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_f1_and_matthews_are_those_of_scikit_learn(classes):
    rng = np.random.default_rng(classes)
    labels = rng.integers(classes, size=200)
    labels[labels == 1] = 0  # a class that is guessed, but does not occur
    guesses = np.where(rng.random(200) < 0.6, labels, rng.integers(classes, size=200))
    expected = sklearn.metrics.f1_score(labels, guesses, average="macro")
    assert metrics.macro_f1(labels, guesses) == pytest.approx(expected)
    expected = sklearn.metrics.matthews_corrcoef(labels, guesses)
    assert metrics.matthews(labels, guesses) == pytest.approx(expected)


def test_correlations_are_those_of_scipy():
    rng = np.random.default_rng(0)
    x = rng.integers(6, size=100).astype(np.float32)  # many ties
    y = x + rng.normal(size=100).astype(np.float32)
    assert metrics.pearson(x, y) == pytest.approx(scipy.stats.pearsonr(x, y).statistic)
    assert metrics.spearman(x, y) == pytest.approx(scipy.stats.spearmanr(x, y).statistic)
    # Only the order counts.
    assert metrics.spearman(x, np.exp(y)) == pytest.approx(metrics.spearman(x, y))


def test_ties_share_their_mean_rank():
    # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4.
    expected = (5 - 0.5) / np.sqrt(4.5 * 5)
    assert metrics.spearman(np.array([0, 7, 7, 9]), np.arange(4)) == pytest.approx(expected)


def test_one_class_alone():
    labels = np.zeros(3, int)
    assert metrics.macro_f1(labels, labels) == 1
    assert metrics.macro_f1(labels, labels + 1) == 0
    assert metrics.matthews(labels, labels) == 0
    assert metrics.macro_f1(labels[:1], labels[:1]) == 1
    assert metrics.pearson(labels[:1], labels[:1] + 1) == 0


def test_a_set_without_rows_has_no_scores():
    nothing = np.zeros(0, int)
    with pytest.raises(ValueError):
        metrics.class_scores(["macro_f1"], nothing, np.zeros((0, 3)))
    for correlation in (metrics.pearson, metrics.spearman):
        with pytest.raises(IndexError):
            correlation(nothing, nothing)


def test_macro_f1_averages_over_labelled_and_predicted_classes():
    # Class 0: 1 right, 1 missed; class 1: 1 wrongly guessed; class 9: right. Others do not occur.
    labels, guesses = np.array([0, 0, 9]), np.array([0, 1, 9])
    assert metrics.macro_f1(labels, guesses) == pytest.approx((2 / 3 + 0 + 1) / 3)


def test_correlation_with_a_constant_is_zero():
    constant, other = np.full(7, 0.1), np.arange(7)
    assert metrics.pearson(constant, other) == 0
    assert metrics.spearman(other, constant) == 0
    assert metrics.matthews(np.zeros(7, int), other) == 0


def test_top_k_by_hand():
    scores = np.array([[0.1, 0.5, 0.4], [0.3, 0.3, 0.4], [0.2, np.nan, 0.8]])
    labels = np.array([2, 0, 1])
    assert metrics.in_top(1, scores, labels).tolist() == [False, False, False]
    # In the second row 0 and 1 are tied for the second place; the third has no score.
    assert metrics.in_top(2, scores, labels).tolist() == [True, False, False]
    assert metrics.in_top(2, scores[:, ::-1], labels).tolist() == [False, True, False]


def test_top_k_equals_scikit_learn():
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=(200, 9)), rng.integers(9, size=200)
    for k in (1, 5):
        expected = sklearn.metrics.top_k_accuracy_score(labels, scores, k=k)
        assert metrics.in_top(k, scores, labels).mean() == pytest.approx(expected)


def test_entities_by_hand():
    found = metrics.entities(
        ["B-PER", "I-PER", "O", "B-LOC", "B-LOC", "I-PER", "E-PER", "S-ORG", "O", "X"]
    )
    places = {
        ("PER", 0, 2),
        ("LOC", 3, 4),
        ("LOC", 4, 5),
        ("PER", 5, 7),
        ("ORG", 7, 8),
        ("X", 9, 10),
    }
    assert found == places
    assert metrics.entities(["I-A", "I-A", "I-B", "B-B"]) == {
        ("A", 0, 2), ("B", 2, 3), ("B", 3, 4),
    }  # fmt: skip
    assert metrics.entities(["O"]) == metrics.entities([]) == set()


def test_entity_f1_needs_both_ends_and_the_type():
    expected = [["B-A", "I-A", "O"], ["B-B", "O", "B-A"]]
    found = [["B-A", "O", "O"], ["B-B", "O", "B-B"]]
    # One of 3 expected and 3 found entities is right.
    assert metrics.entity_f1(expected, found) == pytest.approx(1 / 3)
    assert metrics.entity_f1(expected, expected) == 1
    assert metrics.entity_f1([["O"]], [["O"]]) == 0
