"""Join the processes of a call and run its command. This imports JAX, so arguments are parsed before."""

import os
from argparse import Namespace
from collections.abc import Callable

import jax

from jztree.comm import initialize

from .convert import run_convert
from .fof import run_fof
from .hdbscan import run_hdbscan
from .info import run_info
from .knn import run_knn
from .plot import run_plot
from .tree import run_tree
from .verify import run_verify
from .view import run_view
from .xi import run_xi

# A command raises ValueError, OSError or ImportError if an argument is invalid or a file cannot be used. The message is
# a sentence for the user. If possible, the error precedes any long computation.
RUN: dict[str, Callable[[Namespace], None]] = {
    "fof": run_fof,
    "knn": run_knn,
    "hdbscan": run_hdbscan,
    "info": run_info,
    "convert": run_convert,
    "plot": run_plot,
    "tree": run_tree,
    "verify": run_verify,
    "view": run_view,
    "xi": run_xi,
}


_count = 1  # of the processes that have joined


def join_processes() -> bool:
    """Join the processes that were started together. Return whether this is the first one, which does all printing.

    Raises:
        ValueError: If the processes cannot join, or JAX has no device. The message is a sentence for the user.
    """
    try:
        initialize()
    except RuntimeError as error:
        raise ValueError(" ".join(str(error).split())) from error
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # the latter without the GPU package
        report = {name: os.environ.get(name) for name in ("JAX_PLATFORMS", "XLA_FLAGS", "CUDA_VISIBLE_DEVICES")}
        variables = (
            ", ".join(f"{name} is {value!r}" for name, value in report.items() if value) or "no variable names one"
        )
        reason = str(error).partition(" (")[0] or "its platform is not installed"
        raise ValueError(
            f"JAX has no device to run on ({reason}), and in the environment {variables}; correct the environment, or "
            "install the missing package."
        ) from error
    global _count  # noqa: PLW0603
    _count = jax.process_count()
    return jax.process_index() == 0


def are_several() -> bool:
    """Return whether other processes have joined, also after this one has left JAX's runtime because of an error."""
    return _count > 1
