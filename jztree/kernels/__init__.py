"""The native kernels: one documented function per kernel. No other package calls `jax.ffi`.

A kernel runs on one device and never communicates. It takes and returns arrays of static shape and a dynamic ``num``
(int32 scalar, the number of valid leading rows). Results are bitwise identical for any number of threads. Shapes: ``n``
rows, ``d`` dims, ``q`` query rows, ``k`` neighbours, ``m`` nodes (sum over the planes), ``s`` splits (``m`` + number of
planes), ``g`` catalogue rows.

Kernels have no derivatives. The packages that call them define derivatives. If a caller defines none, it is an error to
differentiate a float result of a kernel.
"""

from ._call import *  # noqa: F403
from ._checks import *  # noqa: F403
from ._ghosts import *  # noqa: F403
from ._group_graph import *  # noqa: F403
from ._groups import *  # noqa: F403
from ._library import *  # noqa: F403
from ._lists import *  # noqa: F403
from ._neighbours import *  # noqa: F403
from ._order import *  # noqa: F403
from ._overdensity import *  # noqa: F403
from ._pairs import *  # noqa: F403
from ._potential import *  # noqa: F403
from ._radius import *  # noqa: F403
from ._rows import *  # noqa: F403
from ._spanning_tree import *  # noqa: F403
from ._subhaloes import *  # noqa: F403
