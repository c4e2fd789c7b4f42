"""Beam prepares the same bytes as this machine alone."""

import dataclasses

import pytest

from experiment.schema import ConfigError
from input_pipeline import pipeline, preparation
from input_pipeline.beam_preparation import on_beam
from input_pipeline.token_cache import TokenCache
from tests import corpora
from tests.tiny import data_config, masking

pytest.importorskip("apache_beam")

LOCALLY = ["--runner=DirectRunner"]
EVERY_KIND = [
    (corpora.text_files, "causal_lm", dict(tokenizer="bpe", tokenizer_size=400, packing=True)),
    (corpora.text_files, "span_corruption", {}),
    (corpora.translation_files, "seq2seq", dict(packing=True)),
    (corpora.labelled_text_files, "classify_text", {}),
    (corpora.labelled_shards, "classify_text", {}),
]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(preparation, "CHUNK", 7)


def prepared(data, objective, options=None) -> dict[str, bytes]:
    """The content of every file in the cache, filled by Beam or by this machine."""
    cache = TokenCache(data) if options is None else TokenCache(data, on_beam(data, options))
    pipeline.load(data, objective=objective, masking=masking(), seed=0, cache=cache)
    return corpora.contents(cache.directory)


def both_ways(data, tmp_path):
    for name in ("alone", "beam"):
        yield dataclasses.replace(data, cache_dir=str(tmp_path / name))


@pytest.mark.parametrize(("corpus", "objective", "keys"), EVERY_KIND)
def test_beam_writes_the_same_cache_byte_for_byte(corpus, objective, keys, tmp_path):
    data = data_config(**corpus(tmp_path / "corpus"), **keys)
    alone, beam = both_ways(data, tmp_path)
    expected = prepared(alone, objective)
    assert sum(name.endswith("table.json") for name in expected) == 2  # training and held out
    assert prepared(beam, objective, LOCALLY) == expected


def with_bad_records(tmp_path, allowed):
    keys = corpora.translation_files(tmp_path / "corpus")
    path = tmp_path / "corpus" / "train.de"
    lines = path.read_text().splitlines(keepends=True)
    for number in (3, 5, 20, 40):  # in three of the chunks, twice in the first
        lines[number] = "\n"
    path.write_text("".join(lines))
    return data_config(**keys, max_bad_records=allowed)


@pytest.mark.parametrize("allowed", [0, 1, 2, 3])
def test_beam_refuses_bad_records_with_the_same_message(allowed, tmp_path):
    data = with_bad_records(tmp_path, allowed)
    reasons = []
    for each, options in zip(both_ways(data, tmp_path), (None, LOCALLY), strict=True):
        with pytest.raises(ConfigError, match="an empty line") as refusal:
            prepared(each, "seq2seq", options)
        reasons.append(str(refusal.value))
    assert reasons[0] == reasons[1]


def test_beam_records_the_same_bad_records(tmp_path):
    alone, beam = both_ways(with_bad_records(tmp_path, 4), tmp_path)
    expected = prepared(alone, "seq2seq")
    assert sum(content.count(b"an empty line") for content in expected.values()) == 4
    assert prepared(beam, "seq2seq", LOCALLY) == expected


def test_a_worker_that_finds_other_files_refuses(tmp_path):
    here, there = (data_config(**corpora.text_files(tmp_path / name)) for name in ("a", "b"))
    corpora.write(tmp_path / "b" / "shard-00.txt", "changed")
    cache = TokenCache(dataclasses.replace(here, cache_dir=str(tmp_path)), on_beam(there, LOCALLY))
    with pytest.raises(ConfigError, match="must hold the same files on both"):
        pipeline.load(here, objective="causal_lm", masking=masking(), seed=0, cache=cache)
    assert not list(tmp_path.rglob("*.npz"))


def test_chunks_missing_from_the_shared_cache_are_refused(tmp_path, monkeypatch):
    data = data_config(**corpora.text_files(tmp_path / "corpus"), cache_dir=str(tmp_path / "cache"))
    monkeypatch.setattr(preparation, "write_chunk", lambda *_: None)
    monkeypatch.setattr(preparation, "read_chunk", lambda *_: preparation.TokenTable({}))
    with pytest.raises(ConfigError, match=r"data\.cache_dir .* all machines share"):
        prepared(data, "causal_lm", LOCALLY)


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("--runner=Nobody", "Unexpected pipeline runner: Nobody"),
        ("--direct_num_workers=many", "invalid int value: 'many'"),
    ],
)
def test_options_that_beam_does_not_take_are_refused_in_a_line(option, reason):
    with pytest.raises(ConfigError, match=reason) as refusal:
        on_beam(data_config(), [option])
    assert len(str(refusal.value).splitlines()) == 1
