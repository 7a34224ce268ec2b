"""Run the command line with ``python -m jztree``; it is a separate package, not part of the library."""

import runpy

runpy.run_module("jztree_utils.cli", run_name="__main__", alter_sys=True)
