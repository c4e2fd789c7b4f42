"""How a job's programs are compiled."""

import jax


def compiler_options() -> dict[str, bool | str] | None:
    """What XLA's CPU backend needs to be told; other backends are left to their own choices.

    Both settings were measured on the shapes of benchmarks/train_step.py. XLA's scheduler for
    concurrency starts several matrix products at once, each of which already uses every core.
    Its library of fused kernels (YNN) is quick at reductions, but slower than Eigen at matrix
    products, above all at the batched ones of attention: so YNN gets the reductions alone.
    """
    if jax.default_backend() != "cpu":
        return None
    return {
        "xla_cpu_enable_concurrency_optimized_scheduler": False,
        "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_REDUCE",
    }


def kernels_turned(rows: int) -> bool:
    """Whether decoding so many rows at a time is faster with the outputs of kernels first.

    It is for YNN, which gains more from this than it loses to Eigen as it is; a product with very
    few rows is bound by reading the kernel, which Eigen does in any order. The bound was measured
    on the shapes of benchmarks/decode.py.
    """
    return jax.default_backend() == "cpu" and rows >= 8


def decoding_options(rows: int) -> dict[str, bool | str] | None:
    options = compiler_options()
    if kernels_turned(rows):
        del options["xla_cpu_experimental_ynn_fusion_type"]  # by default it does all products
    return options
