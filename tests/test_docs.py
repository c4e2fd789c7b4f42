"""README and docs: links, paths, config keys, commands and line counts are those of the code.

Commands are parsed, not run: the script itself reads its flags and stops before it starts to work,
and its config is validated. Flags of benchmarks are read from their source. So a command whose data
or devices are not here is checked as well.
"""

import ast
import functools
import importlib.util
import re
import shlex
import tomllib
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest
from absl import flags

from configs import classify_images, default
from experiment import command_line, sections
from tests import scripts
from tests.scripts import ROOT

PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += [*sorted((ROOT / "docs").glob("*.md")), ROOT / "tests" / "README.md"]
TITLES = [str(page.relative_to(ROOT)) for page in PAGES]
DIRECTORIES = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
TESTED_DIRECTORIES = set(DIRECTORIES) - {"benchmarks", "configs", "studies", "tests"}
SCRIPTS = sorted(path.name for path in ROOT.glob("*.py"))
PLACEHOLDER = "configs/x.py"  # any config file
LONGEST_README = 200
TOLERANCE = 0.15  # of line counts in the README

FENCE = re.compile(r"^```.*?\n(.*?)^```", re.M | re.S)
INLINE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
COMMAND = re.compile(r"\bpython (?=\S+\.py\b|-m \w)")


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


def inline_code(page: Path) -> list[str]:
    return INLINE.findall(prose(page))


def exists(pattern: str, base: Path = ROOT) -> bool:
    """Whether a path, a glob or a module's path without its ending is there."""
    return (base / pattern).exists() or any(base.glob(pattern)) or (base / f"{pattern}.py").exists()


# Links


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.M)
    slugs = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in slugs}


@pytest.mark.parametrize("page", PAGES, ids=TITLES)
def test_links_have_targets(page):
    for link in LINK.findall(prose(page)):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link} is not there"
        assert target.is_relative_to(ROOT), f"{link} leads out of the repository"
        if anchor:
            assert anchor in anchors(target), f"{link}: {sorted(anchors(target))}"


def test_the_index_lists_every_page():
    index = LINK.findall(prose(ROOT / "docs" / "README.md"))
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert pages <= set(index)


# Paths and keys in backticks


def looks_like_a_path(code: str) -> bool:
    if not re.fullmatch(r"[\w.*-]+(/[\w.*-]+)*/?", code) or code == PLACEHOLDER:
        return False
    first, slash, _ = code.partition("/")
    return first in {*DIRECTORIES, "docs"} if slash else code.endswith(".py")


@functools.cache
def names_of_files() -> set[str]:
    return {
        path.name for directory in DIRECTORIES for path in (ROOT / directory).rglob("*.py")
    } | set(SCRIPTS)


@pytest.mark.parametrize("page", PAGES, ids=TITLES)
def test_files_that_are_named_exist(page):
    missing = {
        code
        for code in filter(looks_like_a_path, inline_code(page))
        if not (exists(code) if "/" in code else code in names_of_files())
    }
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=TITLES)
def test_config_keys_that_are_named_exist(page):
    config = default.get_config().to_dict()
    for code in inline_code(page):
        key = re.fullmatch(r"(?:--config\.)?(\w+)\.(\w+)(=.*)?", code)
        is_file = key and key[2] in ("py", "json", "safetensors")
        if key and isinstance(config.get(key[1]), dict) and not is_file:
            section_is_a_package = exists(f"{key[1]}/{key[2]}")
            assert key[2] in config[key[1]] or section_is_a_package, f"{code} is not a key"


# Commands


class Command(NamedTuple):
    words: tuple[str, ...]  # behind "python"
    refusal: str = ""  # the line that follows it in a transcript


def with_variables(text: str) -> str:
    """The text with NAME=..., and the first round of `for NAME in ...`, in place of $NAME."""
    values = dict(re.findall(r'^([A-Z]+)="([^"]*)"$', text, re.M))
    values |= dict(re.findall(r"^for (\w+) in (\S+)", text, re.M))
    values |= dict.fromkeys(re.findall(r"^([A-Z]+)=\$\(", text, re.M), "DIR")
    for name, value in values.items():
        text = text.replace(f"${name}", value)
    return text


