"""A name means one thing, and is the field's: no two modules or public classes share one, and words
that only this project used for a thing are not used again."""

import ast
import collections
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Files in these directories are named after what they configure or study: --config, --study.
NAMED_AFTER_OTHERS = {"configs", "studies"}
SHARED_MODULES = {
    "config",  # in three directories, always the sections of the config that its code reads
}
SHARED_CLASSES: set[str] = set()

# Words that this project once gave to things that the field has words for, each with the words that
# replace it. A reader who knows Flax or PyTorch cannot guess what `kept` or `side` holds.
PRIVATE_WORDS = {
    "sight seen_by": "mask_spec",
    "side": "sequence_info, stack, language, axis",
    "near": "locality, window, tolerance",
    "surroundings around": "context",
    "remembering recalling": "cache, decode step",
    "remembered": "memory_qkv",
    "general": "global_qkv",
    "summing sums": "state, totals, row_sums",
    "seen": "softmax_state, visible, indices, observed",
    "look look_back": "forward, backward, view",
    "slopes": "gradients, alibi_slopes",
    "work": "block_schedule",
    "outcome": "gradients, status",
    "hiding hide": "masking, mask",
    "turned_product product": "matmul",
    "plus": "add_bias",
    "lookup": "embed",
    "dropping": "dropout",
    "kept": "frozen, remaining, is_kept",
    "whole": "merged_params, full, uninterrupted, expected",
    "fixed": "frozen_inputs",
    "judge verdict": "anomaly detection, status",
    "unless_faulty guard": "select",
    "origins": "provenance",
    "held_out": "eval_set",
    "measures": "metrics",
    "records": "run_directory, lines, examples, reports",
    "writer writing_options": "sampler, sampling_options",
    "answering": "predictors",
    "filler": "fill_mask",
    "form": "feature_spec, layout, format",
    "rowmaker": "row_builder",
    "fitting": "infer sizes, applicable",
    "save_noise": "quiet_orbax",
    "door": "experiment",
}
REPLACEMENTS = {word: new for words, new in PRIVATE_WORDS.items() for word in words.split()}
AXES = re.compile(r"_[abthskgdlvmpfncijqruwxyze0-9]{1,6}$")  # the axes of an array, as in kept_bhts


def python_files() -> list[Path]:
    paths = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py"))
    return [path for path in paths if not any(part.startswith(".") for part in path.parts)]


def project_files() -> list[Path]:
    return [path for path in python_files() if path.parts[0] != "tests"]


def shared(places: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: found for name, found in places.items() if len(found) > 1}


def test_no_two_modules_or_packages_share_a_name():
    places = collections.defaultdict(list)
    for path in project_files():
        if path.parts[0] not in NAMED_AFTER_OTHERS:
            name = path.parent.name if path.stem == "__init__" else path.stem
            places[name].append(str(path))
    assert len(places) > 50
    assert shared(places).keys() <= SHARED_MODULES, shared(places)


def test_no_two_public_classes_share_a_name():
    places = collections.defaultdict(list)
    for path in project_files():
        for node in ast.parse((ROOT / path).read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{path}:{node.lineno}")
    assert len(places) > 50
    assert shared(places).keys() <= SHARED_CLASSES, shared(places)


def bound_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every name that the code binds, with its line: variables, arguments, definitions, attributes.

    Names that it only reads may come from other libraries, and so may keyword arguments of calls.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno
            case ast.arg(arg=name) | ast.ClassDef(name=name):
                yield name, node.lineno
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name, node.lineno
            case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)):
                yield name, node.lineno
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name, node.lineno
            case ast.MatchMapping(rest=str(name)):
                yield name, node.lineno


def private_word(name: str) -> str:
    """The private word that a name is, whatever its case, underscores and axes; "" if none."""
    word = name.lower().strip("_")
    return next((each for each in (word, AXES.sub("", word)) if each in REPLACEMENTS), "")


@pytest.mark.parametrize(
    "name", ["seen", "_Sums", "MEASURES", "kept_bhts", "held_out", "look_back"]
)
def test_private_words_are_recognised(name):
    assert private_word(name)


@pytest.mark.parametrize(
    "name", ["is_kept", "row_sums", "sides", "foreseen", "whole_rows", "form_of"]
)
def test_other_names_are_not_private_words(name):
    assert not private_word(name)


BINDINGS = """
import side as seen
def whole(kept, *sums, near=0, **slopes): pass
class Door:
    records: int = 0
for look in (form := []): form.product = [judge for judge in look]
with look as (fixed, *work): pass
lambda guard: guard
try: pass
except OSError as verdict: pass
match look:
    case {"a": origins, **measures}: pass
    case [*fitting] as writer: pass
"""


def test_every_way_to_bind_a_name_is_found():
    expected = "seen whole kept sums near slopes Door records look form product judge fixed work"
    expected += " guard verdict origins measures fitting writer"
    assert {name for name, _ in bound_names(ast.parse(BINDINGS))} == set(expected.split())


