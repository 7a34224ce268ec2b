"""Checks of the arguments of a call and of its input files, before JAX is imported, which takes seconds."""

import os
from argparse import Namespace
from pathlib import Path

from ..._file_messages import absent_file, missing_folder, no_regular_file
from .argument_checks import check_arguments
from .output_names import OUTPUTS

SAMPLE = "sample"  # the name of the snapshot in the package
# Variables that launchers set for several processes.
_LAUNCHED = (
    "JAX_NUM_PROCESSES",
    "JAX_COORDINATOR_ADDRESS",
    "SLURM_PROCID",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "PALS_SIZE",
)


def check_inputs(args: Namespace) -> None:
    """Raise ValueError if an argument is missing or invalid, or an input file or the folder of an output is missing.

    Processes that a launcher has started check them later, because they must raise together.
    """
    if any(os.environ.get(name) for name in _LAUNCHED):
        return
    for option in ("snapshot", "input", "catalogue"):
        value = getattr(args, option, None)
        for name in value if isinstance(value, list) else [value]:
            is_sample = name == SAMPLE and args.command != "tree"  # trees need several outputs
            if name is not None and not is_sample and not os.path.lexists(name):
                raise ValueError(absent_file(Path(name)))
    check_arguments(args)
    for output in filter(None, (getattr(args, option, None) for option in OUTPUTS)):
        folder = os.path.dirname(os.path.realpath(output))
        if "{" not in folder and not os.path.lexists(folder):
            raise ValueError(missing_folder(output))
        if os.path.exists(output) and not os.path.isfile(output):
            raise ValueError(no_regular_file(output))
