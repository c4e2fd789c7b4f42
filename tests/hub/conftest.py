"""A hub on this machine, which huggingface_hub takes for the real one, and a cache of its own."""

import json
import shutil

import pytest
from huggingface_hub import constants
from safetensors.numpy import load_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from pretrained import model_files
from storage import hub as storage_hub
from tests.hub import server
from tests.pretrained.make_fixtures import FIXTURES

# The library reads the environment when it is imported, and its modules look these up when called.
TEMPLATE = "{}/{{repo_id}}/resolve/{{revision}}/{{filename}}"


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """The server's state; this process and those that it starts use the server and no other."""
    with server.serve() as state:
        home = tmp_path / "huggingface"
        names = {
            "ENDPOINT": state.endpoint,
            "HUGGINGFACE_CO_URL_TEMPLATE": TEMPLATE.format(state.endpoint),
            "HF_HUB_CACHE": str(home / "hub"),
            "HF_ASSETS_CACHE": str(home / "assets"),
            "HF_HUB_DISABLE_XET": True,
            "HF_TOKEN_PATH": str(home / "token"),
        }
        for name, value in names.items():
            monkeypatch.setattr(constants, name, value)
        environment = {
            "HF_ENDPOINT": state.endpoint,
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE", "HF_ASSETS_CACHE"):
            monkeypatch.delenv(name, raising=False)
        forget()
        yield state
        forget()


def forget():
    """As a new process, which has not asked the hub for anything yet."""
    storage_hub._listing.cache_clear()


@pytest.fixture
def offline(hub, monkeypatch):
    """As with HF_HUB_OFFLINE=1 from now on, when called."""

    def switch():
        forget()
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        hub.status = 500  # were it asked all the same

    return switch


WORDS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]", *"abcdefgh"]


def make_model(directory, shards: int = 1):
    """A small published BERT with a tokenizer, and files that convert.py does not read."""
    shutil.copytree(FIXTURES / "bert_masked_lm", directory, dirs_exist_ok=True)
    shutil.rmtree(directory / "gradients")
    (directory / "expected.safetensors").unlink()
    tokenizer = Tokenizer(models.WordLevel({w: n for n, w in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    named = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "cls", "sep", "unk", "mask")}
    (directory / "tokenizer_config.json").write_text(json.dumps(named))
    (directory / "chat_template.jinja").write_text("{{ messages }}")
    for name in ("pytorch_model.bin", "README.md", "onnx/model.onnx", "other.safetensors"):
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_bytes(b"not needed")
    if shards > 1:
        tensors = load_file(directory / "model.safetensors")
        (directory / "model.safetensors").unlink()
        shapes = {name: array.shape for name, array in tensors.items()}
        size = sum(array.nbytes for array in tensors.values()) // shards + 1000
        model_files.write_tensors(directory, shapes, "float32", iter(tensors.items()), size)
    return directory


NEEDED = ["chat_template.jinja", "config.json", "tokenizer.json", "tokenizer_config.json"]
