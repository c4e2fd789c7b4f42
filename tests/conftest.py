"""Strict for the whole suite: no silent dtype promotion."""

import jax

jax.config.update("jax_numpy_dtype_promotion", "strict")
