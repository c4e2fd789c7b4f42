import numpy as np
import pytest

from experiment.schema import ConfigError
from input_pipeline.chat_encoding import chat_format, checked_messages
from input_pipeline.chat_template import DEFAULT, ChatTemplateError
from input_pipeline.tokenizers.tokenizer import ByteTokenizer
from input_pipeline.tokenizers.train_vocabulary import train_tokenizer
from tests.input_pipeline.chats import ANSWERS, CHAT, TEMPLATES, chat_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return chat_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def runs_of(values):
    """Start and stop of each run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], values.astype(int), [0]])))
    return edges.reshape(-1, 2).tolist()


def text_of(tokenizer, ids):
    """The text of ids, special ones included, without the code under test."""
    return tokenizer._tokenizer.decode(list(map(int, ids)), skip_special_tokens=False)


@pytest.mark.parametrize("style", TEMPLATES)
def test_each_answer_is_learned_with_the_end_of_its_turn(tokenizer, style):
    ids, is_answer = chat_format(tokenizer, {"chat_template": TEMPLATES[style]}).conversation(CHAT)
    found = [text_of(tokenizer, ids[a:b]) for a, b in runs_of(is_answer)]
    assert found == ANSWERS[style]
    assert is_answer.sum() == sum(b - a for a, b in runs_of(is_answer)) < len(ids)


@pytest.mark.parametrize("style", ["chatml", "headers", "instructions", "plain", "marked"])
def test_the_prompt_of_an_answer_is_what_precedes_it_in_training(tokenizer, style):
    chat = chat_format(tokenizer, {"chat_template": TEMPLATES[style]})
    ids, is_answer = chat.conversation(CHAT)
    for (start, _), turns in zip(runs_of(is_answer), (1, 3), strict=True):
        np.testing.assert_array_equal(chat.prompt(CHAT[:turns]), ids[:start])


def test_the_token_that_ends_a_turn_stops_generation(tokenizer):
    ends = {
        style: [text_of(tokenizer, [id]) for id in chat_format(
            tokenizer, {"chat_template": template}).end_ids()]
        for style, template in TEMPLATES.items()
    }  # fmt: skip
    im_end = ["<|im_end|>"]
    assert ends == {
        "chatml": im_end, "headers": ["<|end|>"], "instructions": ["</s>"], "plain": [],
        "thoughts": im_end, "marked": im_end,
    }  # fmt: skip


def test_byte_tokens_are_framed_by_special_ids_that_no_text_spells():
    tokenizer = ByteTokenizer()
    chat = chat_format(tokenizer, {})
    assert chat.template.source == DEFAULT
    messages = [
        {"role": "system", "content": "Ä\x00bos\x00"},
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "né"},
    ]
    bos, eos, encode = [tokenizer.bos_id], [tokenizer.eos_id], tokenizer.encode
    start = [*bos, *encode("system: Ä\x00bos\x00\nuser: q\nassistant:")]
    answer = [*encode(" né"), *eos]
    ids, is_answer = chat.conversation(messages)
    assert ids.tolist() == [*start, *answer, *encode("\n")]
    assert is_answer.tolist() == [False] * len(start) + [True] * len(answer) + [False]
    assert chat.prompt(messages[:2]).tolist() == start
    assert chat.end_ids() == (tokenizer.eos_id,)


def test_a_trained_vocabulary_gets_its_special_ids():
    texts = [message["content"] for message in CHAT] * 4
    tokenizer = train_tokenizer("bpe", texts, 400)
    ids, is_answer = chat_format(tokenizer, {}).conversation(CHAT)
    assert ids[0] == tokenizer.bos_id
    answers = [ids[a:b] for a, b in runs_of(is_answer)]
    assert [answer[-1] for answer in answers] == [tokenizer.eos_id] * 2
    assert [tokenizer.decode(answer) for answer in answers] == [
        " " + message["content"] for message in CHAT[1::2]
    ]


def test_the_tokenizers_own_template_is_the_default(tmp_path):
    tokenizer = chat_tokenizer(tmp_path / "one", TEMPLATES["chatml"])
    assert chat_format(tokenizer, {}).template.source == TEMPLATES["chatml"]
    several = [{"name": "tool_use", "template": "{}"}, {"name": "default", "template": "{{ 1 }}"}]
    tokenizer = chat_tokenizer(tmp_path / "two", several)
    assert chat_format(tokenizer, {}).template.source == "{{ 1 }}"
    given = {"chat_template": "{{ 2 }}"}
    assert chat_format(tokenizer, given).template.source == "{{ 2 }}"


def test_a_template_gets_the_special_tokens_that_the_files_name(tmp_path):
    """Roles here are filled up, such as bos by eos, but a template must not see that."""
    source = "{{ bos_token }}|{{ eos_token }}|{{ unk_token }}"
    named = chat_tokenizer(tmp_path / "named", source)
    unnamed = chat_tokenizer(tmp_path / "unnamed", source, bos_token=None, eos_token="<|end|>")
    assert unnamed.bos_id is not None
    for tokenizer, expected in ((named, "<s>|</s>|"), (unnamed, "|<|end|>|")):
        assert text_of(tokenizer, chat_format(tokenizer, {}).prompt(CHAT[:1])) == expected
        tokenizer.save(tmp_path)
        assert type(tokenizer).load(tmp_path).digest == tokenizer.digest


@pytest.mark.parametrize(
    "template, message",
    [
        ("{{ messages|length }}{% for m in messages %}{{ m.content }}{% endfor %}", "beginning of"),
        (
            "{% for m in messages %}{{ m.content[:1] if m.role == 'assistant' and not loop.last "
            "else m.content }}{% endfor %}",
            "changes the text of messages",
        ),
        (TEMPLATES["instructions"], "alternate"),
        ("{% generation %}{% endgeneration %}{{ messages[0].content }}", "mark no token"),
    ],
)
def test_a_template_that_cannot_be_followed_is_refused(tokenizer, template, message):
    chat = chat_format(tokenizer, {"chat_template": template})
    turns = [{"role": "system", "content": "s"}, *CHAT] if "INST" in template else CHAT
    with pytest.raises(ChatTemplateError, match=message):
        chat.conversation(turns)


@pytest.mark.parametrize(
    "messages, problem",
    [
        ([], "must be a list of messages"),
        ("hello", "must be a list of messages"),
        (["hello"], r"messages\[0\] must have role and content"),
        ([{"role": "user"}], r"messages\[0\] must have role and content"),
        ([{"role": "tool", "content": "x"}], "the role 'tool'; known are system, user, assistant"),
        ([{"role": "user", "content": " "}], "content of the user is empty or not text"),
        ([{"role": "user", "content": None}], "content of the user is empty or not text"),
        ([{"role": "user", "content": "x", "tool_calls": [1]}], "'tool_calls', which is not read"),
    ],
)
def test_bad_messages_are_refused(messages, problem):
    with pytest.raises(ConfigError, match=problem):
        checked_messages(messages)


def test_keys_without_a_value_are_read_over():
    given = [{"role": "user", "content": "x", "tool_calls": None}]
    assert checked_messages(given) == [{"role": "user", "content": "x"}]


@pytest.mark.oracle
@pytest.mark.parametrize("style", TEMPLATES)
def test_ids_are_those_of_transformers(tmp_path, style):
    import transformers

    tokenizer = chat_tokenizer(tmp_path, TEMPLATES[style])
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    chat = chat_format(tokenizer, {})
    ids, is_answer = chat.conversation(CHAT)
    asked = dict(return_dict=True, return_assistant_tokens_mask=style == "marked")
    expected = theirs.apply_chat_template(CHAT, **asked)
    assert ids.tolist() == expected["input_ids"]
    if style == "marked":
        assert is_answer.astype(int).tolist() == expected["assistant_masks"]
    expected = theirs.apply_chat_template(CHAT[:3], add_generation_prompt=True, return_dict=True)
    assert chat.prompt(CHAT[:3]).tolist() == expected["input_ids"]
