"""The faults of a process in a program of several, and the expected outcomes."""

import signal
from dataclasses import dataclass

# Moments of the program, see `case`, after which the other processes still compute something with this process.
WORKING = ("started", "meshed", "between", "loop")
# In a thread, while the main thread computes.
DURING = "during"
LIBRARY = ("mapped", "knn", "labels", "catalogue")

# Messages of the other processes. They name the process and the cause.
_ENDED = r"process {rank}, which has ended"
_FAILED = r"process {rank} of {count} on host \S+ has failed: "
_LEADER = r"process 0, which coordinates|leader (task )?\(usually slice 0 task 0\)"  # names of process 0
_GONE = r"process {rank} of {count} on host \S+ is gone"
_NEVER_CAME = (
    r"has waited 6 s for all {count} processes to meet(.|\n)*(process {rank}, which should|task names:\s+{rank}\b)"
)
# Message of a process that failed, or that ends because another process failed.
_EITHER = r"(ends with this error|has failed: )(.|\n)*"


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of fault.

    code: Python code that the process at fault runs. everyone: every process runs it.
    moments: when it may happen, see `case`. works: the computations it may interrupt; empty means any.
    own: permitted exit codes of the process at fault; if it is empty, the process may end in any way or not at all.
    said: regular expression that must match the output of every other process, which must fail; if it is empty, the
        other processes must continue and succeed, and no process may print a message.
    also: regular expression for the output of the process at fault.
    setup: lines before `initialize`. options: arguments of `initialize`. env: environment variables of the process at
        fault. taken: the port is in use.
    """

    name: str
    code: str = "pass"
    everyone: bool = False
    moments: tuple[str, ...] = WORKING
    works: tuple[str, ...] = ()
    own: tuple[int, ...] = (1,)
    said: str = ""
    also: str = ""
    setup: str = ""
    options: str = ""
    env: tuple[tuple[str, str], ...] = ()
    taken: bool = False


def _raising(name: str, code: str, text: str, also: str | None = None, **more: object) -> Kind:
    return Kind(name=name, code=code, said=_FAILED + text, also=text if also is None else also, **more)  # type: ignore[arg-type]


_HOOK = "sys.excepthook = lambda kind, error, trace: print('mine:', error, flush=True)"
_BAD, _BAD_DATA = "raise ValueError('bad data')", "ValueError: bad data"
_RAISING = (
    _raising("raises", _BAD, _BAD_DATA, moments=(*WORKING, "last")),
    _raising("raises while all others compile", _BAD, _BAD_DATA, moments=("traced",), works=("mapped",)),
    _raising("raises without words", "raise MemoryError", "MemoryError"),
    _raising("raises two lines", "raise OSError('first\\nsecond')", "OSError: first\nsecond"),
    _raising("asks for what there is not", "np.nothing", "AttributeError: module 'numpy' has no attribute 'nothing'"),
    _raising("raises, and an earlier hook reports it", _BAD, _BAD_DATA, also="mine: bad data", setup=_HOOK),
    _raising("raises, and a later hook reports it", f"{_HOOK}\n{_BAD}", _BAD_DATA, also="mine: bad data"),
    _raising("raises, with a handler that does not end", f"atexit.register(time.sleep, 300)\n{_BAD}", _BAD_DATA),
    _raising(
        "raises, with a thread at work", f"threading.Thread(target=time.sleep, args=(300,)).start()\n{_BAD}", _BAD_DATA
    ),
    _raising("is interrupted", "signal.raise_signal(signal.SIGINT)", "KeyboardInterrupt", own=(130,)),
    _raising("aborts", "jz.launch.abort('no file', 2)", "no file", own=(2,), moments=(*WORKING, DURING)),
)
_LEAVING = tuple(
    Kind(name=name, code=code, said=_ENDED, own=(own, 1))
    for name, code, own in (
        ("leaves with success", "sys.exit(0)", 0),
        ("leaves with a code", "sys.exit(3)", 3),
        ("leaves with words", "sys.exit('no file')", 1),
        ("leaves by exit", "exit(5)", 5),
        ("raises SystemExit", "raise SystemExit(4)", 4),
    )
)
_KILLED = tuple(
    Kind(name=name, code=code, said=f"{_GONE}|{_LEADER}", own=(own,), moments=(*WORKING, DURING, "last", "atexit"))
    for name, code, own in (
        ("is killed", "signal.raise_signal(signal.SIGKILL)", -signal.SIGKILL),
        ("is terminated", "signal.raise_signal(signal.SIGTERM)", -signal.SIGTERM),
        ("leaves by os._exit", "os._exit(7)", 7),
        ("leaves by os._exit with success", "os._exit(0)", 0),
        ("reads at a bad address", "ctypes.string_at(0)", -signal.SIGSEGV),
    )
)
_SUSPENDED = (
    Kind(
        name="is suspended for ever",
        code="signal.raise_signal(signal.SIGSTOP)",
        moments=(*WORKING, DURING),
        own=(),
        said=r"stopped sending heartbeats\):\s+(/job:jax_worker/replica:0/task:)?{rank}\s|" + _LEADER,
        options="heartbeat_timeout_seconds=8",
    ),
)
_FULL = {"code": "raise ValueError('the disk is full')", "said": "ValueError: the disk is full", "works": ("mapped",)}
_CALLBACKS = (
    Kind(name="raises in a callback", moments=("debug callback",), also=_FULL["said"], **_FULL),  # type: ignore[arg-type]
    Kind(name="raises in a pure callback", moments=("pure callback",), also=_FULL["said"], **_FULL),  # type: ignore[arg-type]
)
_QUICKLY = {"moments": ("before",), "said": _NEVER_CAME, "options": "initialization_timeout_seconds=6"}
_STARTING = (
    Kind(name="never starts", code="sys.exit(0)", own=(0,), **_QUICKLY),  # type: ignore[arg-type]
    Kind(name="fails before it starts", code=_BAD, also=_BAD_DATA, **_QUICKLY),  # type: ignore[arg-type]
    Kind(name="is killed before it starts", code="os._exit(9)", own=(9,), **_QUICKLY),  # type: ignore[arg-type]
    Kind(
        name="cannot listen at its port",
        taken=True,
        moments=("before",),
        also=r"(?s)cannot listen on port|has waited 6 s .* or another program listens there",
        everyone=True,
        own=(1, -signal.SIGABRT),
        options="initialization_timeout_seconds=6",
    ),
)
_DIFFERENT = r"the calls of the processes differ: process \d calls .*, but process \d calls "
_DIFFERING = tuple(
    Kind(name=f"calls {name}", code=code, moments=("meshed", "loop"), works=works, said=_EITHER + said, also=said)
    for name, code, works, said in (
        ("with another number", "number = 2.0", ("mapped",), _DIFFERENT + "summed"),
        ("with another shape", "x = np.ones((mesh.size, 5))", ("mapped",), _DIFFERENT + "summed"),
        ("with another k", "k = 5", ("knn",), _DIFFERENT + "knn"),
        ("with another box", "box = 2.0", ("knn",), _DIFFERENT + "knn"),
        ("with more rows", "pos = np.repeat(pos, 2, axis=1)", ("knn", "labels"), _DIFFERENT),
        ("with another linking length", "rlink = 0.25", ("labels", "catalogue"), _DIFFERENT),
        ("with another smallest group", "least = 3", ("catalogue",), _DIFFERENT + "fof_and_catalogue"),
        ("another function", "work = other", LIBRARY, _DIFFERENT),
    )
)
# Gloo detects some of these: collectives of different sizes, and a first collective that only one process calls.
# Otherwise the process mistakes the data that it receives for its own, and its program notices.
_TOGETHER = "all other processes also wait, .* have called different functions"
_TOGETHER += rf"|collective mismatch|Gloo context initialization failed|AssertionError|{_GONE}|{_LEADER}"
_ALONE = (
    Kind(
        name="computes something of its own",
        code="work = alone",
        moments=("meshed", "loop"),
        works=LIBRARY,
        own=(),
        said=_TOGETHER,
        also=_TOGETHER,
    ),
)
_NAN = r"on rank \d: row 0 of the positions is NaN or infinite"
_INVALID = (
    Kind(
        name="has a NaN",
        code="pos = pos * np.nan",
        moments=("meshed", "loop"),
        works=("knn", "labels", "catalogue"),
        said=_EITHER + _NAN,
        also=_NAN,
    ),
    Kind(name="asks for too many", code="k = 1000", everyone=True, moments=("meshed",), works=("knn",), also="1000"),
)
_STOP = "subprocess.Popen(['sh', '-c', f'sleep 7; kill -CONT {os.getpid()}'])\nsignal.raise_signal(signal.SIGSTOP)"
_THREAD = "thread = threading.Thread(target={}); thread.start(); thread.join()"
_FORK = "child = multiprocessing.get_context('fork').Process(target={}); child.start(); child.join()"
_ANYWHERE = (*WORKING, "last", "atexit")
_HEALTHY = tuple(
    Kind(name=name, code=code, own=(0,), moments=moments)
    for name, code, moments in (
        ("does nothing", "pass", ("loop",)),
        ("catches an error", f"try: {_BAD}\nexcept ValueError: pass", _ANYWHERE),
        ("catches an exit", "try: sys.exit(2)\nexcept SystemExit: pass", _ANYWHERE),
        ("catches an interrupt", "try: signal.raise_signal(signal.SIGINT)\nexcept KeyboardInterrupt: pass", _ANYWHERE),
        ("leaves in a thread", _THREAD.format("lambda: sys.exit(3)"), (*WORKING, "last")),
        ("raises in a thread", _THREAD.format("lambda: 1 // 0"), (*WORKING, "last")),
        ("is slow", "time.sleep(8)", _ANYWHERE),
        ("is at work", "end = time.time() + 8\nwhile time.time() < end: pass", (*WORKING, "last")),
        ("is suspended for some time", _STOP, (*WORKING, DURING, "last", "atexit")),
        ("starts a program that fails", "subprocess.run([sys.executable, '-c', '1 // 0'])", _ANYWHERE),
        ("has a fork that raises", _FORK.format("lambda: 1 // 0"), (*WORKING, "last")),
        ("has a fork that leaves", _FORK.format("lambda: sys.exit(3)"), (*WORKING, "last")),
        ("handles SIGTERM", "signal.signal(signal.SIGTERM, print); signal.raise_signal(signal.SIGTERM)", WORKING),
        ("silences logging", "logging.disable(50)", WORKING),
        ("has a thread that works on", "threading.Thread(target=time.sleep, args=(8,)).start()", ("last",)),
        ("computes alone when all others have ended", "time.sleep(7); jax.jit(jnp.sum)(jnp.ones(3))", ("last",)),
        ("says goodbye", "sys.exit()", ("last",)),
        ("raises at its end", _BAD, ("atexit",)),
        ("replaces sys.exit", "sys.exit = exit", WORKING),
    )
)
_VERY_SLOW = (
    Kind(name="is very slow", code="time.sleep(35)", own=(0,), works=LIBRARY, moments=("started", "meshed", "loop")),
)
_LEAVING_AT_THE_END = (
    Kind(name="says goodbye with a code", code="sys.exit(3)", own=(3,), moments=("last",)),
    Kind(name="says goodbye with a code, as all do", code="sys.exit(3)", everyone=True, own=(3,), moments=("last",)),
)
KINDS = (
    *_RAISING,
    *_LEAVING,
    *_KILLED,
    *_SUSPENDED,
    *_CALLBACKS,
    *_STARTING,
    *_DIFFERING,
    *_ALONE,
    *_INVALID,
    *_HEALTHY,
    *_VERY_SLOW,
    *_LEAVING_AT_THE_END,
)
