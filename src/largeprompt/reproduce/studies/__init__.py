"""The claims of the paper, one file each: a study computes, and draws nothing. `base.py` says how to write one."""

from . import (
    almost_sure,
    assumption_3_3,
    assumption_4_2,
    depth,
    finite_length_risk,
    finite_prompts,
    lemma_2_1,
    non_gaussian_limit,
    proposition_3_1,
    proposition_3_4,
    regimes,
    section_6,
    softmax_operator,
    theorem_4_3,
    theorem_5_1,
)
from .base import Check as Check
from .base import Findings as Findings
from .base import Study as Study
from .base import Verdict as Verdict
from .base import at_least as at_least
from .base import at_most as at_most
from .base import between as between

STUDIES: dict[str, Study] = {
    module.STUDY.name: module.STUDY
    for module in (
        softmax_operator,
        lemma_2_1,
        non_gaussian_limit,
        almost_sure,
        finite_prompts,
        proposition_3_1,
        assumption_3_3,
        proposition_3_4,
        regimes,
        depth,
        finite_length_risk,
        assumption_4_2,
        theorem_4_3,
        theorem_5_1,
        section_6,
    )
}
