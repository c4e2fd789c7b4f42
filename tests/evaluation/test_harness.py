"""Scores of lm-evaluation-harness, alone and against the harness driving transformers."""

import importlib.util
import json
import os
from unittest import mock

import jax
import numpy as np
import pytest

import convert
import evaluate
import train
from checkpointing import loaded_run
from configs import pydoc
from evaluation import harness
from experiment.schema import ConfigError
from tests.input_pipeline.chats import TEMPLATES, write_lines, write_tokenizer
from tests.runs import tiny
from tests.test_generate import T, logits_of, text_model


def test_log_probabilities_are_those_of_a_full_pass():
    model = text_model(length=16)
    texts = [T.encode(text).tolist() for text in ("abc", "Ein Text von etwa 20", "xyz")]
    rows = [(ids, count) for ids, count in zip(texts, (1, 7, 2), strict=True)]
    # One row whose last ids are the likeliest ones.
    logits = np.asarray(logits_of(model, inputs=np.array([texts[0]])))[0]
    rows.append(([*texts[0], int(logits[-1].argmax())], 1))
    with jax.set_mesh(model.mesh):
        found = harness.TextScorer(model, 2)(rows)
    for (ids, count), (total, is_top) in zip(rows, found, strict=True):
        logits = np.asarray(logits_of(model, inputs=np.array([ids[:-1]])), np.float64)[0]
        log_probs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        expected = log_probs[np.arange(len(ids) - 1), ids[1:]][-count:].sum()
        assert total == pytest.approx(expected, abs=1e-4)
        assert is_top == (logits.argmax(axis=-1)[-count:] == ids[-count:]).all()
    assert found[-1][1] and not found[1][1]


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({}, ((), 256, {})),
        ({"until": "\n", "do_sample": False, "temperature": 0.7}, (("\n",), 256, {})),
        ({"until": ["a", ""], "max_gen_toks": 9, "temperature": 0}, (("a",), 9, {})),
        (
            {"max_new_tokens": 3, "do_sample": True, "temperature": 0.5, "top_p": 0.9},
            ((), 3, {"method": "sample", "temperature": 0.5, "top_p": 0.9}),
        ),
    ],
)
def test_settings_of_tasks_become_sampling_options(settings, expected):
    assert harness.generation_options(settings) == expected


def test_settings_that_generation_lacks_are_refused():
    settings = {"do_sample": True, "temperature": 1.0, "typical_p": 0.2}
    with pytest.raises(ConfigError, match="typical_p"):
        harness.generation_options(settings)


