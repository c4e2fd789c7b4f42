"""Runs that prune: an interruption changes nothing, and the export has the same zeros."""

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


def resumed_run(tmp_path, begin_step, **prune):
    """A run of four steps, checked to be the same with an interruption after the second."""
    config = tiny(
        GPT2, steps=4, model=dict(max_length=32, decoder_layers=LAYERS, heads=HEADS),
        data=dict(length=32),
        prune=dict(begin_step=begin_step, **prune),
    )  # fmt: skip
    uninterrupted, resumed = tmp_path / "uninterrupted", tmp_path / "resumed"
    train.train_and_evaluate(config, str(uninterrupted))
    shutil.copytree(uninterrupted, resumed)
    shutil.rmtree(resumed / "checkpoints" / "4")
    train.train_and_evaluate(config, str(resumed))
    found, expected = saved(resumed, 4), saved(uninterrupted, 4)
    assert found.keys() == expected.keys()
    assert any("prune" in name for name in found)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    return resumed


def exported(run, tmp_path):
    """The arrays of the exported model by their names in GPT-2."""
    convert.convert(str(run), str(tmp_path / "out"))
    return load_file(tmp_path / "out" / "model.safetensors")


def test_an_interruption_changes_nothing_and_zeros_of_heads_are_exported(tmp_path):
    # Three prunings, the second of them in the step before the interruption.
    resumed = resumed_run(tmp_path, 1, method="heads", share=0.75, end_step=3, every=1)
    lines = map(json.loads, (resumed / "metrics.jsonl").read_text().splitlines())
    logged = {line["step"]: line for line in lines if "prune/heads" in line}
    assert [logged[step]["prune/heads"] for step in (1, 2, 3, 4)] == [0, 10, 12, 12]

    record = json.loads((resumed / HEAD_SCORES).read_text())
    scores, is_pruned = (np.array(record["modules"][ATTENTION][k]) for k in ("scores", "pruned"))
    assert record["step"] == 4
    assert scores.shape == is_pruned.shape == (LAYERS, HEADS)
    assert is_pruned.sum(axis=1).tolist() == [6, 6]
    assert (scores > 0).all()  # the score of a pruned head is that of its last step

    arrays = exported(resumed, tmp_path)
    for layer in range(LAYERS):
        joint = arrays[f"transformer.h.{layer}.attn.c_attn.weight"]
        out = arrays[f"transformer.h.{layer}.attn.c_proj.weight"]
        is_zero = [not head.any() for head in out.reshape(HEADS, -1)]
        assert is_zero == is_pruned[layer].tolist()
        for part in np.split(joint, 3, axis=1):
            heads = part.reshape(WIDTH, HEADS, -1)
            assert [not heads[:, head].any() for head in range(HEADS)] == is_zero


def block_matrices(arrays):
    """The exported matrices of the blocks, (inputs, outputs), by name; Q, K and V apart."""
    for name, array in arrays.items():
        if array.ndim == 2 and ".h." in name:
            parts = np.split(array, 3, axis=1) if "c_attn" in name else [array]
            yield from ((f"{name} {number}", part) for number, part in enumerate(parts))


def test_zeros_of_magnitude_pruning_are_exported(tmp_path):
    share = 0.625  # of 256 and 512 weights, a whole number
    resumed = resumed_run(tmp_path, 1, method="magnitude", share=share, end_step=3, every=1)
    arrays = exported(resumed, tmp_path)
    zeros = {name: (matrix == 0).mean() for name, matrix in block_matrices(arrays)}
    assert len(zeros) == 6 * LAYERS  # Q, K, V, out, and two of the feed-forward
    assert zeros == dict.fromkeys(zeros, share)
    others = [array for name, array in arrays.items() if array.ndim == 2 and ".h." not in name]
    assert others
    assert all((array != 0).all() for array in others), "embeddings are not pruned"


def test_zeros_of_2_4_pruning_are_exported(tmp_path):
    """Two of each four consecutive inputs of an output are zero, as sparse matmuls need them."""
    resumed = resumed_run(tmp_path, 2, method="2:4")
    matrices = dict(block_matrices(exported(resumed, tmp_path)))
    assert len(matrices) == 6 * LAYERS
    for name, matrix in matrices.items():
        zeros = (matrix.reshape(-1, 4, matrix.shape[1]) == 0).sum(axis=1)
        assert (zeros == 2).all(), name
