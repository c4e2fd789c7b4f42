import numpy as np
import pytest

from experiment.schema import ConfigError
from input_pipeline import pipeline
from input_pipeline.tokenizers.tokenizer import ByteTokenizer
from tests.input_pipeline.chats import CHAT, TEMPLATES, chat_tokenizer, write_lines
from tests.tiny import data_config, masking

T = ByteTokenizer()
PAIR = {"prompt": "2?", "chosen": "two", "rejected": "1"}


def load(directory, lines, **keys):
    write_lines(directory / "train.jsonl", lines)
    write_lines(directory / "validation.jsonl", [PAIR])
    where = dict(path=str(directory), cache_dir=str(directory / "cache"), prefetch=0)
    sizes = dict(batch_size=1, length=80)
    data = data_config(source="preference_files", **(where | sizes | keys))
    return pipeline.load(data, objective="dpo", masking=masking(), seed=0)


def test_a_row_has_both_answers_as_two_segments(tmp_path):
    batch = load(tmp_path, [PAIR]).train_batch(0)
    encode = lambda text: T.encode(text).tolist()  # noqa: E731
    prompt = [T.bos_id, *encode("user: 2?\nassistant:")]
    answers = [[*encode(" two"), T.eos_id], [*encode(" 1"), T.eos_id]]
    chats = [[*prompt, *answer, *encode("\n")] for answer in answers]
    expected = {
        "inputs": [*chats[0][:-1], *chats[1][:-1]],
        "targets": [*chats[0][1:], *chats[1][1:]],
        "weights": [0] * (len(prompt) - 1) + [1] * 5 + [0] + [0] * (len(chats[1]) - 1),
        "rejected_weights": [0] * (len(chats[0]) - 1) + [0] * (len(prompt) - 1) + [1] * 3 + [0],
        "segment_ids": [1] * (len(chats[0]) - 1) + [2] * (len(chats[1]) - 1),
        "positions": [*range(len(chats[0]) - 1), *range(len(chats[1]) - 1)],
    }
    assert batch.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(batch[name][0], values + [0] * (80 - len(values)), name)


@pytest.mark.parametrize("style", ["chatml", "marked"])
def test_only_the_last_answer_counts(tmp_path, style):
    line = {"prompt": CHAT[:3], "chosen": CHAT[3:], "rejected": "Milan."}
    chat_tokenizer(tmp_path / "hub", TEMPLATES[style])
    data = load(tmp_path, [line], tokenizer=str(tmp_path / "hub/tokenizer.json"), length=400)
    batch = data.train_batch(0)
    for name, answer in (("weights", "Rome."), ("rejected_weights", "Milan.")):
        assert data.tokenizer.decode(batch["targets"][0][batch[name][0] > 0]) == answer


def test_long_pairs_are_truncated_and_counted(tmp_path):
    data = load(tmp_path, [PAIR, PAIR | {"chosen": "x" * 90}])
    (found,) = data.description["over_long"]
    assert (found["what"], found["count"]) == ("pairs of conversations", 1)
    for n in range(2):
        segments = data.train_batch(n)["segment_ids"][0]
        assert segments.max() == 2 and len(segments) == 80


@pytest.mark.parametrize(
    "line, problem",
    [
        ({"prompt": "a", "chosen": "b"}, "lacks 'rejected'"),
        (PAIR | {"chosen": " "}, "chosen is empty or not text"),
        (PAIR | {"rejected": "two"}, "chosen and rejected are equal"),
        (PAIR | {"chosen": CHAT[:1]}, "no message of chosen is the assistant's"),
        (PAIR | {"prompt": [{"role": "bot", "content": "x"}]}, r"prompt\[0\] has the role 'bot'"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, problem):
    with pytest.raises(ConfigError, match=problem) as caught:
        load(tmp_path, [PAIR, line])
    assert str(caught.value).startswith(f"{tmp_path}/train.jsonl:2: ")


def test_pairs_are_not_packed(tmp_path):
    with pytest.raises(ConfigError, match=r"data\.packing=True does not go with"):
        load(tmp_path, [PAIR], packing=True)
