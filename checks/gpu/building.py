"""The first stage: compile the libraries for the available GPU, and record the calls for the next stage."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from .comparison import record_calls
from .session import LOG_TAIL, ROOT, Session, ask, fingerprint

LIBRARIES = ROOT / "jztree" / "lib"
_CUDA = "libjztree_cuda.so"
_DIMS = 0b1110  # kernels for 1 to 3 dimensions, which all stages before the tests use
_SOURCES = "sources.txt"  # in a folder of compiled libraries: the fingerprint of their sources


def run(session: Session) -> None:
    """Put the libraries into ``jztree/lib`` of this checkout, from which `import jztree` loads them."""
    if session.missing("build", "libraries"):
        result: dict[str, object] = {}
        try:
            if session.libraries is not None:
                result |= copy_libraries(session)
            elif session.platform == "cuda":
                result |= _build_both(session, LIBRARIES)
            elif not session.small or not LIBRARIES.is_dir():
                result["CPU seconds"] = _build(session, "CPU", LIBRARIES)
        except RuntimeError as error:
            result["error"] = str(error)
        session.put("build", "libraries", result)
    if "smoke" in session.stages:
        record_calls(session)


def run_all_dims(session: Session) -> None:
    """Compile the CUDA kernels for 4 to 8 dimensions too, for the tests. Libraries from a folder are not replaced."""
    if session.platform == "cuda" and session.libraries is None and session.missing("dimensions", "libraries"):
        try:
            result: dict[str, object] = {"CUDA seconds": _build(session, "CUDA", LIBRARIES, all_dims=True)}
        except RuntimeError as error:
            result = {"error": str(error)}
        session.put("dimensions", "libraries", result)


def compile_into(session: Session, folder: Path, all_dims: bool) -> None:
    """Compile the libraries into a folder, for another machine. This needs no GPU."""
    if not os.environ.get("CUDAARCHS"):
        raise RuntimeError("set CUDAARCHS to the compute capability of the GPU, such as CUDAARCHS=90 for an H100.")
    _build_both(session, folder, all_dims)
    (folder / _SOURCES).write_text(fingerprint("jztree") + "\n")


def copy_libraries(session: Session) -> dict[str, object]:
    """Copy the libraries of a folder. Raises RuntimeError if they do not fit these sources or this machine."""
    assert session.libraries is not None
    sources = session.libraries / _SOURCES
    if not sources.exists():
        raise RuntimeError(f"{session.libraries} has no file {_SOURCES}; make the folder with --compile FOLDER.")
    if (reference := sources.read_text().strip()) != fingerprint("jztree"):
        raise RuntimeError(
            f"the libraries in {session.libraries} were compiled from the sources {reference}, and these sources are "
            f"{fingerprint('jztree')}; compile them again with --compile FOLDER."
        )
    LIBRARIES.mkdir(exist_ok=True)
    for library in session.libraries.glob("libjztree_*.so"):
        shutil.copy2(library, LIBRARIES)
    return _loaded(session)


def _loaded(session: Session) -> dict[str, object]:
    """Return what `import jztree` reports of the libraries."""
    names = ("instruction_set", "cuda_architectures", "cuda_version")
    code = f"import jztree; [print(jztree.kernels.native_info()[name]) for name in {names}]"
    run = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=session.environment(JAX_PLATFORMS="cpu"),
        capture_output=True,
        text=True,
        check=False,
    )
    words = run.stdout.splitlines()
    if run.returncode or (session.platform == "cuda" and words[1] == "None"):
        raise RuntimeError(f"the libraries in {LIBRARIES} cannot be used here: {run.stderr[-LOG_TAIL:]}")
    return dict(zip(names, words, strict=True))


def architectures() -> str:
    """Return CUDAARCHS for the available GPU, unless the user has set it."""
    if os.environ.get("CUDAARCHS"):
        return os.environ["CUDAARCHS"]
    capability = ask("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader").split("\n")[0]
    return capability.strip().replace(".", "") or "native"


def _build_both(session: Session, into: Path, all_dims: bool = False) -> dict[str, object]:
    """Build both libraries at once. The CPU library is ready first, and then makes the input of the next stage."""
    session.log.write_text("")
    with ThreadPoolExecutor(2) as pool:
        cuda: Future[float] = pool.submit(_build, session, "CUDA", into, all_dims)
        result: dict[str, object] = {"architectures": architectures(), "CPU seconds": _build(session, "CPU", into)}
        if "smoke" in session.stages:
            pool.submit(record_calls, session)
        result["CUDA seconds"] = cuda.result()
    result["warnings"] = len(re.findall(r"\bwarning\b.*:", session.log.read_text(errors="replace")))
    result["megabytes"] = (into / _CUDA).stat().st_size / 1e6
    return result


def _build(session: Session, preset: str, into: Path, all_dims: bool = False) -> float:
    """Build a library for ``CPU`` or ``CUDA`` and copy it into a folder; return the seconds.

    Raises:
        RuntimeError: If a step fails, with the end of the log.
    """
    start, cmake = time.perf_counter(), shutil.which("cmake")
    if cmake is None:
        raise RuntimeError("cmake is not on the PATH; install it with 'pip install cmake ninja'.")
    # Each build has a folder, so that both run at once, and later changes compile few files again.
    folder = str(session.work / f"build_{preset}{'_all' if all_dims else ''}")
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    sets = os.environ.get("JZTREE_INSTRUCTION_SETS", "NATIVE")
    options = [f"-DPython_EXECUTABLE={sys.executable}", f"-DJZTREE_INSTRUCTION_SETS={sets}"]
    options.append(f"-DJZTREE_CUDA={'ON' if preset == 'CUDA' else 'OFF'}")
    if preset == "CUDA":
        options.append(f"-DCMAKE_CUDA_ARCHITECTURES={architectures()}")
        options += [] if all_dims else [f"-DCMAKE_CUDA_FLAGS=-DJZTREE_DIMS={_DIMS}"]
    _step(session, [cmake, "-S", str(ROOT), "-B", folder, *generator, *options])
    target = ["--target", "jztree_cuda"] if preset == "CUDA" else []
    _step(session, [cmake, "--build", folder, *target, "--parallel", str(os.cpu_count() or 2)])
    into.mkdir(parents=True, exist_ok=True)
    for library in Path(folder).rglob(f"libjztree_{preset.lower()}*.so"):
        shutil.copy2(library, into)
    return time.perf_counter() - start


def _step(session: Session, command: Sequence[str]) -> None:
    with open(session.log, "ab") as log:
        try:
            run = subprocess.run(command, stdout=log, stderr=log, check=False, timeout=session.seconds(1200))
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"no time was left for {' '.join(command[:3])}") from None
    if run.returncode:
        end = session.log.read_text(errors="replace")[-LOG_TAIL:]
        raise RuntimeError(f"{' '.join(command[:3])} failed: {end}")
