"""The first stage: compile the libraries for the available GPU, and make the samples at the same time."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from .cases import listed
from .samples import Sample
from .session import LOG_TAIL, ROOT, Session, ask, module

LIBRARY = ROOT / "jztree" / "lib" / "libjztree_cuda.so"


def run(session: Session) -> None:
    """Build and install into ``jztree/lib`` of this checkout, from which `import jztree` loads the libraries."""
    if session.missing("build", "libraries"):
        steps = [("CPU", "OFF"), ("CUDA", "ON")] if session.platform == "cuda" else [("CPU", "OFF")]
        if session.small and LIBRARY.parent.is_dir():
            steps = []
        found: dict[str, object] = {"architectures": architectures() if session.platform == "cuda" else ""}
        try:
            session.log.write_text("")
            with ThreadPoolExecutor(1) as beside:
                for name, cuda in steps:
                    start = time.perf_counter()
                    _build(session, cuda, str(found["architectures"]))
                    found[f"{name} seconds"] = time.perf_counter() - start
                    # From here on the library can be imported, and the compiler of the other one needs few cores.
                    # Nothing is timed at the same time.
                    beside.submit(make_samples, session)
            found["warnings"] = len(re.findall(r"\bwarning\b.*:", session.log.read_text(errors="replace")))
            found["megabytes"] = LIBRARY.stat().st_size / 1e6 if LIBRARY.exists() else 0.0
        except RuntimeError as error:
            found["error"] = str(error)
        session.put("build", "libraries", found)
    make_samples(session)


def architectures() -> str:
    """Return CUDAARCHS for the available GPU, unless the user has set it."""
    if os.environ.get("CUDAARCHS"):
        return os.environ["CUDAARCHS"]
    capability = ask("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader").split("\n")[0]
    return capability.strip().replace(".", "") or "native"


def _build(session: Session, cuda: str, archs: str) -> None:
    """Build a library. Raises RuntimeError with the end of the log if a step fails."""
    cmake = shutil.which("cmake")
    if cmake is None:
        raise RuntimeError("cmake is not on the PATH; install it with 'pip install cmake ninja'.")
    folder = str(session.work / "build")
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    options = [f"-DPython_EXECUTABLE={sys.executable}", f"-DJZTREE_CUDA={cuda}"]
    if cuda == "ON":
        options.append(f"-DCMAKE_CUDA_ARCHITECTURES={archs}")
    _step(session, [cmake, "-S", str(ROOT), "-B", folder, *generator, *options])
    _step(session, [cmake, "--build", folder, "--parallel", str(os.cpu_count() or 2)])
    _step(session, [cmake, "--install", folder, "--prefix", str(ROOT)])


def _step(session: Session, command: Sequence[str]) -> None:
    with open(session.log, "ab") as log:
        try:
            run = subprocess.run(command, stdout=log, stderr=log, check=False, timeout=session.seconds(1200))
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"no time was left for {' '.join(command[:3])}") from None
    if run.returncode:
        end = session.log.read_text(errors="replace")[-LOG_TAIL:]
        raise RuntimeError(f"{' '.join(command[:3])} failed: {end}")


def make_samples(session: Session) -> None:
    """Make the missing samples that timed cases read from files, small ones first."""
    wanted: set[Sample] = {case.sample for case in listed(session.small, session.words)}
    for sample in sorted(wanted, key=lambda sample: sample.n):
        if sample.is_there(session.samples) or (sample.kind == "snapshot" and not sample.source(session.data).exists()):
            continue
        print(f"build: making {sample.name}", flush=True)
        command = module("samples", sample.kind, sample.n, str(session.samples), str(session.data))
        for problem in session.findings(command, session.environment(JAX_PLATFORMS="cpu"), 300):
            print(f"build: making {sample.name}: {problem['stopped']} {problem.get('log', '')}", flush=True)
