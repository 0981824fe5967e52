"""Print differences between eight devices and one as JSON.

Run by tests/test_devices.py in a new process with eight virtual CPU devices.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np

import largeprompt as lp
from largeprompt.icl import Attention


def main() -> dict[str, float]:
    """Compare every function that takes a mesh with itself on one device."""
    rng = np.random.default_rng(0)
    mesh = jax.make_mesh((4, 2), ("hosts", "cores"))
    head = lp.Head(U=rng.normal(size=(3, 3)), V=rng.normal(size=(2, 3)))
    z = rng.normal(size=(5, 3))
    found: dict[str, float] = {"devices": mesh.size}

    def gap(name: str, one: object, many: object) -> None:
        pairs = zip(jax.tree.leaves(one), jax.tree.leaves(many), strict=True)
        found[name] = max(float(np.max(np.abs(np.asarray(a) - np.asarray(b)))) for a, b in pairs)

    # 1,001 and 3 tokens do not divide by 8: some devices have padding only
    for name, prompt in (
        ("attend, 1001 tokens", lp.Empirical(rng.normal(size=(1001, 3)))),
        ("attend, 3 weighted tokens", lp.Empirical(rng.normal(size=(3, 3)), rng.uniform(size=3))),
    ):
        gap(name, lp.attend(head, prompt, z), lp.attend(head, prompt, z, mesh=mesh))
    reader = lp.Head.key_value(3, 2)
    both = rng.normal(size=(101, 3)), rng.normal(size=(101, 2))
    for name, pair in (
        ("attend, keys and values", lp.KeyValues(*both)),
        ("attend, weighted keys and values", lp.KeyValues(*both, rng.normal(size=101))),
    ):
        gap(name, lp.attend(reader, pair, z), lp.attend(reader, pair, z, mesh=mesh))
    gap(
        "jacobians",
        lp.attend_jacobians(head, prompt, z),
        lp.attend_jacobians(head, prompt, z, mesh=mesh),
    )

    def loss(U: jax.Array, mesh: jax.sharding.Mesh | None) -> jax.Array:
        return jnp.sum(lp.attend(lp.Head(U=U, V=head.V), prompt, z, mesh=mesh) ** 2)

    slopes = [jax.jit(jax.grad(loss), static_argnums=1)(head.U, m) for m in (None, mesh)]
    gap("gradient through a sharded prompt", *slopes)

    mu, key, y = lp.Gaussian(np.zeros(3), np.eye(3)), jax.random.key(4), np.array([1.0, -2.0])
    draw = (key, head, mu, z[0], 70, 21)
    gap("outputs", lp.sample_outputs(*draw), lp.sample_outputs(*draw, mesh=mesh))
    gap("gradients", lp.sample_gradients(*draw, y), lp.sample_gradients(*draw, y, mesh=mesh))
    methods = [
        lp.MonteCarlo(key, max_replicates=300, relative_error=1e-9, mesh=m) for m in (None, mesh)
    ]
    ask = (lp.OutputError(), head, lp.Rademacher(3), z[0], 20)
    gap("MonteCarlo", *(lp.expect(*ask, method)[:2] for method in methods))
    gap("MonteCarlo of a function", *(method.average(_square)[:2] for method in methods))

    task, runs = lp.LinearRegression(np.eye(2), noise_variance=0.1), 5
    softmax: list[Attention] = ["softmax"] * runs
    start = lp.BlockParams(0.5 * np.eye(2), 0.5)
    starts = jax.tree.map(lambda leaf: jnp.stack([leaf] * runs), start)
    keys = jax.random.split(key, runs)
    for method in (lp.Exact(), lp.MonteCarlo()):
        trained = [
            lp.descend_many(
                keys,
                task,
                starts,
                [20] * runs,
                30,
                16,
                method=method,
                attention=softmax,
                record_every=30,
                mesh=m,
            )
            for m in (None, mesh)
        ]
        gap(
            f"descent, {type(method).__name__}",
            *[[run.params for run in group] for group in trained],
        )
    return found


def _square(key: jax.Array) -> jax.Array:
    return jax.random.normal(key) ** 2


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    print(json.dumps(main()))
