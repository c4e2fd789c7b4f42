"""Compares our training step with that of transformers on the same shapes, in one run.

    pip install -e '.[bench]' && python benchmarks/train_step.py

Both train the same number of parameters in float32 with AdamW and no dropout. Rounds alternate, so
that load on the machine affects both; the best round of each counts. The share of peak is relative
to this machine's matmul speed, measured in the same run.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers
from absl import app, flags

from configs import architectures, default
from experiment import sections
from training.flops import train_flops
from training.mesh import make_mesh, put_batch
from training.model_for_task import make_model
from training.schedules import learning_rate
from training.step import make_train_step
from training.train_state import TrainSpec, abstract_state

ROUNDS = flags.DEFINE_integer("rounds", 5, "Alternations; the best of each library counts.")
STEPS = flags.DEFINE_integer("steps", 4, "Training steps in a round.")
ONLY = flags.DEFINE_enum("only", None, ["gpt2", "bert", "encoder_decoder"], "Only this model.")
ACCUMULATE = flags.DEFINE_integer("accumulate", 1, "Micro-batches in our step.")
THREADS = flags.DEFINE_integer("threads", 0, "torch threads; 0: torch's default.")

VOCAB, WIDTH, HEADS, FEED_FORWARD, LAYERS = 8192, 384, 6, 1536, 6
BATCH, LENGTH = 16, 256
LEARNING_RATE = 1e-4

Step = Callable[[], None]  # runs one training step and waits for it


def our_step(style: dict, objective: str, batch: dict[str, np.ndarray]) -> tuple[Step, float, int]:
    """Returns our step, its FLOPs, and the number of parameters."""
    config = default.get_config()
    config.model.update(style)
    config.model.update(
        dict(vocab_size=VOCAB, width=WIDTH, heads=HEADS, feed_forward=FEED_FORWARD)
        | dict(encoder_layers=LAYERS, decoder_layers=LAYERS, max_length=LENGTH)
    )
    config.data.update(dict(batch_size=BATCH, length=LENGTH, encoder_length=LENGTH))
    config.task.objective = objective
    config.optimizer.update(dict(learning_rate=LEARNING_RATE, schedule="constant", clip_norm=0.0))
    config.optimizer.accumulate = ACCUMULATE.value
    experiment = sections.from_mapping(config.to_dict())
    model_config = experiment.model.resolve()
    model = make_model(model_config, experiment.task)
    schedule = learning_rate(experiment.optimizer, experiment.run.steps, WIDTH)
    mesh = make_mesh(experiment.mesh)
    jax.set_mesh(mesh)
    spec = TrainSpec(model, experiment.task, experiment.optimizer, schedule)
    abstract, init = abstract_state(spec, batch, mesh)
    train_step = make_train_step(spec, abstract)
    on_device = put_batch(batch, mesh)
    state = init(jax.random.key(0))

    def step():
        nonlocal state
        state, metrics = train_step(state, on_device)
        jax.block_until_ready(metrics)

    flops = BATCH * train_flops(model_config, objective, LENGTH, LENGTH)
    return step, flops, sum(leaf.size for leaf in jax.tree.leaves(abstract.params))


def their_step(model: torch.nn.Module, inputs: dict[str, np.ndarray]) -> tuple[Step, int]:
    """Returns the step of transformers, and the number of parameters."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    inputs = {name: torch.from_numpy(array.astype(np.int64)) for name, array in inputs.items()}

    def step():
        optimizer.zero_grad(set_to_none=True)
        model(**inputs).loss.backward()
        optimizer.step()

    return step, sum(parameter.numel() for parameter in model.parameters())


def gpt2(tokens: np.ndarray):
    """A batch of GPT-2, its objective and style, and transformers' model with its arguments."""
    batch = {"inputs": tokens, "targets": tokens, "weights": np.ones(tokens.shape, np.float32)}
    config = transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=LENGTH, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
    )  # fmt: skip
    theirs = transformers.GPT2LMHeadModel(config)
    return batch, "causal_lm", architectures.gpt2_style(), theirs, dict(labels=tokens)


