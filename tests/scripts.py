"""Loads scripts of ``checks/profiling`` as modules, for tests of their counts. Not a test."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def profiling(name: str) -> ModuleType:
    """Return the script with this name."""
    path = Path(__file__).parents[1] / "checks" / "profiling" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"profiling_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