def words(line: str) -> tuple[str, ...]:
    """The command's words, up to what follows it in the shell."""
    line = re.sub(r"\.py\[:\w+\]", ".py", line)  # an architecture, which may be left out
    line = re.sub(r"\[(-[^\]|]+)(\|\w+)?\]", r"\1", line)  # a flag that may be left out
    line = re.sub(r"=N\b", "=1", line).replace(PLACEHOLDER, "configs/dates.py")
    line = line.replace("--config.section.key=value", "")
    try:
        found = shlex.split(line, comments=True)
    except ValueError:  # a quote that began on a line before
        found = shlex.split(line.rstrip("'\""), comments=True)
    ends = (place for place, word in enumerate(found) if word in ("&&", "||", "|", ";", "&"))
    return tuple(found[: next(ends, None)])


def commands(page: Path) -> list[Command]:
    text = with_variables(page.read_text().replace("\\\n", " "))
    found = []
    for block in FENCE.findall(text):
        lines = block.splitlines()
        for line, following in zip(lines, [*lines[1:], ""], strict=True):
            if match := COMMAND.search(line):
                refusal = following if line.startswith("$ ") else ""
                found.append(Command(words(line[match.end() :]), refusal))
    for code in INLINE.findall(FENCE.sub("", text)):
        if match := COMMAND.match(code):
            found.append(Command(words(code[match.end() :])))
    return found


def commands_of_header(config: Path) -> list[Command]:
    """The commands in a config's docstring; flags that begin a line belong to the line before."""
    header = ast.get_docstring(ast.parse(config.read_text())) or ""
    text = re.sub(r"\n +(?=--)", " ", header)
    # Two spaces end the command; text behind them says what it does.
    found = (
        COMMAND.split(line)[1].partition("  ")[0]
        for line in text.splitlines()
        if COMMAND.search(line)
    )
    return [Command(words(command)) for command in found]


COMMANDS = {(page, command): None for page in PAGES for command in commands(page)}
COMMANDS |= {
    (config, command): None
    for config in sorted([*(ROOT / "configs").glob("*.py"), *(ROOT / "studies").glob("*.py")])
    for command in commands_of_header(config)
}


@pytest.mark.parametrize(
    ("page", "command"), COMMANDS, ids=[f"{p.name}: {' '.join(c.words)[:60]}" for p, c in COMMANDS]
)
def test_commands_are_understood(page, command):
    script, *arguments = command.words
    if script == "-m":
        assert importlib.util.find_spec(arguments[0]), f"no module {arguments[0]}"
    elif script in SCRIPTS:
        refusal, config = parse(script, arguments)
        if refusal and command.refusal:
            assert refusal == command.refusal
            return
        assert not refusal, refusal
        if config is not None and script != "evaluate.py":
            sections.from_mapping(config)
    else:
        assert exists(script), f"no script {script}"
        given = {word[2:].partition("=")[0] for word in arguments if word.startswith("--")}
        assert given <= flags_in(ROOT / script)


def parse(script: str, arguments: list[str]) -> tuple[str, dict | None]:
    """What a script says against its flags, and the config that it would start with."""
    launch, configs = command_line.launch, []

    def note_config(*more_options):
        configs.append(flags.FLAGS.config.to_dict() if "config" in flags.FLAGS else None)

    with mock.patch.object(
        command_line, "launch", lambda main, **options: launch(note_config, **options)
    ):
        ended = scripts.run(script, *fit_for_parsing(script, arguments))
    return (ended.err.strip(), None) if ended.code else ("", configs[0])


def fit_for_parsing(script: str, arguments: list[str]) -> list[str]:
    """The arguments without --help and without run directories that do not exist here."""
    # The config of a run is that of its workdir; the defaults stand in.
    skipped = ("--help", "--workdir=" if script == "evaluate.py" else "--workdir=gs://")
    remaining = [word for word in arguments if not word.startswith(skipped)]
    # For the shape of a run, as in configs/classify_text.py:runs/minilm, an architecture stands in.
    of_run = re.compile(r"^(--config=[^:]+):\S*/.*")
    shapes = {"chat": "gpt2", "dpo": "gpt2", "text_to_text": "t5_small"}

    def shape_of(word: str) -> str:
        return next((shape for name, shape in shapes.items() if name in word), "bert_base")

    return [of_run.sub(rf"\1:{shape_of(word)}", word) for word in remaining]


