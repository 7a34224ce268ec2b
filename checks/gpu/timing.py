"""The stages that time this library and its peers, case by case in turn, and that measure what the device can do."""

import contextlib
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import samples
from .building import folder_of, make_samples
from .cases import Call, Case, listed
from .child import LOG_TAIL, module
from .libraries import LIBRARIES
from .record import home
from .session import Session

STAGE_OF = {"ours": "time", "published": "peers", "jaxkd": "peers"}


def floor(session: Session) -> None:
    """Rates of the device."""
    if session.missing("floor", "rates"):
        for told in session.child.findings(
            module("floor", session.small), session.child.environment(), session.seconds(240)
        ):
            session.put("floor", told.pop("key", "rates"), told if "stopped" not in told else {"error": str(told)})


def run(session: Session, stages: set[str]) -> None:
    """The cases, the most urgent first; each with this library and then with the peers, as far as ``stages`` has them.

    Two processes never run at once.
    """
    make_samples(session)
    site = install_peers(session) if "peers" in stages else None
    for case in listed(session.small, session.words):
        if not _is_there(session, case):
            continue
        for library in ("ours", *case.peers):
            if STAGE_OF[library] in stages and (library == "ours" or site is not None):
                _time(session, case, library, home() if library == "ours" or site is None else site)


def _is_there(session: Session, case: Case) -> bool:
    return case.sample.kind == "uniform" or samples.stored(asdict(case.sample), folder_of(session)).exists()


def name_in_record(library: str, call: Call, case: Case) -> str:
    key = call.key(case.sample)
    return key if library == "ours" else f"{library}: {key}"


def _source(session: Session, library: str) -> str:
    """What a timing depends on: our sources, or the packages of the peers."""
    if library == "ours" or session.wheels is None:
        return session.source
    return " ".join(sorted(path.stem.split("-cp")[0] for path in session.wheels.iterdir()))


def _time(session: Session, case: Case, library: str, place: Path) -> None:
    stage, source = STAGE_OF[library], _source(session, library)

    def missing() -> list[Call]:
        does = LIBRARIES[library].does
        calls = [call for call in case.calls if does(call.what, call.options, case.sample.n)]
        return [call for call in calls if session.missing(stage, name_in_record(library, call, case), source)]

    calls = missing()
    if not calls or session.is_over():
        return
    options = {"runs": session.runs, "folder": str(folder_of(session)), "home": str(place)}
    names = {call.key(case.sample): name_in_record(library, call, case) for call in calls}
    command = module("measure", case.job(calls, library, options))
    problem = None
    limit = session.seconds(60 * case.minutes)
    for told in session.child.findings(command, session.child.environment(place), limit):
        if "key" in told:
            session.put(stage, names[told.pop("key")], told, source)
        else:
            problem = told
    cut_off = problem is not None and problem["late"] and limit < 60 * case.minutes
    for call in missing() if problem and not cut_off else []:
        name = name_in_record(library, call, case)
        if "error" not in session.record.stage(stage).get(name, {}):
            session.put(stage, name, {"error": str(problem)}, source)


def install_peers(session: Session) -> Path | None:
    """Unpack the packages of peers into a folder of their own; None if there are none.

    Packages that come as source are built, if that works on this machine without a network.
    """
    if session.wheels is None or not any(session.wheels.iterdir()):
        session.put("peers", "packages", {"left out": "no folder was given with --peer-wheels"})
        return None
    site = session.work / "peers"
    if not session.missing("peers", "packages", _source(session, "published")) and site.is_dir():
        return site
    found = {}
    for package in sorted(session.wheels.iterdir(), key=lambda path: path.suffix != ".whl"):
        isolation = [] if package.suffix == ".whl" else ["--no-build-isolation"]
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile", "--upgrade"]
        text = "no time was left"
        with contextlib.suppress(subprocess.TimeoutExpired):
            command = [*pip, *isolation, "--target", str(site), str(package)]
            run = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=max(session.seconds(240), 1)
            )
            text = "installed" if run.returncode == 0 else run.stderr[-LOG_TAIL:]
        found[package.name] = text
    session.put("peers", "packages", {"packages": found}, _source(session, "published"))
    return site


def rates(record: Any) -> dict[str, float]:
    found = record.stage("floor").get("rates", {})
    return {} if "error" in found else found
