"""Renders conversations with chat templates, as transformers' `apply_chat_template` does.

A chat template is a Jinja program that comes with a published tokenizer, so it is untrusted. It
runs in Jinja's sandbox, which has no files, no network and no Python internals. Loops and calls are
counted, and no text may become huge, so a template cannot take all of the time or the memory.
"""

import contextvars
import dataclasses
import datetime
import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

Message = Mapping[str, str]  # role and content
Span = tuple[int, int]  # first character, end

LARGEST = 2**22  # characters of a text that a template makes
MOST_STEPS = 2**20  # passes of loops
CALL_STEPS = 16  # what one call counts
TODAY = "today"  # a date
# The default, for tokenizers without a template. The answer begins with the space after the colon,
# which most vocabularies have in the piece of its first word.
DEFAULT = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ message['role'] }}: {{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{{ '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
# What surrounds the text of a {% generation %} block until the spans are known.
_MARK = re.compile("\x00[()]\x00")
_steps: contextvars.ContextVar[list[int]] = contextvars.ContextVar("steps")


class ChatTemplateError(ValueError):
    """A template that cannot be read, or that refuses a conversation; the message is one line."""


@dataclasses.dataclass(frozen=True)
class Rendered:
    """The text of a conversation."""

    text: str
    answers: tuple[Span, ...] | None  # the {% generation %} blocks; None: the template has none


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
    """A chat template.

    source: the Jinja program. date: what `strftime_now` returns, as YYYY-MM-DD, or TODAY; empty
    refuses templates that ask for it, because their text would change from day to day.
    """

    source: str
    date: str = ""

    @property
    def marks_answers(self) -> bool:
        """Whether the template says itself which parts are the assistant's."""
        return re.search(r"\{%-?\s*generation\s*-?%\}", self.source) is not None

    def render(
        self,
        messages: Sequence[Message],
        special_tokens: Mapping[str, str],
        *,
        add_generation_prompt: bool = False,
    ) -> Rendered:
        """The text of a conversation; raises ChatTemplateError.

        special_tokens: by name, such as bos_token. add_generation_prompt: the text ends where the
        assistant's answer begins.
        """
        import jinja2

        compiled = _compiled(self.source)
        token = _steps.set([0])
        try:
            pieces, size = [], 0
            for piece in compiled.generate(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                strftime_now=self._strftime_now,
                **special_tokens,
            ):
                size += len(piece)
                if size > LARGEST:
                    _refuse_size()
                pieces.append(piece)
        except ChatTemplateError:
            raise
        except jinja2.TemplateError as error:
            raise ChatTemplateError(_one_line(error)) from error
        except (Exception, RecursionError) as error:  # the program may fail in any way
            raise ChatTemplateError(f"{type(error).__name__}: {_one_line(error)}") from error
        finally:
            _steps.reset(token)
        return _without_marks("".join(pieces), has_marks=self.marks_answers)

    def _strftime_now(self, format: str) -> str:
        if not self.date:
            raise ChatTemplateError(
                "it writes today's date, so the same file would give other ids tomorrow; fix the "
                "date with data.options.date=2024-07-26"
            )
        if self.date == TODAY:
            return datetime.datetime.now().strftime(format)
        return datetime.datetime.fromisoformat(self.date).strftime(format)


def named_template(templates: Any) -> str | None:
    """The template of a tokenizer's record: the only one, or of several the one named default."""
    if isinstance(templates, list):  # as in older files
        pairs = [each for each in templates if isinstance(each, dict)]
        templates = {each.get("name"): each.get("template") for each in pairs}
    if isinstance(templates, dict):
        templates = templates.get("default")
    return templates if isinstance(templates, str) and templates else None


def _without_marks(text: str, *, has_marks: bool) -> Rendered:
    if not has_marks:
        return Rendered(text, None)
    parts, marks = _MARK.split(text), _MARK.findall(text)
    places, spans, start = 0, [], None
    for part, mark in zip(parts, marks, strict=False):
        places += len(part)
        if mark[1] == "(":
            start = places
        elif start is not None:
            spans.append((start, places))
            start = None
    return Rendered("".join(parts), tuple(spans))


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _refuse_size() -> NoReturn:
    raise ChatTemplateError(f"it makes a text of more than {LARGEST:,} characters")


def _count_steps(count: int = 1) -> None:
    steps = _steps.get()
    steps[0] += count
    if steps[0] > MOST_STEPS:
        raise ChatTemplateError(f"it takes more than {MOST_STEPS:,} steps")


@functools.lru_cache(maxsize=8)
def _compiled(source: str):
    """The compiled template. Names and options are those that transformers gives a template."""
    import jinja2

    if len(source) > LARGEST:
        raise ChatTemplateError(f"it has more than {LARGEST:,} characters")
    try:
        return _environment().from_string(source)
    except jinja2.TemplateError as error:
        raise ChatTemplateError(f"not a Jinja template: {_one_line(error)}") from error
    except (Exception, RecursionError) as error:
        raise ChatTemplateError(f"not a Jinja template: {type(error).__name__}") from error


@functools.cache
def _environment():
    """Jinja's sandbox with bounds. Built at the first use, as few runs need Jinja."""
    import jinja2.ext
    import jinja2.nodes
    import jinja2.sandbox
    import jinja2.utils
    from jinja2.visitor import NodeTransformer

    class Counted(NodeTransformer):
        """Counts the passes of every loop; makes a ~ b an addition, whose size is checked."""

        def visit_For(self, node, *args):  # noqa: N802 (Jinja's name)
            self.generic_visit(node)
            node.iter = jinja2.nodes.Filter(
                node.iter, "counted", [], [], None, None, lineno=node.lineno
            )
            return node

        def visit_Concat(self, node, *args):  # noqa: N802
            self.generic_visit(node)
            texts = [
                jinja2.nodes.Filter(each, "string", [], [], None, None, lineno=node.lineno)
                for each in node.nodes
            ]
            return functools.reduce(
                lambda left, right: jinja2.nodes.Add(left, right, lineno=node.lineno), texts
            )

    class Generation(jinja2.ext.Extension):
        """{% generation %}: what the assistant writes."""

        tags = {"generation"}  # noqa: RUF012 (as Jinja declares it)

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            call = self.call_method("_marked")
            return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

        def _marked(self, caller):
            return f"\x00(\x00{caller()}\x00)\x00"

    def safe_format(safe, text, *args, **kwargs):
        _refuse_large("format", (text, *args, *kwargs.values()))
        return safe(*args, **kwargs)

    class BoundedSandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset({"+", "*", "**", "%"})

        def _parse(self, source, name, filename):
            return Counted().visit(super()._parse(source, name, filename))

        def call_binop(self, context, operator, left, right):
            _refuse_growth(operator, left, right)
            return super().call_binop(context, operator, left, right)

        def call(self, context, obj, *args, **kwargs):
            _count_steps(CALL_STEPS)
            owner = getattr(obj, "__self__", None)
            if isinstance(owner, str):  # a method of a text
                _refuse_large(obj.__name__, (owner, *args, *kwargs.values()))
            return super().call(context, obj, *args, **kwargs)

        def wrap_str_format(self, value):
            safe = super().wrap_str_format(value)
            return safe and functools.partial(safe_format, safe, value.__self__)

    environment = BoundedSandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    filters = environment.filters
    filters.update({name: _bounded(name, function) for name, function in filters.items()})
    filters["tojson"] = _bounded("tojson", _to_json)
    filters["counted"] = _counted
    environment.globals.pop("lipsum")
    environment.globals["raise_exception"] = _raise
    environment.globals["namespace"] = _namespace_class()
    environment.globals["dict"] = _make_dict
    return environment


def _counted(values: Any) -> Iterator:
    for value in values:
        _count_steps()
        yield value


def _raise(message: Any) -> NoReturn:
    raise ChatTemplateError(" ".join(str(message).split()))


def _make_dict(*args: Any, **kwargs: Any) -> dict:
    return dict(*args, **kwargs)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without Jinja's escapes for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _namespace_class() -> type:
    import jinja2.utils
    from jinja2.exceptions import SecurityError

    class PlainNamespace(jinja2.utils.Namespace):
        """Without names that begin with an underscore, which Python may give a meaning."""

        def __init__(*args, **kwargs):
            self, *given = args
            values = dict(*given, **kwargs)
            for name in values:
                PlainNamespace._check(name)
            jinja2.utils.Namespace.__init__(self, values)

        def __setitem__(self, name, value):
            PlainNamespace._check(name)
            jinja2.utils.Namespace.__setitem__(self, name, value)

        @staticmethod
        def _check(name):
            if str(name).startswith("_"):
                raise SecurityError(f"a namespace cannot have the name {name!r}")

    return PlainNamespace


def _bounded(name: str, function):
    """A filter that refuses to make a huge text."""

    @functools.wraps(function)  # keeps Jinja's marks on what the filter is called with
    def bounded(*args, **kwargs):
        _refuse_large(name, (*args, *kwargs.values()))
        return function(*args, **kwargs)

    return bounded


def _refuse_growth(operator: str, left: Any, right: Any) -> None:
    """Refuses an operation whose result would be huge."""
    sizes = [len(each) if hasattr(each, "__len__") else 1 for each in (left, right)]
    numbers = [abs(each) for each in (left, right) if isinstance(each, int)]
    match operator:
        case "+":
            size = sum(sizes)
        case "*" if len(numbers) == 1:
            size = max(sizes) * numbers[0]
        case "**" | "*":
            size = LARGEST + 1 if any(number > LARGEST for number in numbers) else 0
            size = max(size, numbers[-1] if operator == "**" and numbers else 0)
        case "%":
            return _refuse_large("format", (left, *_items(right)))
    if size > LARGEST:
        _refuse_size()
    return None


def _refuse_large(name: str, values: Sequence[Any]) -> None:
    """Refuses the arguments of a filter or method whose result would be huge."""
    texts = [value for value in values if isinstance(value, str)]
    numbers = [value for value in values if isinstance(value, int)]
    size = max(map(len, texts), default=0) + max(numbers, default=0)
    if name in ("format", "format_map"):
        size = max([size, *(int(digits) for text in texts for digits in re.findall(r"\d+", text))])
    elif name == "replace" and len(texts) >= 3:
        size = len(texts[0]) * (1 + len(texts[2]))
    elif name == "join":
        lists = [value for value in values if isinstance(value, list | tuple)]
        items = [item for each in lists for item in each]
        size = sum(len(item) for item in items if isinstance(item, str))
        size += len(items) * max(map(len, texts), default=0)
    elif name == "indent":
        lines = sum(text.count("\n") + 1 for text in texts)
        size += lines * max([4, *numbers, *map(len, texts[1:])])
    if size > LARGEST:
        _refuse_size()


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, tuple) else (value,)
