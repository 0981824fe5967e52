"""Classes of measures: abstract or final, static fields, and the classes in the documents."""

import inspect
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import largeprompt as lp

from ..documented import classes_in

CLASSES = {
    **classes_in("extending.md", lp.AbstractMeasure),
    **classes_in("measures.md", lp.AbstractMeasure),
}
DATA = {"Laplace": {"scale": 0.5}, "Die": {"size": 0.5}}  # array fields of the documented classes


def _make(name: str, factor: float = 1.0) -> lp.AbstractMeasure:
    fields = {key: jnp.asarray(factor * value) for key, value in DATA.get(name, {}).items()}
    return CLASSES[name](**fields)


def _modules(cls: type = eqx.Module) -> set[type]:
    """The modules of the rooms measures and attention."""
    deep = {sub for child in cls.__subclasses__() for sub in {child, *_modules(child)}}
    return {sub for sub in deep if sub.__module__.split(".")[:2] in ROOMS}


ROOMS = (["largeprompt", "measures"], ["largeprompt", "attention"])


def test_modules_are_abstract_or_final():
    known = {lp.AbstractMeasure, lp.Gaussian, lp.Head, lp.Layer}  # imports both rooms
    modules = _modules()
    assert known < modules
    for cls in modules:
        assert inspect.isabstract(cls) == cls.__name__.startswith("Abstract"), cls
        assert inspect.isabstract(cls) or not _modules(cls), (
            f"{cls} is not abstract, but subclassed"
        )


@pytest.mark.parametrize("name", CLASSES)
def test_documented_measure_through_jit(name):
    mu = _make(name)
    u = jnp.full(mu.dim, 0.3)
    head, z = lp.Head(U=jnp.eye(mu.dim), V=jnp.eye(mu.dim)), u

    def everything(mu):
        return (
            mu.log_mgf(u),
            mu.tilted_mean(u),
            mu.tilt(u).cov(),
            mu.sample(jax.random.key(0), 4).points,
            lp.attend(head, mu, z),
            lp.attend_linear(head, mu, z),
        )

    for got, want in zip(jax.jit(everything)(mu), everything(mu), strict=True):
        assert np.allclose(got, want, rtol=1e-12)


@pytest.mark.parametrize("name", [name for name in CLASSES if name in DATA])
def test_documented_measure_through_vmap_and_grad(name):
    """For the classes with an array field."""
    laws = [_make(name, factor) for factor in (1.0, 0.5)]
    batch = jax.tree.map(lambda *leaves: jnp.stack(leaves), *laws)
    head, z = lp.Head(U=jnp.eye(laws[0].dim), V=jnp.eye(laws[0].dim)), jnp.full(laws[0].dim, 0.3)

    def output(mu):
        return lp.attend(head, mu, z)

    want = np.stack([output(mu) for mu in laws])
    assert np.allclose(jax.vmap(output)(batch), want, rtol=1e-12)
    slope = jax.jit(jax.grad(lambda mu: jnp.sum(output(mu))))(laws[0])
    (derivative,) = jax.tree.leaves(slope)
    ((value,), step) = DATA[name].values(), 1e-5
    up, down = (jnp.sum(output(_make(name, 1 + sign * step))) for sign in (1, -1))
    assert np.isclose(derivative, (up - down) / (2 * step * value), rtol=1e-8)


def test_documented_capabilities():
    die = _make("Die")
    atoms = die.atoms()
    assert atoms is not None
    assert np.allclose(atoms.mean(), 0.5 * 3.5)
    uniforms = jnp.asarray((np.arange(600) + 0.5)[:, None] / 600)
    assert np.allclose(lp.Empirical(die.from_uniforms(uniforms)).cov(), die.cov(), rtol=1e-12)
    assert die.is_bounded


@pytest.mark.parametrize("name", CLASSES)
def test_documented_measure_on_a_mesh(name):
    mu, keys = _make(name), jax.random.split(jax.random.key(0), 2)
    mesh = Mesh(np.array(jax.devices()[:1]), ("devices",))

    def draw(mu, keys):
        return jax.vmap(lambda key: mu.sample(key, 4).points)(keys)

    shards = (PartitionSpec(), PartitionSpec("devices"))
    # check_vma=False as in the package: equinox.error_if does not declare what varies over devices
    options = {"in_specs": shards, "out_specs": shards[1], "check_vma": False}
    on_mesh = jax.jit(jax.shard_map(draw, mesh=mesh, **options))
    placed = jax.device_put(mu, NamedSharding(mesh, PartitionSpec()))
    assert np.allclose(on_mesh(placed, keys), draw(mu, keys), rtol=1e-12)


def test_make_static_of_int_bool_and_str_fields():
    class Labelled(lp.AbstractAutodiffMeasure):
        scale: jax.Array
        dim: int
        name: str = "a"
        side: Literal["left", "right"] = "left"
        flag: bool | None = None
        quoted: "int" = 3
        declared: int = eqx.field(static=True, default=4)
        converted: int = eqx.field(converter=int, default=5)
        weight: float = 1.0

        def log_mgf(self, u):
            return self.scale * jnp.sum(jnp.asarray(u)) * self.weight

        def sample(self, key, n):
            raise NotImplementedError

    mu = Labelled(scale=jnp.ones(()), dim=2, name="b")
    assert (mu.dim, mu.name, mu.side, mu.flag) == (2, "b", "left", None)
    assert (mu.quoted, mu.declared, mu.converted) == (3, 4, 5)
    assert jax.tree.leaves(mu) == [mu.scale, mu.weight]
    with pytest.raises(TypeError, match="'dim'"):
        Labelled(scale=jnp.ones(()))  # pyright: ignore[reportCallIssue] # dim has no default
