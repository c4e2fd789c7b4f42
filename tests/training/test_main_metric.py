"""Which score sums up a run."""

import pytest

from training.main_metric import main_metric, mode_of


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["train/loss"], ""),
        (["train/loss", "eval/failures"], ""),
        (["eval/a/loss", "eval/a/accuracy"], "eval/a/accuracy"),
        (["eval/a/loss", "eval/a/accuracy", "eval/a/perplexity", "eval/a/bits_per_byte"],
         "eval/a/bits_per_byte"),
        (["eval/a/loss", "eval/a/exact_match", "eval/a/bleu"], "eval/a/bleu"),
        (["eval/a/loss", "eval/a/accuracy", "eval/a/hit@10", "eval/a/mrr"], "eval/a/hit@10"),
        (["eval/a/loss", "eval/a/accuracy", "eval/a/ece"], "eval/a/accuracy"),
        # The first set counts, even if another has a score that is preferred.
        (["eval/b/loss", "eval/a/bleu"], "eval/b/loss"),
        (["eval/some/where/matthews"], "eval/some/where/matthews"),
    ],
)  # fmt: skip
def test_the_usual_score_of_the_first_set_is_chosen(names, expected):
    assert main_metric(names) == expected


def test_the_configs_own_metric_comes_first_if_it_was_measured():
    names = ["eval/a/loss", "eval/a/accuracy"]
    assert main_metric(names, "eval/a/loss") == "eval/a/loss"
    assert main_metric(names, "eval/b/loss") == "eval/a/accuracy"


def test_losses_are_better_when_less():
    less = ("train/loss", "eval/a/perplexity", "eval/a/bits_per_byte", "eval/a/next_sentence_nll",
            "eval/a/ece")  # fmt: skip
    more = ("eval/a/accuracy", "eval/a/bleu", "eval/a/next_sentence_accuracy", "eval/a/matthews")
    assert {mode_of(name) for name in less} == {"min"}
    assert {mode_of(name) for name in more} == {"max"}
