"""The command line: ``python tests/faults --help``."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[1])

if __name__ == "__main__":
    from faults.command import main

    sys.exit(main())
