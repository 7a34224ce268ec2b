"""``python -m jztree_utils.check_cluster``."""

import sys

from . import main

sys.exit(main())
