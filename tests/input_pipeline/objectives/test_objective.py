"""What the objectives declare, against each other and against the documentation."""

from pathlib import Path

import pytest

from configs.default import get_config
from input_pipeline.objectives import OBJECTIVES

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "extend.md"


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_document_has_a_row_for_each_objective(name):
    each = OBJECTIVES[name]
    kinds, families = (", ".join(listed) or "none" for listed in (each.kinds, each.families))
    row = f"| `{name}` | {each.description} | {kinds} | {families} | `{each.head}` |"
    assert row in DOCUMENT.read_text().splitlines()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_declared_keys_exist(name):
    objective, task = OBJECTIVES[name], get_config().task
    switches = [term.key for term in objective.terms if term.key]
    assert {*objective.keys, *switches} <= set(task)
    assert set(switches) <= set(objective.keys)  # others have no such term
