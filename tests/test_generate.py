"""generate.py: outputs, their order, and refusals."""

import dataclasses
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import generate
import train
from checkpointing import loaded_run
from configs import dates, digits, langid, langid_mlm, pydoc
from experiment import command_line
from experiment.schema import ConfigError
from experiment.sections import from_mapping
from inference import predictors, sampler
from inference.decoding import GREEDY, Ends, Sampling
from input_pipeline.tokenizers.tokenizer import ByteTokenizer
from tests import scripts
from tests.runs import tiny
from tests.tiny import quick_jit, random_params
from training.mesh import make_mesh
from training.model_for_task import forward, make_model, model_arguments, smallest_batch

pytestmark = pytest.mark.usefixtures("compile_once")

ROOT = Path(__file__).resolve().parent.parent
T = ByteTokenizer()
BOS, EOS, MASK, CLS, SEP = 1, 2, 3, 4, 5
STEPS = 60
# With their end, all but the last have 17 to 32 tokens: they share their compiled programs.
LINES = [
    "lundi 9 mars 1987", "mercredi 3 mai 2001", "Montag, 1. Januar 1990", "4 de enero de 2033",
    "11/08/2007",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory, compile_once):
    """A run that has learnt the format of dates, not yet to translate them."""
    workdir = tmp_path_factory.mktemp("dates")
    config = tiny(
        dates,
        steps=STEPS,
        model=dict(width=32, feed_forward=64, dropout_residual=0.0),
        data=dict(batch_size=16),
        optimizer=dict(learning_rate=5e-3, ema_decay=0.0),
        checkpoint=dict(every=STEPS // 2),
        eval=dict(every=STEPS, batch_size=16, samples=8),
    )
    train.train_and_evaluate(config, workdir)
    return workdir


@pytest.fixture(scope="module")
def greedy(run):
    return asking(loaded_run.load(run))


def untrained(config, **changes):
    """An untrained model whose outputs vary."""
    experiment = from_mapping(tiny(config, **changes))
    labels = tuple(f"class {n}" for n in range(7))
    sizes = dict(vocab_size=T.vocab_size, num_classes=len(labels), image_size=8, image_channels=1)
    model_config = experiment.model.resolve(**sizes)
    model = make_model(model_config, experiment.task)
    arguments, named = model_arguments(experiment.task, smallest_batch(model_config))
    params = random_params(model, *arguments, **named)
    tokenizer = T if model_config.input == "tokens" else None
    mesh = make_mesh(experiment.mesh)
    return loaded_run.LoadedRun(
        experiment, model_config, model, params, tokenizer, labels, mesh, (0,)
    )


def text_model(objective="causal_lm", length=16, **model):
    pairs = objective.endswith(" pairs")
    return untrained(
        pydoc,
        model=dict(tie_output=False, **model),
        task=dict(objective=objective.removesuffix(" pairs")),
        data=dict(length=length, source="dates" if pairs else "pydoc"),
    )


def asking(model, batch_size=2, **options):
    """A function of lines, all of which share what is compiled."""
    with jax.set_mesh(model.mesh):
        predictor = predictors.make_predictor(model, options, batch_size)

    def ask(lines):
        names = [f"line {n + 1}" for n in range(len(lines))]
        with jax.set_mesh(model.mesh):
            return predictors.predict(predictor, lines, names, batch_size)

    return ask


def ask(model, lines, **options):
    return asking(model, **options)(lines)


def prompt(model, line, **options):
    """The row of a line, if it is not refused."""
    with jax.set_mesh(model.mesh):
        return predictors.make_predictor(model, options, 2).prompt(line, "line 7")


def texts(found):
    return [[output["text"] for output in outputs] for outputs in found]


def logits_of(model, **batch):
    """Those of a whole pass over rows without padding."""
    run = quick_jit(lambda params: forward(model.model, model.experiment.task, params, batch))
    return run(model.params)["logits"]


def refusal(ask, *args, **options):
    with pytest.raises(ConfigError) as refused:
        ask(*args, **options)
    (line,) = str(refused.value).splitlines()
    return line


# What is written


def test_answers_are_those_that_evaluation_shows(run, greedy):
    shown = (run / "samples" / f"{STEPS:08}_dates.txt").read_text()
    found = re.findall(r"given:    (.*?)\nanswer:   (.*?)\nexpected: ", shown, re.DOTALL)
    assert len(found) == 8
    # Those that are of one length when padded, as most of LINES are: so little is compiled.
    asked, answers = zip(*(pair for pair in found if 16 <= len(pair[0].encode()) < 32), strict=True)
    assert len(set(answers)) > 1
    assert texts(greedy(asked)) == [[answer] for answer in answers]


def full_passes(model, given, steps, prefix=False):
    """Tokens behind `given`, the likeliest each time, from ever longer rows without a cache."""
    columns = len(given) + steps - 1  # the last one need not be read

    @quick_jit
    def logits_tv(row):
        batch = {"inputs": row[None]}
        if prefix:
            batch["prefix"] = (jnp.arange(columns) < len(given))[None]
        return forward(model.model, model.experiment.task, model.params, batch)["logits"][0]

    row = list(given)
    while len(row) <= columns and row[-1] != EOS:
        padded = np.array(row + [0] * (columns - len(row)), np.int32)
        row.append(int(logits_tv(padded)[len(row) - 1].argmax()))
    return row[len(given) :]


@pytest.mark.parametrize("objective", ["causal_lm", "prefix_lm", "prefix_lm pairs"])
def test_a_decoder_continues_as_a_full_pass_predicts(objective):
    model, line = text_model(objective), "né on"
    given = [BOS, *T.encode(line).tolist(), *([SEP] if "pairs" in objective else [])]
    expected = full_passes(model, given, 16, prefix=objective != "causal_lm")
    assert len(set(expected)) > 3
    assert ask(model, [line]) == [[{"text": T.decode(expected), "tokens": len(expected)}]]


@pytest.mark.parametrize("spm_rate", [0.5, 1.0])
def test_the_text_before_a_suffix_is_what_a_full_pass_predicts(spm_rate):
    task = dict(objective="fill_in_middle", fim_spm_rate=spm_rate)
    model = untrained(
        pydoc, model=dict(tie_output=False), task=task, data=dict(length=16, source="pydoc")
    )
    pre, suf, mid = T.sentinel_ids[:3].tolist()
    prefix, suffix = T.encode("né").tolist(), T.encode("on").tolist()
    given = [BOS, pre, *prefix, suf, *suffix, mid]
    if spm_rate == 1:
        given = [BOS, pre, suf, *suffix, mid, *prefix]
    expected = full_passes(model, given, 16, prefix=False)
    assert len(set(expected)) > 3
    found = ask(model, ["né"], suffix="on")
    assert found == [[{"text": T.decode(expected), "tokens": len(expected)}]]


def test_a_suffix_is_for_models_that_read_one():
    with pytest.raises(ConfigError, match=r"--suffix needs .*fill_in_middle, not causal_lm; leave"):
        prompt(text_model(), "a", suffix="b")


def test_span_corruption_answers_name_their_sentinels():
    model = untrained(
        dates,
        task=dict(objective="span_corruption"),
        data=dict(source="pydoc", length=24, encoder_length=24),
    )
    # The likeliest token would be repeated: the output layer is the table of the tokens.
    options = dict(method="sample", temperature=3.0, num_outputs=4, prefix="<extra_id_0>x")
    [outputs] = texts(ask(model, ["a<extra_id_0>b"], **options))
    assert all(text.startswith("<extra_id_0>x") for text in outputs)
    assert any("<extra_id_" in text[len("<extra_id_0>x") :] for text in outputs)


SAMPLE = dict(method="sample", num_outputs=2, seed=3)


BEAM = dict(method="beam", num_outputs=2)


@pytest.mark.parametrize("options", [BEAM, SAMPLE])
def test_a_line_does_not_depend_on_other_lines(run, options):
    model = loaded_run.load(run)
    ask = asking(model, batch_size=2, **options)
    together = ask(LINES)
    assert len({text for line in texts(together) for text in line}) > len(LINES)
    assert ask(LINES[:1]) == together[:1]
    assert texts(generate.generate(run, LINES[:4], batch_size=3, **options)) == texts(together)[:4]


def test_answers_are_in_the_order_of_the_lines(greedy):
    answers = greedy(LINES)
    assert len(set(map(str, answers))) > 2
    assert greedy(LINES[::-1]) == answers[::-1]


def test_draws_depend_on_the_seed_and_the_number_of_the_line(run):
    def drawn(**options):
        return texts(generate.generate(run, LINES[:1] * 4, batch_size=2, **{**SAMPLE, **options}))

    several = drawn()
    assert len({tuple(line) for line in several}) == 4
    assert all(first != second for first, second in several)
    assert drawn(num_outputs=1) == [line[:1] for line in several]
    assert drawn(seed=4) != several


def test_options_reach_the_generator(monkeypatch):
    """Their effect is tested with the generator."""

    class ReachedError(Exception):
        pass

    def stand_in(model, config, ends, **settings):
        raise ReachedError(ends, settings)

    monkeypatch.setattr(sampler, "Generator", stand_in)
    model = text_model(length=16)

    def reached(**options):
        with pytest.raises(ReachedError) as caught:
            ask(model, ["abc"], **options)
        return caught.value.args

    ends, settings = reached(stop=["\n", "é"], repetition_penalty=1.5, slide=True)
    assert ends == Ends(EOS, 0, ((16,), (201, 175)))
    assert settings["sampling"] == Sampling(repetition_penalty=1.5)
    assert (settings["steps"], settings["rows"], settings["slots"]) == (16, 2, 16)
    drawn = dict(temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, repetition_penalty=2.0)
    _, settings = reached(method="sample", num_outputs=5, max_new_tokens=7, **drawn)
    assert settings["sampling"] == Sampling(**drawn)
    assert (settings["steps"], settings["rows"], settings["slots"]) == (7, 10, 0)
    _, settings = reached(method="sample")
    assert settings["sampling"] == Sampling(temperature=1.0)
    _, settings = reached(method="beam", beam_size=3)
    assert (settings["sampling"], settings["rows"]) == (GREEDY, 6)


def test_beams_have_the_scores_of_their_texts(run):
    model = loaded_run.load(run)
    options = dict(method="beam", beam_size=3, num_outputs=3, length_penalty=0.7)
    [outputs] = ask(model, LINES[:1], **options)
    scores = [output["score"] for output in outputs]
    assert scores == sorted(scores, reverse=True) and len({*scores}) == 3
    targets = [[*T.encode(output["text"]).tolist(), EOS] for output in outputs]
    assert [len(target) for target in targets] == [output["tokens"] for output in outputs]
    for target, score in zip(targets, scores, strict=True):
        source = np.array([[*T.encode(LINES[0]), EOS]], np.int32)
        inputs = np.array([[BOS, *target[:-1]]], np.int32)
        [logits] = logits_of(model, encoder_inputs=source, inputs=inputs)
        log_probs = jax.nn.log_softmax(logits)[np.arange(len(target)), np.array(target)]
        penalty = ((5 + len(target)) / 6) ** 0.7
        assert score == pytest.approx(float(log_probs.sum()) / penalty, rel=1e-4)


def test_answers_begin_with_the_given_prefix(run, greedy):
    [[text]] = texts(greedy(LINES[:1]))
    assert texts(generate.generate(run, LINES[:1], batch_size=2, prefix=text[:2])) == [[text]]
    [[other]] = texts(generate.generate(run, LINES[:1], batch_size=2, prefix="30"))
    assert other.startswith("30") and not text.startswith("30")


def test_stop_strings_cut_the_text():
    model = text_model(length=48)
    [[complete]] = ask(model, ["abc"])
    text = complete["text"]
    assert len(text) > 12 and "\N{REPLACEMENT CHARACTER}" in text
    plain = [part for part in re.split("\N{REPLACEMENT CHARACTER}+", text) if len(part) > 1]
    stop = plain[-1][:2]
    [[cut]] = ask(model, ["abc"], stop=[stop])
    assert cut["text"] == text.partition(stop)[0]
    assert cut["tokens"] < complete["tokens"], "the loop has stopped as well"
    # A string that the tokens of no other spell is found in the text all the same.
    first = "\N{REPLACEMENT CHARACTER}"
    [[cut]] = ask(model, ["abc"], stop=[stop, first])
    assert cut["text"] == min(text.partition(stop)[0], text.partition(first)[0], key=len)


def test_a_sliding_cache_generates_beyond_the_training_length():
    model = text_model(length=16)
    [[complete]], [[sliding]] = (
        ask(model, ["abc"], max_new_tokens=40, slide=slide) for slide in (False, True)
    )
    assert complete["tokens"] == sliding["tokens"] == 40
    assert complete["text"] != sliding["text"]
    # The prompt has 4 tokens, so 12 more are written before anything is forgotten.
    alike = T.decode(full_passes(model, [BOS, *T.encode("abc").tolist()], 12))
    alike = alike.rstrip("\N{REPLACEMENT CHARACTER}")
    assert alike and complete["text"].startswith(alike) and sliding["text"].startswith(alike)


def test_generation_ends_at_the_last_learned_position():
    model = text_model(position="learned", max_length=16)
    [[output]] = ask(model, ["abcdef"])
    # Seven are given, and nothing needs to be read behind the last one written.
    assert output["tokens"] == 10
    given = [BOS, *T.encode("abcdef").tolist()]
    assert output["text"] == T.decode(full_passes(model, given, 10))


def test_a_draft_changes_nothing(run, greedy):
    options = dict(step=str(STEPS // 2), batch_size=2)
    alone = generate.generate(run, LINES[:2], **options)
    assert alone != greedy(LINES[:2]), "the draft is another model"
    draft = dict(draft_workdir=str(run), draft_tokens=2)
    assert generate.generate(run, LINES[:2], **draft, **options) == alone
    drawn = generate.generate(run, LINES[:2], method="sample", num_outputs=2, **draft, **options)
    assert [len(set(line)) for line in texts(drawn)] == [2, 2]


def test_a_draft_goes_as_far_as_learned_positions_do(monkeypatch):
    learned = dict(position="learned", max_length=16)
    model, draft = text_model(**learned), text_model(**learned, decoder_layers=1)
    monkeypatch.setattr(sampler, "_load_draft", lambda options, model: draft)
    for options in ({}, dict(max_new_tokens=10)):
        alone = ask(model, ["abcdef"], **options)
        assert alone[0][0]["tokens"] == 10
        assert ask(model, ["abcdef"], draft_workdir="x", **options) == alone


def test_pieces_of_a_stream_are_the_answer():
    model = text_model(length=48)
    lines = ["abc", "né"]
    options = dict(method="sample", seed=1, stop=["z"])
    expected = texts(ask(model, lines, batch_size=1, **options))
    with jax.set_mesh(model.mesh):
        predictor = predictors.make_predictor(model, {**options, "stream": True}, 1)
        for number, line in enumerate(lines):
            pieces = list(predictors.stream(predictor, line, "", number, 1))
            assert "".join(pieces) == expected[number][0]
            assert sum(map(bool, pieces)) > 1


def test_lines_that_are_longer_than_in_training_are_pointed_out(caplog):
    model = text_model(length=16)
    long = "16 of these tokens"
    expected = "lines have more tokens than rows had in training: up to 19, not 16"
    ask(model, ["short", long], max_new_tokens=1)
    assert [record.getMessage() for record in caplog.records] == [f"1 of 2 {expected}"]
    caplog.clear()
    with jax.set_mesh(model.mesh):
        predictor = predictors.make_predictor(model, dict(stream=True, max_new_tokens=1), 1)
        for line in ("short", long):
            list(predictors.stream(predictor, line, "", 0, 1))
    assert [record.getMessage() for record in caplog.records] == [f"1 of 1 {expected}"]


def test_a_stream_reads_a_line_after_answering_the_last(run):
    events = []

    def lines():
        for line in LINES[:2]:
            events.append("asked")
            yield line

    generate.stream(run, lines(), lambda piece: events.append("\n") if piece == "\n" else None)
    assert events == ["asked", "\n", "asked", "\n"]


# Encoders


def test_gaps_are_filled_with_the_likeliest_text():
    model = untrained(langid_mlm, data=dict(length=24))
    lines = ["M[MASK]ria [MASK]", "[MASK]"]
    for line, [output] in zip(lines, ask(model, lines), strict=True):
        parts = line.split("[MASK]")
        ids = [*T.encode(parts[0]).tolist()]
        for part in parts[1:]:
            ids += [MASK, *T.encode(part).tolist()]
        inputs = np.array([[CLS, *ids, SEP]], np.int32)
        shares = np.asarray(jax.nn.softmax(logits_of(model, inputs=inputs)[0]))
        filled = inputs[0].copy()
        for place, gap in zip(np.flatnonzero(inputs[0] == MASK), output["gaps"], strict=True):
            ranked = sorted(T.text_ids, key=lambda id, at=place: -shares[at, id])[:5]
            assert [each["id"] for each in gap] == ranked
            assert [each["token"] for each in gap] == [T.decode([id]) for id in ranked]
            expected = [shares[place, id] for id in ranked]
            assert [each["probability"] for each in gap] == pytest.approx(expected, rel=1e-4)
            filled[place] = ranked[0]
        assert output["text"] == T.decode(filled)


def test_classes_of_texts_of_mixed_lengths():
    model = untrained(langid, data=dict(length=24))
    lines = ["Maria", "a name that is longer than the rows were"]
    found = ask(model, lines)
    for line, outputs in zip(lines, found, strict=True):
        inputs = np.array([[CLS, *T.encode(line), SEP]], np.int32)
        shares_c = np.asarray(jax.nn.softmax(logits_of(model, inputs=inputs)[0]))
        expected = dict(zip(model.labels, shares_c, strict=True))
        shares = {output["label"]: output["probability"] for output in outputs}
        assert shares == pytest.approx(expected, rel=1e-4)
        assert list(shares.values()) == sorted(shares.values(), reverse=True)
    assert generate.as_text(found[0], keep_breaks=False) == (
        f"{found[0][0]['label']}\t{found[0][0]['probability']:.4f}\n"
    )


def test_classes_of_images(tmp_path):
    model = untrained(digits)
    pixels = np.random.default_rng(0).integers(0, 256, (2, 8, 8), np.uint8)
    paths = [str(tmp_path / f"{n}.png") for n in range(2)]
    for path, image in zip(paths, pixels, strict=True):
        Image.fromarray(image).save(path)
    found = ask(model, paths)
    logits = logits_of(model, images=pixels[..., None].astype(np.float32) / 255)
    for outputs, shares in zip(found, np.asarray(jax.nn.softmax(logits)), strict=True):
        expected = dict(zip(model.labels, shares, strict=True))
        assert {o["label"]: o["probability"] for o in outputs} == pytest.approx(expected, rel=1e-4)


# Refusals


def test_options_that_do_not_suit_the_model_are_refused(run, tmp_path):
    learned = text_model(position="learned", max_length=16)
    assert "model.position=learned ends at model.max_length=16; leave it out" in refusal(
        ask, learned, ["a"], slide=True
    )
    assert "write it at the end of the prompt" in refusal(ask, learned, ["a"], prefix="b")
    encoder = untrained(langid, data=dict(length=24))
    assert refusal(ask, encoder, ["a"], method="beam", beam_size=2) == (
        "--method, --beam_size: this is about writing text, which a model with "
        "task.objective=classify_text does not do; leave it out"
    )
    assert "cannot draft for this model: its task.objective is seq2seq, not causal_lm" in refusal(
        ask, learned, ["a"], draft_workdir=str(run)
    )
    assert "/none is not a run's directory" in refusal(
        generate.generate, run, LINES, draft_workdir=str(tmp_path / "none")
    )
    assert "step=7 is not a checkpoint of" in refusal(generate.generate, run, LINES, step="7")


def test_an_empty_line_has_no_class():
    model = untrained(langid, data=dict(length=24))
    message = "{} is empty, which has no class; fill it in or leave it out"
    for blank in ("", "  ", "\t \t"):
        assert refusal(ask, model, ["Maria", blank]) == message.format("line 2")
    pairs = untrained(langid, data=dict(length=24, source="labelled_text_files"))
    assert refusal(prompt, pairs, "") == message.format("line 7")
    assert refusal(prompt, pairs, "a\t ").startswith("line 7 has an empty text, which has no")
    assert len(prompt(pairs, "a\tb")["inputs"]) == 5
    assert refusal(prompt, untrained(digits), "") == message.format("line 7")


@pytest.mark.parametrize("objective", ["classify_text", "classify_images"])
def test_empty_lines_for_a_classifier_are_named_before_the_model_is_loaded(objective, monkeypatch):
    monkeypatch.setattr(
        loaded_run, "recorded_config", lambda workdir: {"task": {"objective": objective}}
    )
    monkeypatch.setattr(loaded_run, "load", None)
    assert refusal(generate.generate, "dir", ["a", " ", "b"]) == (
        "line 2 is empty, which has no class; fill it in or leave it out; "
        "grep '[^[:space:]]' FILE prints the others"
    )
    assert refusal(generate.generate, "dir", [""], names=["--prompt"]) == (
        "--prompt is empty, which has no class; fill it in"
    )
    found = refusal(generate.generate, "dir", ["a", *[""] * 7])
    assert found.startswith("line 2, line 3, line 4, line 5, line 6 and 2 more are empty, which")
    assert "leave them out; grep '[^[:space:]]' FILE prints" in found


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ("a\nb\n", ["a", "b"]),
        ("a\nb", ["a", "b"]),
        ("a\nb\n\n", ["a", "b"]),
        ("a\r\nb\r\n\r\n", ["a", "b"]),
        ("\n\na\n\nb\n\n\n", ["", "", "a", "", "b", ""]),
        ("a\n \n", ["a", " "]),
        ("\ufeffa\n", ["a"]),
    ],
)
def test_an_empty_line_at_the_end_is_no_line(content, lines, tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(content.encode())
    assert list(generate.read_lines(str(tmp_path / "file"))) == lines
    standard = SimpleNamespace(buffer=io.BytesIO(content.encode()))
    monkeypatch.setattr(sys, "stdin", standard)
    assert list(generate.read_lines("-")) == lines


@pytest.mark.parametrize("content", ["", "\n", "\r\n"])
def test_a_file_without_lines_is_refused(content, tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(content.encode())
    assert refusal(list, generate.read_lines(str(path))) == (
        f"--input={path} has no line; write each input on a line of its own"
    )
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content.encode())))
    assert "standard input has no line" in refusal(list, generate.read_lines("-"))


