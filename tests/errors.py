"""Classes of errors that tests expect."""

import jax

# What `equinox.error_if` becomes under `jax.jit`: the second if JAX ran the call asynchronously.
RAISED_UNDER_JIT = (jax.errors.JaxRuntimeError, ValueError)
