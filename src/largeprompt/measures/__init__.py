"""Measures: the laws that tokens are drawn from."""

from ._affine_maps import sandwich as sandwich
from ._domain_of_psi import require_domain as require_domain
from .abstract import AbstractAutodiffMeasure as AbstractAutodiffMeasure
from .abstract import AbstractMeasure as AbstractMeasure
from .dirac import Dirac as Dirac
from .empirical import Empirical as Empirical
from .gaussian import Gaussian as Gaussian
from .key_values import KeyValues as KeyValues
from .mixture import Mixture as Mixture
from .product_laws import AbstractProduct as AbstractProduct
from .product_laws import Rademacher as Rademacher
from .product_laws import Uniform as Uniform
from .scaled import Scaled as Scaled
from .sphere import Sphere as Sphere
from .tilted_moments import TiltedMoments as TiltedMoments
from .tilted_moments import tilted_moments as tilted_moments
from .transforms import AffineImage as AffineImage
from .transforms import IndependentSum as IndependentSum
from .transforms import Tilted as Tilted