def test_a_pair_for_a_model_of_single_texts_is_refused():
    files = untrained(langid, data=dict(length=24, source="labelled_text_files"))
    single, pairs = (dataclasses.replace(files, text_pairs=known) for known in (False, True))
    assert refusal(prompt, single, "a\tb") == (
        "line 7 has a tab, which separates two texts, and this model was trained on single texts; "
        "replace the tab by a space, or leave out what is not the text"
    )
    assert len(prompt(single, "ab")["inputs"]) == 4
    assert len(prompt(pairs, "a\tb")["inputs"]) == 5
    # Embedded and public data may have tabs in a text.
    names = dataclasses.replace(untrained(langid, data=dict(length=24)), text_pairs=False)
    assert len(prompt(names, "a\tb")["inputs"]) == 5


def test_lines_that_are_too_long_are_refused_by_name():
    learned = text_model(position="learned", max_length=16)
    assert len(prompt(learned, "x" * 15)["inputs"]) == 16
    assert refusal(prompt, learned, "x" * 16) == (
        "line 7 has 17 tokens with the special ones, which leaves no room for 1 more: "
        "model.position=learned ends at model.max_length=16; shorten it or lower --max_new_tokens"
    )
    for options in (dict(max_new_tokens=10), dict(max_new_tokens=10, method="beam")):
        prompt(learned, "x" * 6, **options)
        assert "line 7 has 8 tokens with the special ones, which leaves no room for 10" in refusal(
            prompt, learned, "x" * 7, **options
        )
    # A beam compares whole texts, so that none may end where the positions do.
    assert "which leaves no room for 16 more" in refusal(prompt, learned, "x", method="beam")
    assert "line 7 has 17 tokens with the special ones, and --slide keeps 16" in refusal(
        prompt, text_model(), "x" * 16, slide=True
    )