def flags_in(script: Path) -> set[str]:
    """The names of the flags that a script defines with absl."""
    calls = (node for node in ast.walk(ast.parse(script.read_text())) if isinstance(node, ast.Call))
    defining = (c for c in calls if getattr(c.func, "attr", "").startswith("DEFINE_"))
    return {call.args[0].value for call in defining}


@pytest.mark.parametrize("page", PAGES, ids=TITLES)
def test_tests_to_run_exist(page):
    text = page.read_text()
    fenced = "\n".join(FENCE.findall(text)).splitlines()
    for line in (*inline_code(page), *fenced):
        if re.search(r"\bpytest ", line):
            assert not [path for path in re.findall(r"\btests/[\w./]*", line) if not exists(path)]


def test_commands_were_found():
    """Otherwise the tests above would say nothing."""
    scripts = {command.words[0] for _, command in COMMANDS}
    assert set(SCRIPTS) <= scripts
    assert len(COMMANDS) > 50


def test_extras_have_names_that_every_pip_finds():
    """pip 23 ignores an extra whose name has an underscore, with no more than a warning."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = project["optional-dependencies"]
    assert [name for name in names if not re.fullmatch(r"[a-z0-9-]+", name)] == []


def test_benchmarks_run_from_the_checkout():
    """`python benchmarks/x.py` looks for modules beside x.py, so it has to add the checkout."""
    ours = "|".join(sorted({path.parent.name for path in ROOT.glob("*/__init__.py")} | {"configs"}))
    imports = re.compile(rf"^(?:from|import) (?:{ours})\b", re.M)
    sources = {path.name: path.read_text() for path in (ROOT / "benchmarks").glob("*.py")}
    scripts = {name: source for name, source in sources.items() if "__main__" in source}
    found = {name: source for name, source in scripts.items() if imports.search(source)}
    assert len(found) > 10
    assert [name for name, source in found.items() if "sys.path.insert(0" not in source] == []


def test_data_md_names_the_split_that_images_are_scored_on():
    name = "configs/classify_images.py"
    split = classify_images.get_config().data.eval_split
    said = f"The `data.eval_split` of `{name}` is `{split}`"
    assert said in prose(ROOT / "docs" / "data.md")
    assert f"`{split}/<class>/`" in prose(ROOT / "docs" / "use.md")
    assert f"`{default.get_config().data.eval_split}`.\n{said}" in prose(ROOT / "docs" / "data.md")


def test_data_md_says_what_cannot_be_split():
    """tests/input_pipeline/test_task_spec.py has the refusals."""
    text = " ".join(prose(ROOT / "docs" / "data.md").split())
    assert "`split` is for text alone." in text
    assert "refused for labelled examples that are classified and for pairs" in text


# Figures of the README, and the table of tests


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= LONGEST_README


def test_the_files_of_a_training_step_are_as_long_as_the_readme_says():
    row = r"^\| (\d+) \| `([^`]+)` \|.*\| (\d+) \|$"
    rows = re.findall(row, (ROOT / "README.md").read_text(), re.M)
    assert [int(number) for number, *_ in rows] == list(range(1, 11))
    counted = {name: len((ROOT / name).read_text().splitlines()) for _, name, _ in rows}
    stated = {name: int(lines) for _, name, lines in rows}
    wrong = [n for n, lines in counted.items() if abs(lines - stated[n]) > TOLERANCE * lines]
    assert not wrong, f"the lines are {counted}"


def modules() -> list[Path]:
    """Every module of the project that needs a test, relative to the root."""
    found = [path for directory in TESTED_DIRECTORIES for path in (ROOT / directory).rglob("*.py")]
    found += [ROOT / script for script in SCRIPTS]
    return sorted(path.relative_to(ROOT) for path in found if path.name != "__init__.py")


def test_every_module_has_a_test_of_its_name_or_a_row_in_the_table():
    rows = re.findall(r"^\| (`.*`) \| (`.*`) \|$", (ROOT / "tests" / "README.md").read_text(), re.M)
    listed = {Path(name) for covered, _ in rows for name in INLINE.findall(covered)}
    with_own_test = {p for p in modules() if exists(f"tests/{p.parent}/test_{p.name}")}
    assert not set(map(str, set(modules()) - with_own_test - listed))
