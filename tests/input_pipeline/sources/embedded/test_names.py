import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.naive_bayes import MultinomialNB

from input_pipeline.sources.embedded import names


@pytest.fixture(scope="module")
def splits():
    return names.load()


def test_a_name_has_one_label_and_one_split(splits):
    texts = [e["text"] for e in (*splits.train, *splits.evals["held_out"])]
    assert len(set(texts)) == len(texts)


def test_names_that_languages_share_are_left_out(splits):
    label_of = {e["text"]: e["label"] for e in (*splits.train, *splits.evals["held_out"])}
    assert splits.labels[label_of["Deutschland"]] == "de"
    assert splits.labels[label_of["Saksa"]] == "fi"
    assert "Angola" not in label_of


def test_every_language_is_on_both_sides(splits):
    assert len(splits.labels) == 20
    for examples in (splits.train, splits.evals["held_out"]):
        assert {e["label"] for e in examples} == set(range(20))


def test_a_tenth_is_held_out(splits):
    eval_count, train = len(splits.evals["held_out"]), len(splits.train)
    assert 0.09 < eval_count / (eval_count + train) < 0.11


def test_trigram_naive_bayes_gets_about_three_quarters_right(splits):
    def texts_and_labels(examples):
        return [f"^{e['text']}$" for e in examples], np.array([e["label"] for e in examples])

    trigrams = CountVectorizer(analyzer="char", ngram_range=(3, 3), lowercase=False)
    texts, labels = texts_and_labels(splits.train)
    bayes = MultinomialNB().fit(trigrams.fit_transform(texts), labels)
    texts, labels = texts_and_labels(splits.evals["held_out"])
    accuracy = np.mean(bayes.predict(trigrams.transform(texts)) == labels)
    print(f"character-trigram naive Bayes: {accuracy:.3f}")
    assert 0.65 < accuracy < 0.82