def test_models_that_do_not_continue_text_are_refused(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[lm-eval\]'"):
        harness.refuse_missing("--tasks")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    with pytest.raises(ConfigError, match=r"causal language model.*prefix_lm"):
        harness.refuse_unfit(text_model("prefix_lm"))


def test_unknown_tasks_are_refused():
    flags = "eval.tasks", "eval.task_path"
    expected = r"eval.tasks: 'helaswag' is not a task.*hellaswag.*eval.task_path=DIR"
    with pytest.raises(ConfigError, match=expected):
        harness.refuse_unknown(["helaswag"], ["arc_easy", "hellaswag"], flags)


# Against the harness driving transformers

CHOICE = """
task: made_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {path}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_choice: choices
doc_to_target: label
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""
ROLLING = """
task: made_rolling
dataset_path: json
dataset_kwargs: {{data_files: {{test: {path}}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list: [{{metric: word_perplexity}}, {{metric: byte_perplexity}}, {{metric: bits_per_byte}}]
"""
WRITING = """
task: made_writing
dataset_path: json
dataset_kwargs: {{data_files: {{test: {path}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["e"], max_gen_toks: 6}}
metric_list: [{{metric: exact_match}}]
"""
WORDS = ("the", "capital", "of", "France", "is", "Paris", "and", "a café", "Italy", "What", "Rome")


def write_tasks(directory):
    rng = np.random.default_rng(0)
    text = lambda size: " ".join(rng.choice(WORDS, size))  # noqa: E731
    lines = [
        {
            "question": text(int(rng.integers(2, 30))),
            "choices": [text(int(rng.integers(1, 5))) for _ in range(3)],
            "label": int(rng.integers(3)),
            "text": text(int(rng.integers(3, 90))),  # longer than the model's rows, in part
            "answer": "",
        }
        for _ in range(12)
    ]
    path = write_lines(directory / "docs.jsonl", lines)
    for name, task in (("choice", CHOICE), ("rolling", ROLLING), ("writing", WRITING)):
        (directory / f"{name}.yaml").write_text(task.format(path=path))


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A small random Llama of transformers with a tokenizer, its run here, and tasks."""
    pytest.importorskip("lm_eval")
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    directory = tmp_path_factory.mktemp("harness")
    write_tokenizer(directory / "hub", TEMPLATES["chatml"])
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=330, hidden_size=32, num_attention_heads=4, num_hidden_layers=2,
        intermediate_size=48, max_position_embeddings=64, bos_token_id=0, eos_token_id=1,
        pad_token_id=1, tie_word_embeddings=False, initializer_range=0.3,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(directory / "hub")
    convert.convert(str(directory / "hub"), str(directory / "run"))
    write_tasks(directory / "tasks")
    return directory


def requests(kind, arguments):
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, each, number) for number, each in enumerate(arguments)]


@pytest.mark.oracle
@pytest.mark.filterwarnings("default")
def test_scores_are_those_of_the_harness_with_transformers(published):
    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    tasks = ["made_choice", "made_rolling", "made_writing"]
    with mock.patch.dict(os.environ, {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1"}):
        theirs = lm_eval.simple_evaluate(
            HFLM(pretrained=str(published / "hub"), device="cpu", dtype="float32", batch_size=4),
            tasks=tasks,
            task_manager=TaskManager(include_path=str(published / "tasks")),
            bootstrap_iters=0,
        )
        ours = evaluate.evaluate_tasks(published / "run", tasks, task_path=str(published / "tasks"))
    compared = 0
    for task in tasks:
        for name, value in theirs["results"][task].items():
            metric = name.removesuffix(",none")
            if isinstance(value, float) and f"eval/{task}/{metric}" in ours:
                assert ours[f"eval/{task}/{metric}"] == pytest.approx(value, rel=1e-4), name
                compared += 1
    assert compared >= 6
    recorded = json.loads((published / "run" / "evaluations.jsonl").read_text())
    assert recorded["rows"] == dict.fromkeys(tasks, 12)


@pytest.mark.oracle
@pytest.mark.filterwarnings("default")
def test_answers_are_those_of_transformers(published):
    """Request by request: log-likelihoods to 1e-4, whether they are greedy, and texts."""
    from lm_eval.models.huggingface import HFLM

    model = loaded_run.load(published / "run")
    theirs = HFLM(pretrained=str(published / "hub"), device="cpu", dtype="float32", batch_size=4)
    rng = np.random.default_rng(1)
    text = lambda size: " ".join(rng.choice(WORDS, size))  # noqa: E731
    pairs = [(text(int(n)), " " + text(3)) for n in rng.integers(1, 40, 10)]
    pairs += [("", "Paris"), ("<s>What", " city"), ("a space ", "Rome"), (pairs[0][0], " is")]
    written = [(context, {"until": ["i"], "max_gen_toks": 8}) for context, _ in pairs if context]
    full_texts = [(text(int(n)),) for n in rng.integers(1, 120, 6)]
    with jax.set_mesh(model.mesh):
        ours = harness.make_harness_model(model, 4)
        assert (ours.max_length, ours.eot_token_id, ours.prefix_token_id) == (
            theirs.max_length, theirs.eot_token_id, theirs.prefix_token_id,
        )  # fmt: skip
        found, expected = (
            each.loglikelihood(requests("loglikelihood", pairs)) for each in (ours, theirs)
        )
        np.testing.assert_allclose([f[0] for f in found], [e[0] for e in expected], atol=1e-4)
        assert [f[1] for f in found] == [e[1] for e in expected]
        found, expected = (
            each.loglikelihood_rolling(requests("loglikelihood_rolling", full_texts))
            for each in (ours, theirs)
        )
        np.testing.assert_allclose(found, expected, atol=2e-3, rtol=1e-6)
        found, expected = (
            each.generate_until(requests("generate_until", written)) for each in (ours, theirs)
        )
        assert found == expected and len(set(found)) > 3
        chat = [{"role": "user", "content": "What city?"}]
        assert ours.apply_chat_template(chat) == theirs.apply_chat_template(chat)


# During training


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that scores a directory of tasks after steps 2 and 4; its last scores."""
    pytest.importorskip("lm_eval")
    directory = tmp_path_factory.mktemp("trained")
    (directory / "tasks").mkdir()
    write_tasks(directory / "tasks")
    config = tiny(
        pydoc,
        data=dict(length=48),
        eval=dict(
            every=2,
            batch_size=4,
            task_path=str(directory / "tasks"),
            task_limit=5,
            patience=3,
        ),
        optimizer=dict(ema_decay=0.5),
        checkpoint=dict(best_metric="eval/made_rolling/bits_per_byte", best_mode="min"),
    )
    with mock.patch.dict(os.environ, {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1"}):
        scores = train.train_and_evaluate(config, directory / "run")
    return directory, scores


@pytest.mark.oracle
@pytest.mark.filterwarnings("default")
def test_a_run_is_scored_on_tasks_at_every_evaluation(trained):
    directory, scores = trained
    lines = (directory / "run" / "metrics.jsonl").read_text().splitlines()
    name = "eval/made_rolling/bits_per_byte"
    found = {line["step"]: line for line in map(json.loads, lines) if name in line}
    assert found.keys() == {2, 4} and "eval/made_choice/acc" in found[4]
    assert found[2][name] != found[4][name]  # each time with the parameters of that step
    assert scores["best_score"] == min(line[name] for line in found.values())


@pytest.mark.oracle
@pytest.mark.filterwarnings("default")
def test_scores_during_training_are_those_of_evaluate(trained):
    directory, scores = trained
    with mock.patch.dict(os.environ, {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1"}):
        record = evaluate.evaluate_tasks(
            directory / "run", [], "4", task_path=str(directory / "tasks"), limit=5
        )
    of_tasks = {name: value for name, value in record.items() if name.startswith("eval/")}
    assert len(of_tasks) >= 6 and record["rows"]["made_choice"] == 5
    assert of_tasks == {name: pytest.approx(scores[name], rel=1e-6) for name in of_tasks}


@pytest.mark.oracle
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "settings, expected",
    [
        (dict(tasks=("made_choise",)), "eval.tasks: 'made_choise' is not a task.*'made_choice'"),
        (dict(task_path="nowhere"), "eval.task_path=nowhere is no directory"),
        (dict(task_path="empty"), "eval.task_path=.*empty has no YAML file of a task"),
        (dict(task_path="broken"), "eval.tasks: broken cannot be loaded: .*missing.jsonl"),
        (dict(best="eval/made_choice/accuracy"), "Did you mean 'eval/made_choice/acc'"),
    ],
)
def test_tasks_that_cannot_be_scored_are_refused_before_training(
    settings, expected, trained, tmp_path
):
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    broken = CHOICE.replace("made_choice", "broken").format(path=tmp_path / "missing.jsonl")
    (tmp_path / "broken" / "broken.yaml").write_text(broken)
    settings, path = dict(settings), settings.get("task_path", "")
    path = str(tmp_path / path) if path in ("empty", "broken") else path
    path = path or str(trained[0] / "tasks")
    best = settings.pop("best", "")
    config = tiny(
        pydoc,
        data=dict(length=48),
        eval=settings | dict(task_path=path),
        checkpoint=dict(best_metric=best),
    )
    with pytest.raises(ConfigError, match=expected):
        train.train_and_evaluate(config, tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_missing_harness_is_named_before_training(monkeypatch, tmp_path):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: name != "lm_eval" and find(name, *rest)
    )
    config = tiny(pydoc, eval=dict(tasks=("hellaswag",)))
    with pytest.raises(ConfigError, match=r"eval.tasks needs .*pip install -e '\.\[lm-eval\]'"):
        train.train_and_evaluate(config, tmp_path / "run")
