import json

import numpy as np
import pytest

from experiment.schema import ConfigError
from input_pipeline import pipeline
from input_pipeline.chat_encoding import chat_format
from input_pipeline.sources.files import chat
from input_pipeline.tokenizers.tokenizer import ByteTokenizer
from tests.input_pipeline.chats import CHAT, TEMPLATES, write_lines, write_tokenizer
from tests.tiny import data_config, masking

PAIRS = [{"prompt": f"{n} + 1?", "completion": str(n + 1)} for n in range(20)]


def config(directory, **keys):
    where = dict(path=str(directory), cache_dir=str(directory / "cache"), prefetch=0) | keys
    return data_config(source="chat_files", **({"batch_size": 4, "length": 48} | where))


def load(directory, train=PAIRS, validation=PAIRS[:2], **keys):
    write_lines(directory / "train.jsonl", train)
    write_lines(directory / "validation.jsonl", validation)
    data = config(directory, **keys)
    return pipeline.load(data, objective="causal_lm", masking=masking(), seed=0)


def learned(batch, tokenizer):
    """For each row: the texts that are predicted, and what the model sees before them."""
    rows = zip(batch["inputs"], batch["targets"], batch["weights"], strict=True)
    return [(tokenizer.decode(inputs), tokenizer.decode(targets[weights > 0]))
            for inputs, targets, weights in rows]  # fmt: skip


def test_messages_and_pairs_are_conversations(tmp_path):
    lines = [{"messages": CHAT, "id": 7}, PAIRS[1], {"prompt": CHAT[:3], "completion": CHAT[3:]}]
    write_lines(tmp_path / "train.jsonl", lines)
    write_lines(tmp_path / "validation.jsonl", PAIRS[:1])
    splits = chat.load(config(tmp_path))
    pair = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}]
    assert [example["messages"] for example in splits.train] == [CHAT, pair, CHAT]
    assert splits.train[1]["place"] == f"{tmp_path}/train.jsonl:2"
    assert splits.kind == "chats" and list(splits.evals) == ["validation"]


def test_only_the_assistants_tokens_have_weight(tmp_path):
    data = load(tmp_path)
    batch = data.train_batch(0)
    tokenizer = data.tokenizer
    for (text, answer), targets, weights in zip(
        learned(batch, tokenizer), batch["targets"], batch["weights"], strict=True
    ):
        number = int(answer)
        assert text.startswith(f"user: {number - 1} + 1?\nassistant: {number}")
        # By hand: the answer's bytes, with the space before it, and eos.
        assert weights.sum() == len(f" {number}") + 1
        assert targets[np.flatnonzero(weights)[-1]] == tokenizer.eos_id
    assert set(np.unique(batch["weights"])) == {0, 1}


def test_packed_rows_hold_the_same_tokens_and_weights(tmp_path):
    single = load(tmp_path, train=[{"messages": CHAT}, *PAIRS], length=160)
    packed = load(tmp_path, train=[{"messages": CHAT}, *PAIRS], length=160, packing=True)
    assert packed.description["train_rows"] < single.description["train_rows"]

    def tokens(data, batches):
        found = set()
        for n in range(batches):
            batch = data.train_batch(n)
            segments = batch.get("segment_ids", np.ones_like(batch["inputs"]))
            for row, segment in enumerate(segments):
                for number in range(1, segment.max() + 1):
                    real = segment == number
                    fields = [batch[name][row][real] for name in ("inputs", "targets", "weights")]
                    if "positions" in batch:
                        positions = batch["positions"][row][real]
                        assert positions.tolist() == list(range(len(positions)))
                    size = np.flatnonzero(fields[2])[-1] + 1
                    found.add(tuple(tuple(field[:size].tolist()) for field in fields))
        return found

    every = tokens(single, 6)
    assert len(every) == 21
    assert tokens(packed, 3) == every


def test_several_turns_match_the_encoding_token_by_token(tmp_path):
    data = load(tmp_path, train=[{"messages": CHAT}] * 4, length=200)
    ids, is_answer = chat_format(ByteTokenizer(), {}).conversation(CHAT)
    batch = data.train_batch(0)
    size = len(ids) - 1
    np.testing.assert_array_equal(batch["inputs"][0][:size], ids[:-1])
    np.testing.assert_array_equal(batch["targets"][0][:size], ids[1:])
    np.testing.assert_array_equal(batch["weights"][0][:size], is_answer[1:])
    assert not batch["weights"][0][size:].any()


