"""A model that has learnt two conversations, and talks."""

import json

import jax
import numpy as np
import pytest

import convert
import generate
import train
from checkpointing import loaded_run
from configs import chat
from experiment.schema import ConfigError
from inference import predictors
from inference.conversation import RESET, ChatPrompts, chat_format_of, converse
from input_pipeline.chat_template import DEFAULT
from tests import scripts
from tests.input_pipeline.chats import TEMPLATES, write_lines, write_tokenizer
from tests.runs import tiny
from tests.test_generate import text_model

pytestmark = pytest.mark.usefixtures("compile_once")

TURNS = [("Capital of Italy?", "Rome."), ("And of Spain?", "Madrid.")]


def messages(*turns, system=""):
    found = [{"role": "system", "content": system}] if system else []
    for question, answer in turns:
        found += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory, compile_once):
    """A run that has learnt one conversation by heart, and its first turn with another answer."""
    directory = tmp_path_factory.mktemp("chat")
    lines = [
        {"messages": messages(*TURNS)},
        {"messages": messages(TURNS[0], system="Tell!")},
        {"messages": messages(("Capital of Italy?", "Bad."), system="Lie!")},
    ]
    for split in ("train", "validation"):
        write_lines(directory / "data" / f"{split}.jsonl", lines)
    # The template's bos must not be joined by a second one.
    template = "{{ bos_token }}" + TEMPLATES["chatml"]
    tokenizer = write_tokenizer(directory / "hub", template)
    config = tiny(
        chat,
        steps=40,
        model=dict(width=32, feed_forward=64, decoder_layers=1, heads=2, unroll=1),
        data=dict(
            path=str(directory / "data"), cache_dir=str(directory / "cache"), packing=False,
            tokenizer=str(tokenizer), batch_size=4, length=128,
        ),
        optimizer=dict(learning_rate=1e-2, warmup_steps=5, ema_decay=0.0),
        eval=dict(every=40, batch_size=2, samples=0),
        checkpoint=dict(every=40),
    )  # fmt: skip
    workdir = directory / "run"
    scores = train.train_and_evaluate(config, workdir)
    assert scores["eval/validation/accuracy"] == 1.0
    assert "eval/validation/bits_per_byte" not in scores
    return workdir


OWN = "{% for m in messages %}{{ m['role'] }}> {{ m['content'] }}{{ eos_token }}{% endfor %}"


@pytest.mark.parametrize(
    ("published", "option", "expected"),
    [
        (TEMPLATES["chatml"], "", TEMPLATES["chatml"]),
        (TEMPLATES["chatml"], OWN, OWN),
        ("", OWN, OWN),
        ("", "", DEFAULT),  # the simple one, which the tokenizer does not have
    ],
)
def test_an_export_has_the_template_of_training(published, option, expected, tmp_path):
    for split in ("train", "validation"):
        write_lines(tmp_path / "data" / f"{split}.jsonl", [{"messages": messages(*TURNS)}])
    config = tiny(
        chat,
        steps=1,
        model=dict(width=32, feed_forward=64, decoder_layers=1, heads=2, unroll=1),
        data=dict(
            path=str(tmp_path / "data"), cache_dir=str(tmp_path / "cache"), packing=False,
            tokenizer=str(write_tokenizer(tmp_path / "hub", published)), batch_size=1, length=128,
            options={"chat_template": option} if option else {},
        ),
        eval=dict(every=0, samples=0),
    )  # fmt: skip
    train.train_and_evaluate(config, tmp_path / "run")
    convert.convert(str(tmp_path / "run"), str(tmp_path / "out"))
    written = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert written["chat_template"] == expected


def line(*turns, **options):
    return json.dumps({"messages": messages(*turns, **options)[:-1]})


def test_answers_end_with_the_turn(run):
    asked = [line(TURNS[0], system="Tell!"), line(TURNS[0])]
    found = generate.generate(run, asked, chat=True, system="Lie!")
    expected = ["Rome.", "Bad."]  # --system is for conversations without a system's message
    assert [outputs[0]["text"] for outputs in found] == expected
    # Not the 128 tokens of a row: the template's end of turn, which is not the tokenizer's eos.
    assert all(outputs[0]["tokens"] < 12 for outputs in found)


