"""The first stage: compile the libraries for the GPU at hand, and make the samples meanwhile."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from . import samples
from .cases import Sample, listed
from .child import LOG_TAIL, module
from .record import ROOT
from .session import Session

LIBRARY = ROOT / "jztree" / "lib" / "libjztree_cuda.so"
_MAKING = "making the samples"


def run(session: Session) -> None:
    """Build and install into ``jztree/lib`` of this checkout, from which `import jztree` takes them."""
    if session.missing("build", "libraries"):
        steps = [("CPU", "OFF"), ("CUDA", "ON")] if session.child.platform == "cuda" else [("CPU", "OFF")]
        if session.small and (ROOT / "jztree" / "lib").is_dir():
            steps = []
        found: dict[str, object] = {"architectures": architectures() if session.child.platform == "cuda" else ""}
        maker: subprocess.Popen[bytes] | None = None
        try:
            session.child.log.write_text("")
            for name, cuda in steps:
                start = time.perf_counter()
                _build(session, cuda, str(found["architectures"]))
                found[f"{name} seconds"] = time.perf_counter() - start
                # From here on the library can be imported, and the compiler of the other needs few cores.
                maker = maker or _start_making(session)
            found["warnings"] = len(re.findall(r"\bwarning\b.*:", session.child.log.read_text(errors="replace")))
            found["megabytes"] = LIBRARY.stat().st_size / 1e6 if LIBRARY.exists() else 0.0
        except RuntimeError as error:
            found["error"] = str(error)
        finally:
            if maker is not None:
                maker.wait(max(session.seconds(300), 1))
        session.put("build", "libraries", found)
    make_samples(session)


def architectures() -> str:
    """CUDAARCHS for the GPU at hand, unless the user has chosen."""
    if os.environ.get("CUDAARCHS"):
        return os.environ["CUDAARCHS"]
    capability = ask("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader").split("\n")[0]
    return capability.strip().replace(".", "") or "native"


def ask(*command: str) -> str:
    """What a command prints; nothing if it is not there or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _build(session: Session, cuda: str, archs: str) -> None:
    folder = session.work / "build"
    cmake = shutil.which("cmake")
    if cmake is None:
        raise RuntimeError("cmake is not on the PATH; 'pip install cmake ninja' brings it.")
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    options = [f"-DPython_EXECUTABLE={sys.executable}", f"-DJZTREE_CUDA={cuda}"]
    if cuda == "ON":
        options.append(f"-DCMAKE_CUDA_ARCHITECTURES={archs}")
    _step(session, [cmake, "-S", str(ROOT), "-B", str(folder), *generator, *options])
    _step(session, [cmake, "--build", str(folder), "--parallel", str(os.cpu_count() or 2)])
    _step(session, [cmake, "--install", str(folder), "--prefix", str(ROOT)])


def _step(session: Session, command: Sequence[str]) -> None:
    """Run a command with its output in the log. Raises RuntimeError with the end of it if it fails."""
    with open(session.child.log, "ab") as log:
        try:
            run = subprocess.run(command, stdout=log, stderr=log, check=False, timeout=session.seconds(1200))
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"no time was left for {' '.join(command[:3])}") from None
    if run.returncode:
        end = session.child.log.read_text(errors="replace")[-LOG_TAIL:]
        raise RuntimeError(f"{' '.join(command[:3])} failed: {end}")


def _stored(session: Session) -> list[Sample]:
    """Samples that the timed cases take from files and that are not there; large ones last."""
    wanted = {case.sample for case in listed(session.small, session.words)}
    if not (session.data / "snapshot_128.hdf5").exists():
        wanted = {sample for sample in wanted if sample.kind != "snapshot"}
    missing = [s for s in wanted if s.kind != "uniform" and not samples.stored(asdict(s), folder_of(session)).exists()]
    return sorted(missing, key=lambda sample: sample.n)


def folder_of(session: Session) -> Path:
    return session.work / "samples"


def _command(session: Session, sample: Sample) -> list[str]:
    return module("samples", asdict(sample), str(folder_of(session)), str(session.data))


def _start_making(session: Session) -> "subprocess.Popen[bytes] | None":
    """Make the largest sample, which takes longest, while the compiler works. Nothing is timed at that time."""
    missing = _stored(session)
    if not missing:
        return None
    environment = session.child.environment() | {"JAX_PLATFORMS": "cpu"}
    with open(session.child.log, "ab") as log:
        return subprocess.Popen(_command(session, missing[-1]), env=environment, stdout=log, stderr=log)


def make_samples(session: Session) -> None:
    """Make what is missing of the samples."""
    for sample in _stored(session):
        print(f"build: {_MAKING}: {sample.name}", flush=True)
        environment = session.child.environment() | {"JAX_PLATFORMS": "cpu"}
        for problem in session.child.findings(_command(session, sample), environment, session.seconds(300)):
            print(f"build: {_MAKING}: {sample.name} {problem.get('stopped')} {problem.get('log', '')}", flush=True)