def test_long_conversations_are_truncated_and_counted(tmp_path):
    data = load(tmp_path, train=[{"messages": CHAT}, *PAIRS[:7]])
    assert data.description["too_long"]["train"] == 1
    (found,) = data.description["over_long"]
    text = "".join(f"{message['role']}: {message['content']}\n" for message in CHAT)
    longest = 1 + len(text.encode()) + 2 - 1  # bos, two eos; the last one is only a target
    assert (found["what"], found["longest"]) == ("conversations", longest)
    batches = [data.train_batch(n) for n in range(2)]
    rows = np.concatenate([batch["inputs"] for batch in batches])
    assert (rows != 0).sum(axis=1).max() == 48
    dropped = load(tmp_path, train=[{"messages": CHAT}, *PAIRS[:7]], over_long="drop")
    assert dropped.description["train_rows"] == 7
    with pytest.raises(ConfigError, match="over_long='split'"):
        load(tmp_path, over_long="split")


def test_the_template_beside_a_published_tokenizer_is_used(tmp_path):
    path = write_tokenizer(tmp_path / "hub", TEMPLATES["chatml"])
    data = load(tmp_path / "data", tokenizer=str(path), length=64)
    rows = learned(data.train_batch(0), data.tokenizer)
    assert {answer for _, answer in rows} <= {str(n) for n in range(21)}
    last = data.train_batch(0)
    ends = [t[np.flatnonzero(w)[-1]] for t, w in zip(last["targets"], last["weights"], strict=True)]
    assert set(ends) == {data.tokenizer.encode("<|im_end|>")[0]}
    other = load(tmp_path / "data", tokenizer=str(path), length=64,
                 options={"chat_template": TEMPLATES["plain"]})  # fmt: skip
    assert not np.array_equal(other.train_batch(0)["inputs"], last["inputs"])


def test_files_without_splits_are_split_by_conversation(tmp_path):
    write_lines(tmp_path / "all.jsonl", PAIRS * 2)
    data = config(tmp_path / "all.jsonl", cache_dir=str(tmp_path / "cache"), eval_share=0.3)
    loaded = pipeline.load(data, objective="causal_lm", masking=masking(), seed=0)
    eval_set = {each["record"] for each in loaded.eval_examples("validation", 40)}
    splits = chat.load(data)
    assert 0 < len(eval_set) < 20
    assert not eval_set & {each["record"] for each in splits.train}


def test_a_vocabulary_can_be_trained_on_conversations(tmp_path):
    data = load(tmp_path, tokenizer="bpe", tokenizer_size=380)
    assert {answer for _, answer in learned(data.train_batch(0), data.tokenizer)} <= {
        f" {n}" for n in range(21)
    }


SYSTEM = {"role": "system", "content": "be brief"}


@pytest.mark.parametrize(
    "record, problem",
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ({}, "lacks 'messages', or 'prompt' and 'completion'"),
        ({"prompt": "x"}, "lacks 'messages', or 'prompt' and 'completion'"),
        ({"conversations": CHAT}, "lacks 'messages', or 'prompt' and 'completion'"),
        ({"messages": []}, "messages must be a list of messages"),
        ({"messages": CHAT[:1]}, "no message is the assistant's"),
        ({"messages": [{"role": "bot", "content": "x"}]}, "the role 'bot'"),
        ({"messages": [{"role": "assistant", "content": ""}]}, "content of the assistant is empty"),
        ({"messages": [{"role": "user", "content": "\ud800"}, CHAT[1]]}, "half of a character"),
        ({"messages": CHAT, "prompt": "x", "completion": "y"}, "keep one of them"),
        ({"prompt": "x", "completion": " "}, "completion is empty or not text"),
        ({"prompt": 3, "completion": "x"}, "prompt is empty or not text"),
        ({"messages": [SYSTEM, *CHAT]}, "the chat template: roles must alternate"),
    ],
)
def test_a_bad_record_is_named_by_file_and_line(tmp_path, record, problem):
    options = {"chat_template": TEMPLATES["instructions"]}
    with pytest.raises(ConfigError, match=problem) as caught:
        load(tmp_path, train=[PAIRS[0], record], options=options)
    assert str(caught.value).startswith(f"{tmp_path}/train.jsonl:2: ")
    assert "\n" not in str(caught.value)
    data = load(tmp_path, train=[*PAIRS[:5], record], options=options, max_bad_records=1)
    assert data.description["bad_records"]["train"] == 1


@pytest.mark.parametrize(
    "options, problem",
    [
        ({"chat_template": "my.jinja"}, r'give the text of one, such as "\$\(cat FILE\)"'),
        ({"date": "yesterday"}, "is not a date such as 2024-07-26"),
        ({"template": "x"}, "data.options.template"),
    ],
)
def test_bad_options_are_refused(tmp_path, options, problem):
    problems = list(config(tmp_path, options=options).problems())
    assert len(problems) == 1
    with pytest.raises(AssertionError if not problems else ConfigError, match=problem):
        raise ConfigError(problems)


def test_a_template_that_fails_is_named_before_training(tmp_path):
    options = {"chat_template": "{% if %}"}
    with pytest.raises(ConfigError, match=r"train.jsonl:1: the chat template: not a Jinja"):
        load(tmp_path, options=options)
    assert json.loads((tmp_path / "train.jsonl").read_text().split("\n")[0]) == PAIRS[0]
