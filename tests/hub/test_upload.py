"""convert.py --to=hf://ORG/NAME: what is uploaded, the model card, and refusals."""

import json

import pytest

import convert
from checkpointing import loaded_run
from experiment.schema import ConfigError
from pretrained.hub_model import fetch_model
from storage import hub as storage_hub
from storage.hub_upload import require_new, upload
from tests.experiment.test_bad_input import assert_short_and_clear
from tests.hub import server
from tests.hub.conftest import make_model

TARGET = "hf://me/mine"
# huggingface_hub 2.4 gives the content of a file in LFS to its client in an older way.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture
def logged_in(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", server.TOKEN)


@pytest.fixture
def run(hub, tmp_path):
    """An imported model with scores, as if it had been trained to step 0."""
    hub.add("org/bert", make_model(tmp_path / "theirs"))
    workdir = tmp_path / "run"
    convert.convert("hf://org/bert", str(workdir))
    rows = [{"step": 0, "eval/validation/loss": 0.25}, {"step": 7, "eval/validation/loss": 0.125}]
    (workdir / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    scored = dict(step=0, averaged_steps=[0], overrides={})
    rows = [
        {**scored, "split": "test", "eval/test/accuracy": 0.75},
        {**scored, "overrides": {"data.length": 3}, "eval/other/accuracy": 0.1},
        {**scored, "averaged_steps": [0, 7], "eval/averaged/accuracy": 0.2},
        {**scored, "step": 7, "eval/later/accuracy": 0.3},
    ]
    (workdir / "evaluations.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return workdir


def refusal(function, *args):
    with pytest.raises(ConfigError) as refused:
        function(*args)
    assert_short_and_clear(str(refused.value), f"--to={TARGET}")
    return str(refused.value)


def test_an_upload_is_the_local_export_with_a_card(hub, logged_in, run, tmp_path):
    convert.convert(str(run), str(tmp_path / "local"))
    convert.convert(str(run), TARGET)
    repo = hub.repos["me/mine"]
    assert repo.private and len(repo.commits) == 2  # the empty one, and all files at once
    files = dict(repo.commits[repo.refs["main"]])
    card = files.pop("README.md").decode()
    assert files == server.read(tmp_path / "local")

    commit = hub.repos["org/bert"].refs["main"]
    parameters = sum(x.size for x in _arrays(loaded_run.load(run).params))
    assert card.startswith("---\nlibrary_name: transformers\nbase_model: org/bert\n---\n\n# mine\n")
    assert f"`BertForMaskedLM`, {parameters:,} parameters." in card
    assert f"Imported from `hf://org/bert@{commit}` and exported again, without training." in card
    assert "| `model.width` | 18 |" in card and "| `task.objective` | masked_lm |" in card
    assert "| `eval/validation/loss` | 0.25 |" in card
    assert "| `eval/test/accuracy` | 0.75 |" in card
    assert not any(other in card for other in ("0.125", "other", "averaged", "later"))
    assert 'model = BertForMaskedLM.from_pretrained("me/mine")' in card
    assert 'tokenizer = AutoTokenizer.from_pretrained("me/mine")' in card
    assert "python convert.py --from=hf://me/mine --to=WORKDIR" in card
    assert str(tmp_path) not in card  # nothing of this machine

    again = fetch_model("--from", TARGET)  # with the token, because it is private
    assert all((again / name).read_bytes() == files[name] for name in ("config.json",))


def _arrays(tree):
    for value in tree.values():
        yield from _arrays(value) if isinstance(value, dict) else (value,)


def test_what_refuses_an_upload_before_anything_is_sent(hub, run, monkeypatch, tmp_path):
    export = (convert.convert, str(run), TARGET)
    assert "needs a token with the right to write" in refusal(*export)
    monkeypatch.setenv("HF_TOKEN", server.TOKEN)
    hub.add("me/mine").commit({"config.json": b"{}"})
    assert "already has files (config.json)" in refusal(*export)
    hub.log.clear()
    line = refusal(convert.convert, str(run), f"{TARGET}@v1")
    assert f"uploads go to the top of main; write --to={TARGET}" in line
    line = refusal(convert.convert, str(tmp_path / "theirs"), TARGET)
    assert "takes the export of a run; an import makes a run" in line
    assert hub.log == []


def test_a_token_that_may_only_read(hub, monkeypatch, tmp_path):
    hub.tokens["hf_reader"] = "read"
    monkeypatch.setenv("HF_TOKEN", "hf_reader")
    (tmp_path / "config.json").write_text("{}")
    place = require_new("--to", TARGET)
    line = refusal(upload, "--to", place, tmp_path, "x")
    assert "is refused (HTTP 403): your token may not write to it" in line
    assert "me/mine" not in hub.repos


def test_an_upload_that_breaks_leaves_no_part_of_a_model(hub, logged_in, tmp_path):
    directory = make_model(tmp_path / "theirs")
    place = require_new("--to", TARGET)
    for part in ("/batch", "/commit/"):
        hub.refuses = part
        assert "the hub answers with HTTP 500" in refusal(upload, "--to", place, directory, "x")
        repo = hub.repos["me/mine"]
        assert repo.commits[repo.refs["main"]] == {}
    hub.refuses = ""
    sent = len(hub.lfs)
    hub.log.clear()
    storage_hub._listing.cache_clear()
    upload("--to", require_new("--to", TARGET), directory, "x")
    assert repo.commits[repo.refs["main"]] == server.read(directory)
    assert len(hub.lfs) == sent and not any(line.startswith("PUT") for line in hub.log)
