"""How a job's programs are compiled."""

import jax


def compiler_options() -> dict[str, bool | str] | None:
    """What XLA's CPU backend needs to be told; other backends are left to their own choices.

    Both settings were measured on the shapes of benchmarks/train_step.py. Its scheduler for
    concurrency starts several matrix products at once, each of which already uses every core.
    And its library of fused kernels (YNN) is quick at reductions, but its matrix products,
    above all the batched ones of attention, are slower than Eigen's, which this falls back to.
    """
    if jax.default_backend() != "cpu":
        return None
    return {
        "xla_cpu_enable_concurrency_optimized_scheduler": False,
        "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_REDUCE",
    }
