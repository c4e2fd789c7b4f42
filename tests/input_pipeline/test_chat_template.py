import datetime
import time

import pytest

from input_pipeline.chat_template import ChatTemplate, ChatTemplateError, named_template
from tests.input_pipeline.chats import CHAT, TEMPLATES

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def render(source, messages=CHAT, date="", **options):
    return ChatTemplate(source, date).render(messages, TOKENS, **options).text


def test_blocks_leave_no_line_breaks():
    source = "{% if true %}\n  {% for m in messages %}\nx\n  {% endfor %}\n{% endif %}\n-"
    assert render(source, CHAT[:2]) == "x\nx\n-"


def test_what_transformers_gives_a_template_is_there():
    source = (
        "{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}{{ m | tojson }}"
        "{% endfor %}{% set ns = namespace(n=1) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}"
        "{{ dict(a='é') | tojson(indent=1) }}{{ tools is none }}{{ missing is defined }}"
        "{% for i in range(3) %}{{ i }}/{{ loop.length }}{{ loop.last }}{% endfor %}"
    )
    expected = (
        '{"role": "user", "content": "What is the capital of France?"}2{\n "a": "é"\n}TrueFalse'
        "0/3False1/3False2/3True"
    )
    assert render(source) == expected


def test_marked_answers_are_found_by_character():
    rendered = ChatTemplate(TEMPLATES["marked"]).render(CHAT, TOKENS)
    found = [rendered.text[start:stop] for start, stop in rendered.answers]
    assert found == [f"{message['content']}<|im_end|>" for message in CHAT[1::2]]
    assert ChatTemplate(TEMPLATES["chatml"]).render(CHAT, TOKENS).answers is None


def test_the_date_is_fixed_or_todays():
    source = "{{ strftime_now('%Y-%m-%d') }}"
    assert render(source, date="2024-07-26") == "2024-07-26"
    assert render(source, date="today") == datetime.datetime.now().strftime("%Y-%m-%d")
    with pytest.raises(ChatTemplateError, match=r"data\.options\.date"):
        render(source)


@pytest.mark.parametrize(
    "source, problem",
    [
        ("{% for %}", "not a Jinja template"),
        ("{{ messages[0].nothing.at_all }}", "has no attribute"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{{ raise_exception('only\ntwo turns') }}", "only two turns"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        # What is untrusted
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe|not safely"),
        ("{% include '/etc/passwd' %}", "loader"),
        ("{% set ns = namespace(__class__=1) %}", "namespace cannot have"),
        # What would take too long or too much
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "steps"),
        ("{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
         "steps"),
        ("{{ 'x' * 10 ** 10 }}", "characters"),
        ("{{ ('x' * 4000000) * 4000000 }}", "characters"),
        ("{{ 9 ** (9 ** 9) }}", "characters"),
        ("{% set n = namespace(s='xx') %}{% for i in range(64) %}{% set n.s = n.s ~ n.s %}"
         "{% endfor %}", "characters"),
        ("{% set n = namespace(s='xx') %}{% for i in range(64) %}{% set n.s = n.s + n.s %}"
         "{% endfor %}", "characters"),
        ("{{ 'x' | center(10000000000) }}", "characters"),
        ("{{ 'x'.ljust(10000000000) }}", "characters"),
        ("{{ '%1000000000d' % 1 }}", "characters"),
        ("{{ '%*d' % (1000000000, 1) }}", "characters"),
        ("{{ '{:1000000000}'.format(1) }}", "characters"),
        ("{{ '%1000000000d' | format(1) }}", "characters"),
        ("{% set s = 'x' * 1000000 %}{{ s | replace('x', s) }}", "characters"),
        ("{% set s = 'x' * 1000000 %}{{ s.replace('x', s) }}", "characters"),
        ("{{ ['x' * 1000000] | join | indent(4000000) }}{{ ['x' * 99999] * 99999 }}", "characters"),
        ("{% set s = 'x' * 99999 %}{{ ([s] * 9999) | join(s) }}", "characters"),
        ("{% for i in range(99) %}{{ 'x' * 99999 }}{% endfor %}", "characters"),
    ],
)  # fmt: skip
def test_a_bad_template_gets_one_line_at_once(source, problem):
    begin = time.perf_counter()
    with pytest.raises(ChatTemplateError, match=problem) as caught:
        render(source)
    assert "\n" not in str(caught.value)
    assert time.perf_counter() - begin < 5


def test_one_template_is_chosen_of_several():
    assert named_template("a") == named_template({"default": "a", "tool_use": "b"}) == "a"
    assert named_template([{"name": "default", "template": "a"}]) == "a"
    for nothing in (None, "", {}, {"tool_use": "b"}, [1], 3):
        assert named_template(nothing) is None
