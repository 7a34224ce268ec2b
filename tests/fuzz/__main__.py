"""The command line: ``python tests/fuzz --help``."""

import os
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[1])
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"

if __name__ == "__main__":
    from fuzz.command import main

    sys.exit(main())