def test_lines_that_are_too_long_are_counted():
    learned = dict(position="learned", max_length=24)
    encoder = untrained(langid, model=learned, data=dict(length=24))
    start = "line 2 has 25 tokens with the special ones, and model.position=learned ends at "
    start += "model.max_length=24"

    def ask(model, *lengths):
        lines, names = ["x" * n for n in lengths], [f"line {n + 1}" for n in range(len(lengths))]
        with jax.set_mesh(model.mesh):
            predictors.predict(predictors.make_predictor(model, {}, 2), lines, names, 2)

    assert refusal(ask, encoder, 5, 23, 22) == f"{start}; shorten it"
    assert refusal(ask, encoder, 5, 23, 22, 40) == (
        f"{start}, and 1 other line is too long as well; shorten them"
    )
    assert refusal(ask, encoder, 5, 23, 40, 3, 30) == (
        f"{start}, and 2 other lines are too long as well; shorten them"
    )
    answers = untrained(dates, model=learned, data=dict(encoder_length=24))
    assert refusal(ask, answers, 5, 24, 25, 26) == (
        f"{start}, and 2 other lines are too long as well; shorten them"
    )
    decoder = text_model(position="learned", max_length=16)
    assert refusal(ask, decoder, 3, 16, 17).endswith(
        "model.max_length=16, and 1 other line is too long as well; shorten them or lower "
        "--max_new_tokens"
    )


