"""Sums over neighbours, weighted by a smoothing kernel, and their derivatives."""

from ._fields import sph_derivative
from ._profiles import SphKernel, sph_kernel_of
from ._sums import kernel_sums

__all__ = ["SphKernel", "kernel_sums", "sph_derivative", "sph_kernel_of"]
