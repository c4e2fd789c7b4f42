"""Files of the hub: which are downloaded, how they are checked, and what is said of faults."""

import hashlib
from pathlib import Path

import pytest
from huggingface_hub import constants

from experiment.schema import ConfigError
from input_pipeline.tokenizers.hub_tokenizer import fetch_tokenizer
from pretrained.hub_model import fetch_model
from storage import hub as storage_hub
from tests.experiment.test_bad_input import assert_short_and_clear
from tests.hub import server
from tests.hub.conftest import NEEDED, forget, make_model

MODEL = "hf://org/bert"


@pytest.fixture
def repo(hub, tmp_path):
    return hub.add("org/bert", make_model(tmp_path / "theirs"))


def refusal(address=MODEL, fetch=fetch_model):
    with pytest.raises(ConfigError) as refused:
        fetch("--from", address)
    assert_short_and_clear(str(refused.value), "--from=hf://")
    return str(refused.value)


def same(directory: Path, files: dict[str, bytes]) -> bool:
    return all((directory / name).read_bytes() == data for name, data in files.items())


def test_only_the_files_that_are_read_are_fetched(hub, repo):
    directory = fetch_model("--from", MODEL)
    assert hub.downloads() == sorted([*NEEDED, "model.safetensors"])
    files = repo.commits[repo.refs["main"]]
    assert same(directory, {name: files[name] for name in [*NEEDED, "model.safetensors"]})


def test_a_tokenizer_comes_without_the_model(hub, repo):
    file = fetch_tokenizer("data.tokenizer", MODEL)
    assert file.name == "tokenizer.json"
    assert hub.downloads() == [name for name in NEEDED if name != "config.json"]


def test_the_second_time_needs_no_download_and_no_network(hub, repo, offline):
    first = fetch_model("--from", MODEL)
    forget()
    hub.log.clear()
    assert fetch_model("--from", MODEL) == first
    assert hub.log == ["GET /api/models/org/bert/revision/main"]  # whether the branch has moved
    forget()
    hub.log.clear()
    fetch_model("--from", f"{MODEL}@{repo.refs['main']}")  # a commit never changes
    assert hub.log == []
    forget()
    hub.status = 503
    assert fetch_model("--from", MODEL) == first  # the hub is down
    hub.log.clear()
    offline()
    assert fetch_model("--from", MODEL) == first
    assert hub.log == []


def test_offline_without_a_cache_is_refused(hub, repo, offline):
    offline()
    line = refusal()
    assert "is not in the cache, and HF_HUB_OFFLINE is set" in line
    assert hub.log == []


def test_offline_with_a_part_of_the_files_is_refused(hub, repo, offline):
    hub.gone.add("tokenizer_config.json")
    refusal()
    hub.gone.clear()
    offline()
    assert "tokenizer_config.json is not in the cache, and HF_HUB_OFFLINE is set" in refusal()


def test_revisions_and_subdirectories(hub, repo, tmp_path):
    old = repo.refs["main"]
    other = {f"sub/{name}": data for name, data in repo.commits[old].items()}
    other["sub/config.json"] = other["sub/config.json"] + b"\n"
    repo.commit(other, "refs/pr/1")
    at = fetch_model("--from", "hf://org/bert@refs%2Fpr%2F1/sub/")
    assert same(at, {"config.json": other["sub/config.json"]})
    assert at.name == "sub"
    assert storage_hub.pinned("--from", MODEL).revision == old
    line = refusal("hf://org/bert@refs%2Fpr%2F1")
    assert "did you mean --from=hf://org/bert@refs%2Fpr%2F1/sub?" in line
    assert "has no directory none; it has onnx" in refusal("hf://org/bert/none")


def test_a_moved_branch_is_followed(hub, repo):
    fetch_model("--from", MODEL)
    files = dict(repo.commits[repo.refs["main"]])
    files["config.json"] += b" "
    repo.commit(files)
    forget()
    hub.log.clear()
    assert same(fetch_model("--from", MODEL), {"config.json": files["config.json"]})
    pairs = {line.rpartition("/")[2] for line in hub.log if line.startswith("GET /cdn/")}
    assert pairs == set()  # the weights are the same blob


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_broken_file_of_the_right_size_is_refused_and_removed(hub, repo, name):
    true = repo.commits[repo.refs["main"]][name]
    hub.broken[name] = true[:-1] + bytes([true[-1] ^ 1])
    line = refusal()
    kind = "sha256" if name == "model.safetensors" else "git sha1"
    assert f"{name} is broken: its {kind} is " in line and "run this again" in line
    hub.broken.clear()
    assert same(fetch_model("--from", MODEL), {name: true})


def test_a_file_that_breaks_in_the_cache_is_downloaded_again(hub, repo, offline):
    directory = fetch_model("--from", MODEL)
    weights = (directory / "model.safetensors").resolve()
    true = weights.read_bytes()
    weights.write_bytes(true[:-1] + bytes([true[-1] ^ 1]))
    assert same(fetch_model("--from", MODEL), {"model.safetensors": true})
    weights.write_bytes(b"short")
    offline()
    assert "is broken: it has 5 bytes, and the hub says" in refusal()


