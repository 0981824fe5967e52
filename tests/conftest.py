"""Every test runs in 64-bit mode with strict promotion: a silent change of precision is an error."""

import jax

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