def test_a_prompt_has_the_ids_of_training_and_one_bos(run):
    model = loaded_run.load(run)
    chosen = chat_format_of(model)
    ids = ChatPrompts(chosen)(line(*TURNS), "line 1")["inputs"]
    assert (ids == model.tokenizer.bos_id).sum() == 1 and ids[0] == model.tokenizer.bos_id
    full, is_answer = chosen.conversation(messages(*TURNS))
    start = np.flatnonzero(is_answer & ~np.roll(is_answer, 1))[1]
    np.testing.assert_array_equal(ids, full[:start])
    (end,) = chosen.tokenizer.more_eos_ids
    assert end == model.tokenizer.encode("<|im_end|>")[0] != model.tokenizer.eos_id


def test_a_conversation_has_a_history(run):
    pieces = []
    turns = [TURNS[0][0], "", TURNS[1][0], RESET, TURNS[0][0]]
    generate.stream(run, turns, pieces.append, chat=True)
    assert "".join(pieces).split("\n") == ["Rome.", "Madrid.", "Rome.", ""]


def test_turns_grow_and_those_that_fail_are_taken_back():
    prompts, shown = [], []

    def answer(prompt, number):
        prompts.append([message["content"] for message in json.loads(prompt)])
        if "long" in prompts[-1]:
            raise ConfigError("the conversation has 99 tokens")
        yield from ("  ", " a", f"{number}\n") if number < 3 else (" ",)

    found = converse(["one", "long", "two", "silent"], answer, shown.append, "system")
    assert prompts == [
        ["system", "one"],
        ["system", "one", "a0", "long"],
        ["system", "one", "a0", "two"],
        ["system", "one", "a0", "two", "a2", "silent"],
    ]
    assert "".join(shown) == "a0\n\na2\n\n\n"
    assert [message["content"] for message in found] == ["system", "one", "a0", "two", "a2"]


@pytest.mark.parametrize(
    "asked, problem",
    [
        ("hello", "not JSON"),
        ("{}", "must have 'messages' or 'prompt'"),
        ('{"messages": [], "prompt": "x"}', "must have 'messages' or 'prompt'"),
        ("[]", "must be a list of messages"),
        ('{"prompt": ""}', "content of the user is empty"),
        (json.dumps(messages(TURNS[0])), "nothing to answer"),
        ('[{"role": "bot", "content": "x"}]', "the role 'bot'"),
    ],
)
def test_lines_that_ask_nothing_are_refused_by_name(asked, problem):
    prompts = ChatPrompts(chat_format_of(text_model()))
    with pytest.raises(ConfigError, match=problem) as caught:
        prompts(asked, "line 3")
    assert str(caught.value).startswith("line 3: ")


def test_a_model_that_does_not_chat_is_refused(caplog):
    model = text_model("prefix_lm pairs")
    with pytest.raises(ConfigError, match="needs a decoder that continues text"):
        chat_format_of(model)
    chat_format_of(text_model())
    assert "has no chat template" in caplog.text
    with jax.set_mesh(model.mesh), pytest.raises(ConfigError, match="--chat needs"):
        predictors.make_predictor(model, {}, 1, chat=True)


@pytest.mark.parametrize(
    "arguments, problem",
    [
        (["--prompt=x", "--system=y"], "--system begins a conversation; add --chat"),
        (["--prompt=x", "--chat", "--ids"], "--chat is about text"),
        (["--chat", "--json"], "--json does not go with --chat without --input"),
        (["--chat", "--method=beam"], "--stream does not go with --method=beam"),
        (["--chat", "--input=a", "--stream"], "with --chat leave --input out"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(run, arguments, problem):
    ended = scripts.run("generate.py", f"--workdir={run}", *arguments)
    assert ended.code and problem in ended.err and ended.err.strip().count("\n") == 0


def test_one_prompt_is_one_turn(run, tmp_path):
    flags = ["--chat", f"--prompt={TURNS[0][0]}", "--system=Lie!", f"--output={tmp_path}/answer"]
    scripts.run("generate.py", f"--workdir={run}", *flags)
    assert (tmp_path / "answer").read_text() == "Bad.\n"