def test_sources_and_texts_to_classify_are_refused_where_positions_end():
    learned = dict(position="learned", max_length=24)
    answers = untrained(dates, model=learned, data=dict(encoder_length=24))
    assert len(prompt(answers, "x" * 23)["encoder_inputs"]) == 24
    assert "line 7 has 25 tokens with the special ones, and model.position=learned" in refusal(
        prompt, answers, "x" * 24
    )
    assert "the start of an output has 1 tokens with the special ones, which leaves" in refusal(
        prompt, answers, "x", max_new_tokens=25
    )
    encoder = untrained(langid, model=learned, data=dict(length=24))
    assert len(prompt(encoder, "x" * 22)["inputs"]) == 24
    assert "line 7 has 25 tokens with the special ones, and model.position=learned" in refusal(
        prompt, encoder, "x" * 23
    )


def test_batches_are_shared_evenly_by_devices():
    shares = SimpleNamespace(shape={"data": 2, "fsdp": 2})
    assert [generate.evenly_shared(rows, shares) for rows in (1, 4, 5)] == [4, 4, 8]


# The command line


def command(*arguments, given="", stdout=subprocess.PIPE, **environment):
    return subprocess.run(
        [sys.executable, "generate.py", *arguments],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
        | environment,
        stdout=stdout,
        stderr=subprocess.PIPE,
        input=given.encode(),
    )


