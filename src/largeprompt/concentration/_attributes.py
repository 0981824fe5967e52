"""Attributes of a dataset over prompt lengths: its configuration, and what theory says about it."""

import json
import math
from typing import Any

import numpy as np

from .._provenance import describe, versions
from ..attention import AbstractHead
from ..measures import AbstractMeasure
from ..prompts import AbstractMethod
from .bounds import log_exponent, steepest_directions
from .rates import sharp_exponent, steepness


def attributes(
    head: AbstractHead,
    mu: AbstractMeasure,
    nu: AbstractMeasure,
    method: AbstractMethod,
    **more: str,
) -> dict[str, Any]:
    """The configuration, the exponent that theory gives it, method, versions and key."""
    found: dict[str, Any] = {**more, "method": method.description}
    found["tokens"], found["queries"] = type(mu).__name__, type(nu).__name__
    found["dim"], found["out_dim"] = np.int32(head.dim), np.int32(head.out_dim)
    tokens, queries = mu.as_gaussian(), nu.as_gaussian()
    if tokens is not None and queries is not None and len(head.heads) == 1:
        found["kappa"] = steepness(head, tokens, queries)
        found["sharp_exponent"] = sharp_exponent(found["kappa"])
        found |= steepest_directions(head, tokens, queries)
        power = log_exponent(found)
        if power is not None:
            found["log_exponent"] = power
    means = [float(np.max(np.abs(np.asarray(law.mean())))) for law in (mu, nu)]
    found["centred"] = np.int32(max(means) <= 1e-12)
    proxies = [_proxy(law) for law in (mu, nu)]
    if proxies[0] is not None:
        found["sigma"] = max(1.0, math.sqrt(proxies[0]))  # the sigma >= 1 of Prop. 3.1 and 3.4
    if proxies[1] is not None:
        found["query_proxy"] = proxies[1]
    found["configuration"] = json.dumps(
        {"head": describe(head), "mu": describe(mu), "nu": describe(nu)}
    )
    return found | versions(getattr(method, "key", None))


def _proxy(law: AbstractMeasure) -> float | None:
    """The law's sub-Gaussian variance proxy, where it knows one."""
    try:
        return float(np.asarray(law.subgaussian_proxy()))
    except ValueError:
        return None