def test_names_are_the_words_of_the_field():
    files = python_files()
    assert len(files) > 300
    found = []
    for path in files:
        for name, line in bound_names(ast.parse((ROOT / path).read_text())):
            if word := private_word(name):
                found.append(f"{path}:{line}: {name}: say such as {REPLACEMENTS[word]}")
    assert not found, "\n".join(found)


LEGEND = re.compile(r"^\| ([A-Z]) \| (.+?) \| (?:`(.+)`)? *\|$", re.M)
WORDS_WITH_B = {
    "above", "back", "backup", "band", "bands", "bar", "bars", "base", "batch", "beam", "beams",
    "before", "begins", "begun", "below", "bert", "beside", "best", "beta", "bias", "big", "binop",
    "binops", "bins", "bit", "bits", "block", "blocks", "body", "bos", "both", "bound", "bounds",
    "box", "bpe", "breaks", "bucket", "budget", "built", "by", "byte", "bytes", "object",
}  # fmt: skip


@functools.cache
def legend() -> dict[str, str]:
    """The only directory or file in which each letter of docs/extend.md is used; "": anywhere."""
    rows = LEGEND.findall((ROOT / "docs" / "extend.md").read_text())
    letters = [letter for letter, _, _ in rows]
    assert len(set(letters)) == len(letters) > 20
    return {letter.lower(): place for letter, _, place in rows}


def axes_of(name: str) -> str:
    """The axes at the end of the name of an array with a batch axis, such as btd; "" if none."""
    what, _, end = name.rpartition("_")
    if not what or end in WORDS_WITH_B:
        return ""
    return end if re.fullmatch(r"[a-z]?b[a-z0-9]{0,5}", end) else ""


def strange_letters(path: Path, name: str) -> set[str]:
    """The letters in a name's axes that the legend does not have, or not for this file."""
    known = {each for each, place in legend().items() if str(path).startswith(place)}
    return {each for each in axes_of(name) if each.isalpha()} - known


@pytest.mark.parametrize(
    ("name", "expected"),
    [("x_btd", "btd"), ("ibht", ""), ("q_ibthk", "ibthk"), ("seen_by", ""), ("loss_b", "b")],
)
def test_the_axes_of_a_name(name, expected):
    assert axes_of(name) == expected


def test_a_letter_that_belongs_elsewhere_is_found():
    assert strange_letters(Path("model/experts.py"), "x_btyd") == set()
    assert strange_letters(Path("model/experts.py"), "x_btn") == {"n"}
    assert strange_letters(Path("evaluation/metrics.py"), "x_bte") == {"e"}


def test_every_letter_of_an_axis_is_in_the_legend():
    """Names of arrays end in letters of the one legend, and each letter is used where it says."""
    found, arrays = [], 0
    for path in project_files():
        for name, line in bound_names(ast.parse((ROOT / path).read_text())):
            arrays += bool(axes_of(name))
            if letters := strange_letters(path, name):
                found.append(f"{path}:{line}: {name}: {', '.join(sorted(letters)).upper()}")
    assert arrays > 1000
    assert not found, "\n".join(found)


def test_no_file_has_a_legend_of_its_own():
    own = re.compile(r"\b(?:more|shape) (?:axis|axes|letters?)\b.*[:;]|\bMore axes\b", re.I)
    for path in project_files():
        text = ast.get_docstring(ast.parse((ROOT / path).read_text())) or ""
        assert not own.search(text), f"{path}: list its letters in docs/extend.md"


# The docstring of the module says what these do: what a script, an experiment or a study is.
SAID_BY_THE_MODULE = {"main", "get_config", "get_study"}


def has_words(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """Whether a definition says what it is: by a docstring, or an attribute `description`."""
    targets = (each.targets[0] for each in node.body if isinstance(each, ast.Assign))
    is_described = any(isinstance(each, ast.Name) and each.id == "description" for each in targets)
    return bool(ast.get_docstring(node)) or (isinstance(node, ast.ClassDef) and is_described)


def test_every_public_function_and_class_says_what_it_is():
    definitions = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    found, count = [], 0
    for path in project_files():
        tree = ast.parse((ROOT / path).read_text())
        for node in tree.body:
            if not isinstance(node, definitions) or node.name.startswith("_"):
                continue
            count += 1
            if node.name in SAID_BY_THE_MODULE:
                assert ast.get_docstring(tree), f"{path} has no docstring"
            elif not has_words(node):
                found.append(f"{path}:{node.lineno}: {node.name}")
    assert count > 1000
    assert not found, "\n".join(found)


def test_words_are_told_from_no_words():
    cases = {
        'def f():\n    "What."': True,
        "def f():\n    description = 1": False,
        'class A:\n    description = "what"': True,
        "class A:\n    name = 'a'": False,
    }
    for code, expected in cases.items():
        assert has_words(ast.parse(code).body[0]) is expected
