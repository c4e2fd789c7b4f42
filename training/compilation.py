"""How a job's programs are compiled."""

from model.decoding_params import Order
from model.sharding import platform


def compiler_options() -> dict[str, bool | str] | None:
    """What XLA's CPU backend needs to be told; other backends are left to their own choices.

    Both settings were measured on the shapes of benchmarks/train_step.py. XLA's scheduler for
    concurrency starts several matrix products at once, each of which already uses every core.
    Its library of fused kernels (YNN) is quick at reductions, but slower than Eigen at matrix
    products, above all at the batched ones of attention: so YNN gets the reductions alone.
    """
    if platform() != "cpu":
        return None
    return {
        "xla_cpu_enable_concurrency_optimized_scheduler": False,
        "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_REDUCE",
    }


def decoding_order(rows: int) -> Order:
    """How the matrices should lie to decode so many rows at a time.

    On a CPU, Eigen is the faster for few rows and wants inputs first; it is many times slower with
    outputs first. For more rows YNN is, and gains a little from outputs first. The bound was
    measured on the shapes of benchmarks/decode.py.
    """
    if platform() != "cpu":
        return "as_trained"
    return "inputs_first" if rows < 8 else "outputs_first"


def decoding_options(rows: int) -> dict[str, bool | str] | None:
    options = compiler_options()
    if decoding_order(rows) == "outputs_first":
        del options["xla_cpu_experimental_ynn_fusion_type"]  # by default it does all products
    return options
