"""``python -m jztree`` is the command line, which stands beside the library and is no part of it."""

import runpy

runpy.run_module("jztree_utils.cli", run_name="__main__", alter_sys=True)
