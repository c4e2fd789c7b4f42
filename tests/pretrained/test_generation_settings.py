"""Settings of generation_config.json are told with the flags that stand for them, and kept."""

import json
import shlex

import pytest

import convert
from inference import sampling_options
from pretrained import generation_settings
from tests.pretrained.test_round_trip import words  # noqa: F401  a fixture


def describe(family="decoder", **settings):
    return generation_settings.describe(settings, family=family)


@pytest.mark.parametrize(
    ("settings", "flags", "without"),
    [
        (
            dict(repetition_penalty=1.3, max_new_tokens=15, no_repeat_ngram_size=3),
            "--repetition_penalty=1.3 --max_new_tokens=15",
            "no_repeat_ngram_size=3 has no flag here",
        ),
        (
            dict(do_sample=True, temperature=0.6, top_p=0.9),
            "--method=sample --temperature=0.6 --top_p=0.9 --top_k=50",
            "",
        ),
        (dict(do_sample=True, top_k=7, min_p=0.1), "--method=sample --top_k=7 --min_p=0.1", ""),
        (dict(do_sample=True, top_k=50), "--method=sample --top_k=50", ""),
        (
            dict(num_beams=4, length_penalty=2.0, early_stopping=True, repetition_penalty=1.1),
            "--method=beam --beam_size=4",
            "length_penalty=2.0, early_stopping=True, repetition_penalty=1.1 have no flag here",
        ),
        (
            dict(num_beams=3, do_sample=True, num_return_sequences=2),
            "--method=beam --beam_size=3 --num_outputs=2",
            "do_sample=True has no flag here",
        ),
        (dict(max_length=62, family="encoder_decoder"), "--max_new_tokens=61", ""),
        (dict(max_length=50, max_new_tokens=9), "--max_new_tokens=9", ""),
        (dict(max_length=50), "", "max_length=50 has no flag here"),
        (dict(stop_strings=["User:", "it's a b"]), """--stop=User: --stop='it'"'"'s a b'""", ""),
        (dict(num_beams="many"), "", 'num_beams="many" has no flag here'),
    ],
)
def test_the_log_line_names_the_flags(settings, flags, without):
    line = describe(**settings)
    asks, _, remedy = line.partition(": ")
    assert asks.startswith("generation_config.json asks for ")
    assert remedy == "; ".join(
        part for part in (f"generate.py takes {flags}" if flags else "", without) if part
    )
    given = dict(flag.removeprefix("--").split("=", 1) for flag in shlex.split(flags))
    for name, value in given.items():
        kind = type(getattr(sampling_options.DEFAULTS, name))
        given[name] = (value,) if kind is tuple else kind(value)
    sampling_options.from_flags(given)  # refuses what has no effect


def test_the_log_line_has_no_line_breaks():
    line = describe(stop_strings=["it's\n"], bad_words_ids=[[7, 8]] * 99)
    assert r"--stop=$'it\'s\n'; bad_words_ids=[[7, 8], [7, 8], " in line
    assert "\n" not in line and len(line) < 300


def test_settings_without_effect_are_not_logged():
    assert describe() == ""
    assert describe(num_beams=1, top_k=50, use_cache=True, forced_eos_token_id=2) == ""
    # Words of one token are never generated here either; see test_forced_tokens.
    assert describe(bad_words_ids=[[7], [0]]) == ""
    # Without do_sample and beams, transformers does not heed these either.
    assert describe(temperature=0.6, top_p=0.9, length_penalty=2.0, bad_words_ids=None) == ""


def test_generation_settings_are_imported_and_exported(changed, words, tmp_path, caplog):  # noqa: F811
    settings = dict(repetition_penalty=1.3, max_new_tokens=15, top_k=3, forced_eos_token_id=2)
    directory = changed("gpt2")
    ids = dict(bos_token_id=1, eos_token_id=2, transformers_version="5")
    (directory / "generation_config.json").write_text(json.dumps(settings | ids))
    convert.convert(str(directory), str(tmp_path / "in"), tokenizer=words)
    assert (
        "generation_config.json asks for repetition_penalty=1.3, max_new_tokens=15: generate.py "
        "takes --repetition_penalty=1.3 --max_new_tokens=15"
    ) in caplog.text
    convert.convert(str(tmp_path / "in"), str(tmp_path / "out"))
    written = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert {key: written[key] for key in settings} == settings
    assert written["eos_token_id"] == 2 and "transformers_version" not in written


@pytest.mark.oracle
def test_the_defaults_are_those_of_transformers():
    from transformers import GenerationConfig

    theirs = GenerationConfig()._get_default_generation_params()
    ours = generation_settings.DEFAULTS
    assert {key: theirs[key] for key in ours} == ours
    silent = {key for key in theirs if theirs[key] is None or key.endswith("_token_id")}
    assert theirs.keys() - ours.keys() - silent <= set(generation_settings.WITHOUT_EFFECT)