def test_json_output_is_the_same_on_any_number_of_devices(run, tmp_path):
    expected = generate.generate(run, LINES, batch_size=2, average=2, **BEAM)
    assert texts(expected) != texts(generate.generate(run, LINES, batch_size=2, **BEAM))
    two_devices = "--xla_force_host_platform_device_count=2"
    arguments = ["--method=beam", "--num_outputs=2", "--batch_size=2", "--average=2", "--json"]
    arguments.append(f"--output={tmp_path / 'out'}")
    given = "".join(f"{line}\n" for line in LINES)
    ended = command(f"--workdir={run}", "--input=-", *arguments, given=given, XLA_FLAGS=two_devices)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == b""
    lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert [each["input"] for each in lines] == LINES
    assert texts(each["outputs"] for each in lines) == texts(expected)
    for record, outputs in zip(lines, expected, strict=True):
        scores = [output["score"] for output in outputs]
        assert [output["score"] for output in record["outputs"]] == pytest.approx(scores, rel=1e-4)


def test_a_prompt_and_its_stream(run, greedy):
    [[text]] = texts(greedy(LINES[:1]))
    ended = command(f"--workdir={run}", f"--prompt={LINES[0]}", "--stream")
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert ended.stdout.decode() == text + "\n"


def test_a_closed_output_pipe_ends_quietly(run):
    read_end, write_end = os.pipe()
    os.close(read_end)
    ended = command(f"--workdir={run}", f"--prompt={LINES[0]}", stdout=write_end)
    os.close(write_end)
    assert (ended.returncode, ended.stderr) == (1, b"")


