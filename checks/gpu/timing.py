"""The stages that time this library and its peers, alternating case by case, and that measure the device limits."""

import contextlib
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .cases import FIGURES, Call, Case, listed
from .libraries import LIBRARIES
from .samples import Sample
from .session import LOG_TAIL, Session, home, module

_CASE_SECONDS = 240.0
STAGE_OF = {"ours": "time", "unrecorded": "buffers", "published": "peers", "jaxkd": "peers"}


def floor(session: Session) -> None:
    """Measure the rates of the device."""
    if session.missing("floor", "rates"):
        problem = session.collect("floor", module("measure", {"rates": {"small": session.small}}), 240)
        if problem is not None:
            session.put("floor", "rates", {"error": str(problem)})


def figures(session: Session) -> None:
    """Time the figures to beat with this library. The stage `time` has the findings, and does the rest."""
    for case in listed(session.small, session.words):
        if case.urgency == FIGURES:
            time_case(session, case, "ours", home())


def run(session: Session) -> None:
    """Time the cases, the most urgent first, each with this library and then with the requested peers.

    Two processes never run at once.
    """
    make_samples(session)
    site = install_peers(session) if "peers" in session.stages else None
    for case in listed(session.small, session.words):
        for library in ("ours", *case.peers) if case.sample.is_there(session.samples) else ():
            folder = site if STAGE_OF[library] == "peers" else home()
            if STAGE_OF[library] in session.stages and folder is not None:
                time_case(session, case, library, folder)


def make_samples(session: Session) -> None:
    """Make the missing samples that timed cases read from files, small ones first."""
    for sample in sorted({case.sample for case in listed(session.small, session.words)}, key=lambda sample: sample.n):
        make_sample(session, sample)


def make_sample(session: Session, sample: Sample) -> None:
    """Make a sample that is read from a file, unless it exists."""
    if sample.is_there(session.samples) or (sample.kind == "snapshot" and not sample.source(session.data).exists()):
        return
    print(f"time: making {sample.name}", flush=True)
    command = module("samples", sample.kind, sample.n, str(session.samples), str(session.data))
    for problem in session.findings(command, session.environment(JAX_PLATFORMS="cpu"), 300):
        print(f"time: making {sample.name}: {problem['stopped']} {problem.get('log', '')}", flush=True)


def name_in_record(library: str, call: Call, case: Case) -> str:
    key = call.key(case.sample)
    return key if library == "ours" else f"{library}: {key}"


def time_case(session: Session, case: Case, library: str, folder: Path) -> None:
    """Time the missing calls of a case. Calls interrupted by the time limit stay missing."""
    stage, source, does = STAGE_OF[library], _source(session, library), LIBRARIES[library].does
    calls = {
        name_in_record(library, call, case): {"what": call.what, "options": call.options}
        for call in case.calls
        if does(call.what, call.options, case.sample.n)
    }

    def missing() -> list[str]:
        return [name for name in calls if session.missing(stage, name, source)]

    if not missing() or session.is_over():
        return
    job = {
        "library": library,
        "home": str(folder),
        "sample": asdict(case.sample),
        "folder": str(session.samples),
        "runs": session.runs,
        "calls": [{"key": name} | calls[name] for name in missing()],
    }
    cut_off = session.seconds(_CASE_SECONDS) < _CASE_SECONDS
    problem = session.collect(
        stage, module("measure", job), _CASE_SECONDS, folder, source, LIBRARIES[library].variables
    )
    if problem is None or (problem["late"] and cut_off):
        return
    for name in missing():
        if "error" not in session.record.stage(stage).get(name, {}):
            session.put(stage, name, {"error": str(problem)}, source)


def _source(session: Session, library: str) -> str:
    """Return the identity of the timed code: our sources, or the packages of the peers."""
    if STAGE_OF[library] != "peers" or session.wheels is None:
        return session.source
    return " ".join(sorted(path.stem.split("-cp")[0] for path in session.wheels.iterdir()))


def install_peers(session: Session) -> Path | None:
    """Unpack the packages of peers into a separate folder; return None without packages.

    Source packages are built, if that works on this machine without a network.
    """
    if session.wheels is None or not any(session.wheels.iterdir()):
        session.put("peers", "packages", {"left out": "--peer-wheels was not given, or its folder is empty"})
        return None
    site, source = session.work / "peers", _source(session, "published")
    if session.missing("peers", "packages", source) or not site.is_dir():
        packages = sorted(session.wheels.iterdir(), key=lambda path: path.suffix != ".whl")
        result = {package.name: _install(session, package, site) for package in packages}
        session.put("peers", "packages", {"packages": result}, source)
    return site


def _install(session: Session, package: Path, site: Path) -> str:
    """Install a package and return the outcome."""
    isolation = [] if package.suffix == ".whl" else ["--no-build-isolation"]
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile", "--upgrade"]
    command = [*pip, *isolation, "--target", str(site), str(package)]
    with contextlib.suppress(subprocess.TimeoutExpired):
        limit = max(session.seconds(240), 1)
        run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit)
        return "installed" if run.returncode == 0 else run.stderr[-LOG_TAIL:]
    return "no time was left"


def rates(record: Any) -> dict[str, float]:
    """Return the rates of the device, if they are known."""
    result = record.stage("floor").get("rates", {})
    return {} if "error" in result else result
