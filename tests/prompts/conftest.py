"""`mode_32` runs one test in JAX's default mode; all others run in 64-bit mode."""

import jax
import pytest


@pytest.fixture
def mode_32():
    jax.config.update("jax_enable_x64", False)
    yield
    jax.config.update("jax_enable_x64", True)