def test_line_breaks_in_outputs_are_escaped():
    outputs = [{"text": "a\nb\r"}, {"text": "c"}]
    assert generate.as_text(outputs, keep_breaks=False) == "a\\nb\\r\nc\n"
    assert generate.as_text(outputs, keep_breaks=True) == "a\nb\r\nc\n"
    assert json.loads(generate.as_json("é", outputs)) == {"input": "é", "outputs": outputs}


def test_a_stream_of_lines_has_a_line_for_each(monkeypatch, tmp_path):
    model = text_model(length=16)
    monkeypatch.setattr(loaded_run, "load", lambda *given: model)
    monkeypatch.setattr(predictors, "stream", lambda *given: iter([given[1], "\n", "b\r\n"]))
    path = tmp_path / "lines.txt"
    path.write_text("one\ntwo\n")
    ended = scripts.run("generate.py", "--workdir=x", f"--input={path}", "--stream")
    assert (ended.code, ended.out) == (0, "one\\nb\\r\\n\ntwo\\nb\\r\\n\n")
    ended = scripts.run("generate.py", "--workdir=x", "--prompt=one", "--stream")
    assert (ended.code, ended.out) == (0, "one\nb\r\n\n")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "--workdir is missing; give the directory of a run"),
        (["--workdir={}", "--prompt=a", "--input=-"], "are both given; give one of them"),
        (["--workdir={}", "--prompt=a", "--stream", "--json"], "--json does not go with --stream"),
        (["--workdir={}", "--prompt=a", "--output=/no/such/place"], "cannot be written: No such"),
        (["--workdir={}", "--input=x", "--output=./x"], "--output=./x is also --input; choose"),
        (["--workdir={}", "--input=/no/such/file"], "/no/such/file cannot be read: No such file"),
        (["--workdir={}", "--prompt=a", "--step=7"], "step=7 is not a checkpoint of"),
        (["--workdir={}", "--prompt=a", "--stop=\udcff"], "--stop is not valid UTF-8"),
    ],
)
def test_bad_input_is_refused_in_a_line(run, arguments, reason):
    ended = command(*(argument.format(run) for argument in arguments))
    assert (ended.returncode, ended.stdout) == (command_line.BAD_INPUT, b"")
    message = ended.stderr.decode()
    assert reason in message and len(message.splitlines()) == 1
