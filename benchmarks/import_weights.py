"""Peak memory of reading published weights: python benchmarks/import_weights.py

Writes a random file of Llama's shape (500 MB), reads it on one device and on eight simulated ones,
each in a separate process, and prints the peak memory minus the memory before. The devices are the
host's, so the figure includes the model itself; the rest is the overhead.

Samples anonymous memory (RssAnon) every few milliseconds. Mapped pages of the file do not count:
they belong to the system's page cache, which can drop them.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

MEGABYTE = 10**6
CONFIG = dict(
    model_type="llama", architectures=["LlamaForCausalLM"], vocab_size=32_000, hidden_size=1024,
    num_hidden_layers=6, num_attention_heads=16, num_key_value_heads=4, intermediate_size=4096,
    max_position_embeddings=2048, rms_norm_eps=1e-5, tie_word_embeddings=True,
)  # fmt: skip
ALLOWED = 1.3  # overhead, in sizes of the largest tensor


def write_model(directory: Path) -> None:
    """Writes a published model with random weights."""
    from pretrained import model_files

    width, inner, groups = CONFIG["hidden_size"], CONFIG["intermediate_size"], 4 * 64
    layer = {
        "input_layernorm": (width,), "post_attention_layernorm": (width,),
        "self_attn.q_proj": (width, width), "self_attn.k_proj": (groups, width),
        "self_attn.v_proj": (groups, width), "self_attn.o_proj": (width, width),
        "mlp.gate_proj": (inner, width), "mlp.up_proj": (inner, width),
        "mlp.down_proj": (width, inner),
    }  # fmt: skip
    shapes = {"model.embed_tokens.weight": (CONFIG["vocab_size"], width)}
    for number in range(CONFIG["num_hidden_layers"]):
        shapes |= {f"model.layers.{number}.{name}.weight": s for name, s in layer.items()}
    shapes["model.norm.weight"] = (width,)
    rng = np.random.default_rng(0)
    tensors = ((name, rng.random(shape, np.float32)) for name, shape in shapes.items())
    model_files.write_json(directory / model_files.CONFIG, CONFIG)
    model_files.write_tensors(directory, shapes, "float32", tensors)


class Peak:
    """Measures the peak of anonymous memory inside the context, minus that before, in bytes."""

    def __enter__(self):
        self._start = self.most = _anonymous_memory()
        self._open = True
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self):
        while self._open:
            self.most = max(self.most, _anonymous_memory())
            time.sleep(0.003)

    def __exit__(self, *exception):
        self._open = False
        self._thread.join()
        self.added = self.most - self._start


def _anonymous_memory() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no RssAnon; this benchmark needs Linux")


def measure(directory: Path) -> dict[str, float]:
    """Imports the model; returns megabytes by name: its size, its largest array, added memory."""
    import jax

    import convert
    from configs import default
    from experiment import sections
    from pretrained import published

    jax.block_until_ready(jax.numpy.zeros(8) + 1)  # initialises jax before the measurement
    config = default.get_config().to_dict()
    with Peak() as peak:
        found = published.read(directory)
        config["model"] |= found.model
        config["task"] |= found.task
        config["data"] |= dict(length=64)
        experiment = sections.from_mapping(config)
        params = convert.load_params(found, experiment.model.resolve(), experiment.task)
    with Peak() as saving, tempfile.TemporaryDirectory() as workdir:
        convert.save_params(params, workdir, experiment.checkpoint)
    leaves = jax.tree.leaves(params)
    return {
        "devices": jax.device_count(),
        "model": sum(leaf.nbytes for leaf in leaves) / MEGABYTE,
        "largest": max(leaf.nbytes for leaf in leaves) / MEGABYTE,
        "peak": peak.added / MEGABYTE,
        "saving": saving.added / MEGABYTE,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # used by the child process
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(Path(arguments.measure))))
        return
    with tempfile.TemporaryDirectory() as directory:
        write_model(Path(directory))
        for devices in (1, 8):
            flags = f"--xla_force_host_platform_device_count={devices}"
            done = subprocess.run(
                [sys.executable, __file__, f"--measure={directory}"],
                env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            )
            found = json.loads(done.stdout.splitlines()[-1])
            bound = found["model"] + ALLOWED * found["largest"]
            print(
                f"{found['devices']} devices: model {found['model']:.0f} MB, largest tensor "
                f"{found['largest']:.0f} MB; peak {found['peak']:.0f} MB, allowed {bound:.0f} MB; "
                f"saving the checkpoint adds {found['saving']:.0f} MB"
            )


if __name__ == "__main__":
    main()
