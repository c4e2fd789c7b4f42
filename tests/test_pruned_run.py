"""A run that prunes heads: an interruption changes nothing, and its export has the same zeros."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file

import convert
import train
from configs import pydoc
from tests.runs import saved, tiny
from training.pruning import HEAD_SCORES

pytestmark = pytest.mark.usefixtures("compile_once")
GPT2 = SimpleNamespace(get_config=lambda: pydoc.get_config("gpt2_style"))
WIDTH, HEADS, LAYERS = 16, 8, 2
ATTENTION = "backbone/decoder/blocks/self_attention"


def test_an_interruption_changes_nothing_and_zeros_are_exported(tmp_path):
    config = tiny(
        GPT2, steps=4, model=dict(max_length=32, decoder_layers=LAYERS, heads=HEADS),
        data=dict(length=32),
        prune=dict(method="heads", share=0.75, begin_step=1, end_step=3, every=1),
    )  # fmt: skip
    uninterrupted, resumed = tmp_path / "uninterrupted", tmp_path / "resumed"
    train.train_and_evaluate(config, str(uninterrupted))
    # Interrupted after the second of three prunings.
    shutil.copytree(uninterrupted, resumed)
    shutil.rmtree(resumed / "checkpoints" / "4")
    train.train_and_evaluate(config, str(resumed))
    found, expected = saved(resumed, 4), saved(uninterrupted, 4)
    assert found.keys() == expected.keys()
    assert any("prune" in name for name in found)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)

    lines = map(json.loads, (resumed / "metrics.jsonl").read_text().splitlines())
    logged = {line["step"]: line for line in lines if "prune/heads" in line}
    assert [logged[step]["prune/heads"] for step in (1, 2, 3, 4)] == [0, 10, 12, 12]

    record = json.loads((resumed / HEAD_SCORES).read_text())
    scores, is_pruned = (np.array(record["modules"][ATTENTION][k]) for k in ("scores", "pruned"))
    assert record["step"] == 4
    assert scores.shape == is_pruned.shape == (LAYERS, HEADS)
    assert is_pruned.sum(axis=1).tolist() == [6, 6]
    assert (scores > 0).all()  # the score of a pruned head is that of its last step

    convert.convert(str(resumed), str(tmp_path / "out"))
    exported = load_file(tmp_path / "out" / "model.safetensors")
    for layer in range(LAYERS):
        joint = exported[f"transformer.h.{layer}.attn.c_attn.weight"]
        out = exported[f"transformer.h.{layer}.attn.c_proj.weight"]
        is_zero = [not head.any() for head in out.reshape(HEADS, -1)]
        assert is_zero == is_pruned[layer].tolist()
        for part in np.split(joint, 3, axis=1):
            heads = part.reshape(WIDTH, HEADS, -1)
            assert [not heads[:, head].any() for head in range(HEADS)] == is_zero
