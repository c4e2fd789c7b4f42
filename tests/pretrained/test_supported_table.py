"""docs/pretrained.md has the table of architectures that the code and these tests make.

`python -m tests.pretrained.test_supported_table` writes it.
"""

import json
import re
from collections import defaultdict

import convert
from configs import default
from experiment import sections
from pretrained import published
from pretrained.catalog import ARCHITECTURES, EVERY, REFUSED
from pretrained.gguf_model import READABLE
from tests.model.feature_table import DOCS, with_table
from tests.pretrained import test_decoders
from tests.pretrained.make_fixtures import FIXTURES
from tests.pretrained.transformers_models import EXAMPLES, MORE_CLASSES

DOCUMENT = DOCS / "pretrained.md"
HERE = "tests/pretrained"
END = re.compile(r"(For\w+|(MT|Encoder|(With)?LMHead)?Model)$")  # of a class of transformers
# Tests with published weights.
REAL_WEIGHTS = {
    "bert": ("all-MiniLM-L6-v2", "test_minilm.py"),
    "llama": ("SmolLM2-135M-Instruct, from GGUF", "test_smollm2.py"),
}


def fixture_config(name):
    return json.loads((FIXTURES / name / "config.json").read_text())


def compared_classes():
    """The classes of transformers that test_parity.py compares, with their stored examples."""
    found = {name: [] for name in MORE_CLASSES}
    for name in EXAMPLES:
        found.setdefault(fixture_config(name)["architectures"][0], []).append(name)
    return found


def exported_class(name):
    """The class that the model of an example goes out as."""
    found = published.read(FIXTURES / name)
    config = default.get_config().to_dict()
    config["model"] |= found.model
    config["task"] |= found.task
    config["data"] |= dict(length=8, encoder_length=8)
    experiment = sections.from_mapping(config)
    model, head = experiment.model.resolve(), convert._head(experiment.task)
    described = published.describe(model, head, found.labels, found.specials)
    return described.config["architectures"][0]


def end_of(name):
    """ForMaskedLM of BertForMaskedLM."""
    return END.search(name)[0]


def code(texts):
    return " ".join(f"`{text}`" for text in texts)


def table() -> str:
    """The rows of all architectures, the objectives of their classes, and what is refused."""
    return "\n\n".join(map("\n".join, (architectures(), objectives(), refusals())))


def architectures():
    """A row for each architecture; classes are given by the ends of their names."""
    columns = "compared", "not compared", "greedy text", "goes out as", "GGUF", "real weights"
    lines = [f"| `model_type` | {' | '.join(columns)} |", "|---" * 7 + "|"]
    examples = compared_classes()
    writing = (*test_decoders.DECODERS, *test_decoders.ENCODER_DECODERS)
    greedy = {fixture_config(name)["model_type"] for name in writing}
    for each in EVERY:
        exported = {
            exported_class(example) for name in each.heads for example in examples.get(name, ())
        } - each.heads.keys()
        is_first = each in ARCHITECTURES.values()
        weights, test = REAL_WEIGHTS.get(each.model_type, ("", "")) if is_first else ("", "")
        cells = [
            f"`{each.model_type}`",
            code(end_of(name) for name in each.heads if name in examples),
            code(end_of(name) for name in each.heads if name not in examples),
            ("yes" if each.model_type in greedy else "no") if each.generates else "",
            code(sorted(exported)) or "itself",
            "yes" if is_first and each.model_type in READABLE else "",
            f"{weights} (`{test}`)" if weights else "",
        ]
        lines.append("|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|")
    return lines


def objectives():
    """A row for each objective; complete names of classes whose ends have several objectives."""
    by_end = defaultdict(lambda: defaultdict(list))
    for each in EVERY:
        for name, head in each.heads.items():
            by_end[end_of(name)][head.objective].append(name)
    rows = defaultdict(list)
    for end, found in by_end.items():
        for objective, names in found.items():
            rows[objective] += [f"…{end}"] if len(found) == 1 else names
    lines = ["| classes | as `task.objective` |", "|---|---|"]
    for objective, names in sorted(rows.items()):
        more = ", with one label `regress_text`" if objective == "classify_text" else ""
        lines.append(f"| {code(names)} | `{objective}`{more} |")
    return lines


def refusals():
    """A row for each architecture that is refused for a reason of its own."""
    rows = [f"| `{kind}` | {why} |" for kind, why in sorted(REFUSED.items())]
    return ["| refused `model_type` | because |", "|---|---|", *rows]


def test_the_page_has_this_table():
    text = DOCUMENT.read_text()
    assert text == with_table(text, table()), f"run python -m {__name__}"


def test_every_architecture_has_a_compared_class():
    examples = compared_classes()
    for each in EVERY:
        assert any(examples.get(name) for name in each.heads), each.model_type


def test_the_tests_with_real_weights_exist():
    for kind, (_, test) in REAL_WEIGHTS.items():
        assert (DOCS.parent / HERE / test).is_file() and kind in ARCHITECTURES


if __name__ == "__main__":
    DOCUMENT.write_text(with_table(DOCUMENT.read_text(), table()))
