"""Brings the processes of a call together and runs its command. It imports JAX, so arguments are read before."""

import os
from argparse import Namespace
from collections.abc import Callable

import jax

from jztree.comm import initialize

from .convert import run_convert
from .fof import run_fof
from .info import run_info
from .knn import run_knn
from .plot import run_plot
from .view import run_view
from .xi import run_xi

RUN: dict[str, Callable[[Namespace], None]] = {
    "fof": run_fof,
    "knn": run_knn,
    "info": run_info,
    "convert": run_convert,
    "plot": run_plot,
    "view": run_view,
    "xi": run_xi,
}


def join_processes() -> bool:
    """Make the processes that were started together one; whether this is the first of them, which does all printing.

    Raises ValueError, with a sentence for the user, if they cannot come together, or there is no device to run on.
    """
    try:
        initialize()
    except RuntimeError as error:
        raise ValueError(" ".join(str(error).split())) from error
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # the latter where the package for GPUs is missing
        told = {name: os.environ.get(name) for name in ("JAX_PLATFORMS", "XLA_FLAGS", "CUDA_VISIBLE_DEVICES")}
        given = ", ".join(f"{name} is {value!r}" for name, value in told.items() if value) or "nothing names one"
        reason = str(error).partition(" (")[0] or "its platform is not installed"
        raise ValueError(
            f"JAX has no device to run on ({reason}), and in the environment {given}; set this right, or install what "
            "it needs."
        ) from error
    return jax.process_index() == 0


def are_several() -> bool:
    """Whether there are other processes than this one."""
    return jax.process_count() > 1
