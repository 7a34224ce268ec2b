"""``python -m jztree_utils.cli``."""

import sys

from . import main

sys.exit(main())
