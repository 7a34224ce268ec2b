"""Sums over neighbours, weighted by a smoothing kernel, and their derivatives."""

from ._fields import sph_derivative
from ._profiles import SphKernel as SphKernel
from ._profiles import sph_kernel_of as sph_kernel_of
from ._sums import kernel_sums

# Names imported "as" themselves are for other packages of the library, and not public.
__all__ = ["kernel_sums", "sph_derivative"]
