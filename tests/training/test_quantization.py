"""A few steps in 8 bits, beside the same steps in float32."""

import dataclasses

import numpy as np
import pytest

from tests.tiny import QUICKLY
from tests.training.examples import make_batch, make_job

ADAPTERS = dict(lora_rank=4, lora_targets=".*/kernel")


def losses(matmul, finetune):
    batch = make_batch("causal_lm")
    job = make_job(
        "causal_lm", batch, model=dict(matmul=matmul), finetune=finetune,
        optimizer=dict(name="adamw", learning_rate=1e-2),
    )  # fmt: skip
    given = job.start(), batch, job.frozen_inputs()
    job = dataclasses.replace(job, step=job.step.lower(*given).compile(QUICKLY))
    return np.asarray(job.run(*given[:2], steps=12, frozen_inputs=given[2])[1])


@pytest.mark.parametrize(
    ("finetune", "tolerances"), [({}, dict(int8=0.05, fp8=0.2)), (ADAPTERS, dict(int8=0.05))]
)
def test_quantized_training_stays_close_to_float_training(finetune, tolerances):
    plain = losses("float", finetune)
    assert plain[-1] < 0.8 * plain[0]
    for matmul, bound in tolerances.items():
        apart = np.abs(losses(matmul, finetune) / plain - 1)
        assert 1e-6 < apart.max() < bound, matmul
