"""The claims of the paper, one file each: a study computes, and draws nothing."""

import jax
from jaxtyping import Array, Key
from rich.progress import track

from . import concentration, depth, finite_prompts, lemma_2_1, softmax_operator
from .base import Check as Check

STUDIES = {
    "lemma-2.1": lemma_2_1.run,
    "softmax-operator": softmax_operator.run,
    "depth": depth.run,
    "finite-prompts": finite_prompts.run,
    "concentration": concentration.run,
}


def run_all(key: Key[Array, ""]) -> list[Check]:
    """Every study, each with a key of its own, with progress."""
    keys = jax.random.split(key, len(STUDIES))
    pairs = list(zip(STUDIES.values(), keys, strict=True))
    steps = track(pairs, description="studies", transient=True)
    return [check for study, study_key in steps for check in study(study_key)]
