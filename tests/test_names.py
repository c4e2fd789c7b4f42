"""A name means one thing: no two modules and no two public classes of the project share one."""

import ast
import collections
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Files in these rooms are named after what they configure or measure.
NAMED_AFTER_OTHERS = {"configs", "benchmarks"}
SHARED_MODULES = {
    "__init__",
    "config",  # the sections of the config, each beside the code that reads it
}
SHARED_CLASSES: set[str] = set()


def project_files() -> list[Path]:
    paths = [path.relative_to(ROOT) for path in ROOT.rglob("*.py")]
    hidden = [path for path in paths if any(part.startswith(".") for part in path.parts)]
    return sorted(path for path in paths if path.parts[0] != "tests" and path not in hidden)


def shared(places: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: found for name, found in places.items() if len(found) > 1}


def test_no_two_modules_share_a_name():
    places = collections.defaultdict(list)
    for path in project_files():
        if path.parts[0] not in NAMED_AFTER_OTHERS:
            places[path.stem].append(str(path))
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