def test_a_broken_connection_is_resumed_where_it_broke(hub, repo, monkeypatch):
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 500)  # of which the last may be lost
    hub.breaks_off["model.safetensors"] = 1000
    directory = fetch_model("--from", MODEL)
    assert "RANGE model.safetensors 1000" in hub.log
    true = repo.commits[repo.refs["main"]]["model.safetensors"]
    assert same(directory, {"model.safetensors": true})


def test_shards_that_arrived_are_not_downloaded_again(hub, tmp_path):
    files = server.read(make_model(tmp_path / "theirs", shards=3))
    hub.add("org/bert").commit(files)
    shards = sorted(name for name in files if name.startswith("model-"))
    assert len(shards) >= 3
    hub.gone.add(shards[1])
    assert f"{shards[1]} is listed, but the hub does not have it" in refusal()
    assert shards[2] not in hub.downloads()
    hub.gone.clear()
    hub.log.clear()
    assert same(fetch_model("--from", MODEL), {name: files[name] for name in shards})
    assert hub.downloads() == shards[1:]


def test_a_shard_that_is_not_in_the_repository(hub, tmp_path):
    files = server.read(make_model(tmp_path / "theirs", shards=2))
    shards = sorted(name for name in files if name.startswith("model-"))
    hub.add("org/bert").commit({n: d for n, d in files.items() if n != shards[1]})
    line = refusal()
    assert f"names {shards[1]}, which the repository does not have" in line
    assert not any(name.startswith("model-") for name in hub.downloads())


def test_models_without_usable_files(hub):
    hub.add("org/pickle").commit({"config.json": b"{}", "pytorch_model.bin": b"x"})
    with pytest.raises(ConfigError, match=r"pytorch_model.bin: a pickle, which is never opened"):
        fetch_model("--from", "hf://org/pickle")
    hub.add("org/lora").commit({"adapter_config.json": b"{}", "adapter_model.safetensors": b""})
    assert "it is an adapter (LoRA)" in refusal("hf://org/lora")
    hub.add("org/text").commit({"README.md": b"x"})
    assert "has no config.json; it has README.md" in refusal("hf://org/text")
    line = refusal("hf://org/text", fetch_tokenizer)
    assert "has none of tokenizer.json" in line and "it has README.md" in line
    assert hub.downloads() == []


def test_missing_private_and_gated_models(hub, repo, monkeypatch, tmp_path):
    said = "is not on http://127.0.0.1"
    assert said in refusal("hf://org/none")
    repo.private = True
    line = refusal()
    assert said in line and "if it is private, log in with `hf auth login`, or set HF_TOKEN" in line
    monkeypatch.setenv("HF_TOKEN", server.TOKEN)
    fetch_model("--from", MODEL)
    hub.add("org/gated", make_model(tmp_path / "gated"), gated=True)
    line = refusal("hf://org/gated")
    assert f"is gated: accept its terms at {constants.ENDPOINT}/org/gated" in line


@pytest.mark.parametrize("status", [401, 403])
def test_a_token_without_permission(hub, repo, status):
    hub.status = status
    line = refusal()
    assert ("log in" in line) and (str(status) in line or "is private" in line)


def test_the_hub_is_down_or_not_there(hub, repo, monkeypatch):
    hub.status = 500
    assert "the hub answers with HTTP 500" in refusal()
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "cannot be downloaded from http://127.0.0.1:9" in refusal()


def test_unknown_revisions(hub, repo):
    line = refusal(f"{MODEL}@v2")
    assert "has no revision v2; give a branch, a tag or a commit of org/bert" in line


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("hf://bert-base-uncased", "did you mean hf://google-bert/bert-base-uncased?"),
        ("hf://gpt2/", "did you mean hf://openai-community/gpt2?"),
        ("hf://my-model", "did you mean hf://OWNER/my-model?"),
        ("hf://", "write hf://ORG/NAME"),
        ("hf://org/", "write hf://ORG/NAME"),
        ("hf://datasets/org/name", "is not a model"),
        ("hf://org/na me", "is no valid name"),
        ("hf://org/name/../..", "is no valid name"),
    ],
)
def test_addresses_that_are_none(hub, address, says):
    assert says in refusal(address)
    assert hub.log == []


def test_addresses_are_written_as_they_are_read():
    for text in ("hf://a/b", "hf://a/b@v1.0", "hf://a/b@refs%2Fpr%2F1/c/d", "hf://a-1/b_2.c/d"):
        assert str(storage_hub.parse("x", text)) == text


def test_the_hash_of_small_files_is_that_of_git(tmp_path):
    # From `git hash-object`, of an empty file and of `hello` with a newline.
    known = {
        b"": "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391",
        b"hello\n": "ce013625030ba8dba906f756967f9e9ca394464a",
    }
    for data, name in known.items():
        path = tmp_path / "file"
        path.write_bytes(data)
        assert storage_hub._fault(path, storage_hub.HubFile(len(data), "", name)) == ""
        assert server.git_sha1(data) == name
        wrong = hashlib.sha1(data).hexdigest()
        assert "git sha1" in storage_hub._fault(path, storage_hub.HubFile(len(data), "", wrong))
