"""Smoothing kernels by name: weights of neighbours that are 0 outside a radius ``h``.

Native code gets the kernels and their derivatives as parameters (native/sph/kernel_profile.h).
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.polynomial import Polynomial

from ..arguments import check_word

# These values are also in native/sph/kernel_profile.h.
_TOP_HAT, _GAUSSIAN, _CUBIC_SPLINE, _POLYNOMIAL = range(4)
_TERMS = 5


@dataclass(frozen=True)
class SphKernel:
    """``W(r, h) h^d = norm * shape(r / h)`` in some number of dimensions; ``shape(0)`` is 1.

    Attributes:
        norm: The norm.
        power: The power of Wendland's ``(1 - q)^power (c_0 + c_1 q + c_2 q^2 + ...)``. 0 for the cubic spline.
        coefficients: The coefficients ``c_0, c_1, ...``. Empty for the cubic spline.
    """

    norm: float
    power: int = 0
    coefficients: tuple[float, ...] = ()

    def shape(self, q: jax.Array) -> jax.Array:
        if not self.power:
            # 1 - 6 q^2 + 6 q^3 up to 1/2, and 2 (1 - q)^3 above.
            return 2 * (1 - q) ** 3 - jnp.maximum(1 - 2 * q, 0) ** 3
        polynomial = jnp.zeros_like(q)
        for coefficient in reversed(self.coefficients):
            polynomial = polynomial * q + coefficient
        return (1 - q) ** self.power * polynomial


# In 1, 2 and 3 dimensions (Dehnen & Aly 2012, Table 1).
KERNELS = {
    "cubic_spline": (SphKernel(4 / 3), SphKernel(40 / (7 * math.pi)), SphKernel(8 / math.pi)),
    "wendland_c2": (
        SphKernel(5 / 4, 3, (1, 3)),
        SphKernel(7 / math.pi, 4, (1, 4)),
        SphKernel(21 / (2 * math.pi), 4, (1, 4)),
    ),
    "wendland_c4": (
        SphKernel(3 / 2, 5, (1, 5, 8)),
        SphKernel(9 / math.pi, 6, (1, 6, 35 / 3)),
        SphKernel(495 / (32 * math.pi), 6, (1, 6, 35 / 3)),
    ),
    "wendland_c6": (
        SphKernel(55 / 32, 7, (1, 7, 19, 21)),
        SphKernel(78 / (7 * math.pi), 8, (1, 8, 25, 32)),
        SphKernel(1365 / (64 * math.pi), 8, (1, 8, 25, 32)),
    ),
}


def sph_kernel_of(name: str, dims: int) -> SphKernel:
    """Return an SPH kernel by its name. Raise ValueError if it does not exist, or not in ``dims`` dimensions."""
    check_word(name, "kernel", KERNELS)
    if not 1 <= dims <= 3:
        raise ValueError(f"SPH kernels support 1 to 3 dimensions, not {dims}; use knn_density, which supports up to 8.")
    return KERNELS[name][dims - 1]


class Profile(NamedTuple):
    """The parameters of a kernel for native code.

    Attributes:
        shape: Kind of the kernel.
        numbers: Its norm; the rate of a Gaussian; and one power and polynomial coefficients each for the kernel and for
            the two functions that give its first two derivatives.
    """

    shape: int
    numbers: tuple[float, ...]

    @property
    def norm(self) -> float:
        return self.numbers[0]

    @property
    def is_top_hat(self) -> bool:
        return self.shape == _TOP_HAT


def check_kernel(name: Any) -> str:
    """Return the name of a kernel. Raise ValueError if it does not exist."""
    check_word(name, "kernel", (*KERNELS, "gaussian", "top_hat"))
    return str(name)


def profile_of(name: Any, dims: int, truncate: Any) -> Profile:
    """Return a kernel by its name. Raise ValueError if it does not exist, or not in ``dims`` dimensions."""
    check_kernel(name)
    truncate = _checked_truncate(truncate)
    nothing = (0.0,) * (3 * (1 + _TERMS))
    unit_ball = math.pi ** (dims / 2) / math.gamma(dims / 2 + 1)
    if name == "top_hat":
        return Profile(_TOP_HAT, (1 / unit_ball, 0.0, *nothing))
    if name == "gaussian":
        rate = truncate**2 / 2
        inside = (math.pi / rate) ** (dims / 2) * _fraction_inside(dims, rate)
        return Profile(_GAUSSIAN, (1 / inside, rate, *nothing))
    if dims > 3:
        raise ValueError(
            f"kernel {name!r} supports 1 to 3 dimensions, not {dims}; use 'gaussian' or 'top_hat', which support up "
            "to 8."
        )
    kernel = sph_kernel_of(name, dims)
    if not kernel.power:
        return Profile(_CUBIC_SPLINE, (kernel.norm, 0.0, *nothing))
    return Profile(_POLYNOMIAL, (kernel.norm, 0.0, *_with_derivatives(kernel.power, kernel.coefficients)))


def _checked_truncate(truncate: Any) -> float:
    if isinstance(truncate, bool) or not isinstance(truncate, (int, float, np.integer, np.floating)):
        raise TypeError(f"truncate must be a number that is known when the function is traced, not {truncate!r}.")
    if not 1 <= truncate <= 12:
        raise ValueError(f"truncate is {truncate}; it must be from 1 to 12 standard deviations.")
    return float(truncate)


def _fraction_inside(dims: int, rate: float) -> float:
    """Return the fraction of a Gaussian ``exp(-rate q^2)`` within 1: P(dims / 2, rate), the incomplete gamma."""
    half, inside = (1 / 2, math.erf(math.sqrt(rate))) if dims % 2 else (1.0, -math.expm1(-rate))
    while half < dims / 2:
        inside -= rate**half * math.exp(-rate) / math.gamma(half + 1)
        half += 1
    return inside


@functools.lru_cache
def _with_derivatives(power: int, coefficients: Sequence[float]) -> tuple[float, ...]:
    """Return powers and coefficients of ``g0 = (1 - q)^power p(q)``, ``g1 = g0' / q`` and ``g2 = q g1'``."""
    one_less, p = Polynomial([1, -1]), Polynomial(coefficients)
    first = one_less * p.deriv() - power * p
    # Drop the constant term, which is 0: these kernels are flat at 0.
    q = Polynomial(first.coef[1:])
    second = Polynomial([0, 1]) * (one_less * q.deriv() - (power - 1) * q)
    numbers: list[float] = []
    for less, polynomial in enumerate((p, q, second)):
        terms = [*map(float, polynomial.coef), *[0.0] * _TERMS]
        assert not any(terms[_TERMS:])
        numbers += [float(power - less), *terms[:_TERMS]]
    return tuple(numbers)
