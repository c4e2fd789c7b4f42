"""The best answer against all spans of all windows; a small model learns to find answers."""

import json

import numpy as np
import pytest

import evaluate
import generate
import train
from configs import answer_span
from experiment.schema import ConfigError
from inference.answer_spans import Window, best_answer


def draw_windows(rng, tokens, size=7, overlap=3):
    """Random logits of windows over a context, each behind two columns and before one."""
    found, first = [], 0
    while True:
        stop = min(first + size, tokens)
        logits_2t = rng.normal(size=(2, 2 + stop - first + 1)).astype(np.float32)
        found.append(Window(logits_2t, 2, 2 + stop - first, first))
        if stop == tokens:
            return found
        first += size - overlap


@pytest.mark.parametrize("seed", range(5))
def test_the_best_answer_is_that_of_all_spans(seed):
    rng = np.random.default_rng(seed)
    context = "one two  three four five six seven"
    words = [(context.index(word), context.index(word) + len(word)) for word in context.split()]
    # Some tokens begin with the space before a word, and one has no text.
    spans = [(max(start - (n % 2), 0), end) for n, (start, end) in enumerate(words)]
    spans = np.array([*spans[:3], (spans[2][1],) * 2, *spans[3:]] * 2)[:12]
    windows, most = draw_windows(rng, len(spans)), 4
    expected = {}
    for window in windows:
        for i in range(window.start, window.end):
            for j in range(i, min(i + most, window.end)):
                one, other = (spans[window.first + each - window.start] for each in (i, j))
                if one[0] < one[1] and other[0] < other[1]:
                    score = float(window.logits_2t[0, i]) + float(window.logits_2t[1, j])
                    expected[score] = context[one[0] : other[1]].strip()
    found = best_answer(windows, context, spans, most)
    assert found.score == pytest.approx(max(expected))
    assert found.text == expected[max(expected)] == context[found.start : found.end]
    none = min(float(each.logits_2t[:, 0].sum()) for each in windows)
    assert found.no_answer == pytest.approx(none)


WORDS = ["red", "green", "blue", "box", "pen", "cup", "on", "in", "with", "the", "of", "and"]


def question(rng):
    """The answer is the capital letter, wherever it is."""
    letter = "ABCDEF"[rng.integers(6)]
    words = rng.choice(WORDS, rng.integers(4, 13)).tolist()
    words.insert(rng.integers(len(words) + 1), letter)
    return dict(question="which", context=" ".join(words), answer=letter)


@pytest.fixture(scope="module")
def finder(tmp_path_factory):
    """A run that learnt to find letters in texts longer than a row; its directory and its data."""
    directory, rng = tmp_path_factory.mktemp("letters"), np.random.default_rng(0)
    for split, count in (("train", 300), ("validation", 24)):
        lines = [json.dumps(question(rng)) for _ in range(count)]
        (directory / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    config = answer_span.get_config()
    config.data.update(
        dict(
            path=str(directory),
            cache_dir=str(directory / "cache"),
            tokenizer="byte",
            lowercase=False,
            length=48,
        )
    )
    config.data.update(dict(batch_size=16, bucket_count=0))
    config.task.update(dict(window_overlap=8, answer_tokens=6))
    config.model.update(
        dict(width=32, heads=2, feed_forward=32, encoder_layers=1, max_length=48, unroll=1)
    )
    config.update(dict(steps=60, log_every=60))
    config.eval.update(dict(every=60, batch_size=16, samples=2))
    config.optimizer.learning_rate = 0.01
    train.train_and_evaluate(config.to_dict(), directory / "run")
    lines = (directory / "validation.jsonl").read_text().splitlines()
    return directory / "run", [json.loads(line) for line in lines]


def test_answers_are_parts_of_the_context_and_scored_as_evaluated(finder):
    run, examples = finder
    lines = ["{question}\t{context}".format(**record) for record in examples]
    found = [output for (output,) in generate.generate(run, lines, batch_size=5)]
    for record, output in zip(examples, found, strict=True):
        context = record["context"]
        assert output["answer"] == context[output["start"] : output["end"]]
    assert any(len(line) > 48 for line in lines), "some contexts have several windows"
    pairs = zip(examples, found, strict=True)
    exact = [output["answer"] == record["answer"] for record, output in pairs]
    scores = evaluate.evaluate(run)
    assert scores["eval/validation/squad_exact_match"] == pytest.approx(100 * np.mean(exact))
    assert np.mean(exact) > 0.9
    (sample,) = (run / "samples").iterdir()
    assert sample.read_text().startswith("which -> ")


def test_prompts_without_a_context_are_refused(finder):
    run, _ = finder
    for line in ("which", "a\tb\tc", "\tred A", "which\t "):
        with pytest.raises(ConfigError, match="must be a question and a context, with a tab"):
            generate.generate(run, [line])