def bert(tokens: np.ndarray):
    """The same for BERT."""
    ones = np.ones(tokens.shape, np.int32)
    batch = {"inputs": tokens, "targets": tokens, "weights": ones.astype(np.float32)}
    batch |= {"segment_ids": ones}
    config = transformers.BertConfig(
        vocab_size=VOCAB, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        intermediate_size=FEED_FORWARD, max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    theirs = transformers.BertForMaskedLM(config)
    style = architectures.bert_style()
    return batch, "masked_lm", style, theirs, dict(labels=tokens, attention_mask=ones)


def encoder_decoder(tokens: np.ndarray):
    """The same for Marian."""
    ones = np.ones(tokens.shape, np.int32)
    batch = {"inputs": tokens, "targets": tokens, "weights": ones.astype(np.float32)}
    batch |= {"encoder_inputs": tokens, "encoder_segment_ids": ones, "segment_ids": ones}
    config = transformers.MarianConfig(
        vocab_size=VOCAB, d_model=WIDTH, encoder_layers=LAYERS, decoder_layers=LAYERS,
        encoder_attention_heads=HEADS, decoder_attention_heads=HEADS,
        encoder_ffn_dim=FEED_FORWARD, decoder_ffn_dim=FEED_FORWARD,
        max_position_embeddings=LENGTH, activation_function="relu", scale_embedding=True,
        dropout=0.0, attention_dropout=0.0, use_cache=False, pad_token_id=0,
        decoder_start_token_id=0, eos_token_id=1, forced_eos_token_id=1,
    )  # fmt: skip
    theirs = transformers.MarianMTModel(config)
    style = architectures.transformer_style()
    return batch, "seq2seq", style, theirs, dict(labels=tokens, attention_mask=ones)


def seconds(step: Step, count: int) -> float:
    """The mean seconds of a step over `count` steps."""
    begin = time.perf_counter()
    for _ in range(count):
        step()
    return (time.perf_counter() - begin) / count


def matmul_peak() -> float:
    """Returns the FLOP/s of a large float32 matmul, the better of XLA's and torch's."""
    size = 2048
    a = np.random.default_rng(0).standard_normal((size, size), dtype=np.float32)
    a_jax, a_torch = jnp.asarray(a), torch.from_numpy(a)
    multiply = jax.jit(lambda x: x @ x)
    matmuls = (lambda: multiply(a_jax).block_until_ready(), lambda: a_torch @ a_torch)
    return max(2 * size**3 / min(seconds(matmul, 1) for _ in range(8)) for matmul in matmuls)


def main(_):
    transformers.logging.set_verbosity_error()
    if THREADS.value:
        torch.set_num_threads(THREADS.value)
    peak = matmul_peak()
    print(f"matmul peak {peak / 1e9:.0f} GFLOP/s; jax {jax.__version__}, ", end="")
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    print(f"{'shape':16} {'parameters':>23} {'ours':>22} {'transformers':>22} {'ratio':>6}")
    tokens = np.random.default_rng(0).integers(4, VOCAB, (BATCH, LENGTH), dtype=np.int32)
    for shape in (gpt2, bert, encoder_decoder):
        if ONLY.value not in (None, shape.__name__):
            continue
        batch, objective, style, model, inputs = shape(tokens)
        ours, flops, our_count = our_step(style, objective, batch)
        theirs, their_count = their_step(model, {"input_ids": tokens, **inputs})
        ours(), theirs()  # compile, allocate
        rounds = [(seconds(ours, STEPS.value), seconds(theirs, STEPS.value))
                  for _ in range(ROUNDS.value)]  # fmt: skip
        best = [min(times) for times in zip(*rounds, strict=True)]
        speeds = [f"{tokens.size / t:>7,.0f} tok/s {flops / t / peak:>5.1%} peak" for t in best]
        counts = f"{our_count:,} / {their_count:,}"
        print(f"{shape.__name__:16} {counts:>23} {speeds[0]} {speeds[1]} {best[1] / best[0]:>6.2f}")


if __name__ == "__main__":
    app.run(main)
