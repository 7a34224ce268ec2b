"""The stage of the GPU check that measures what decides the next changes (checks/gpu/experiments.py)."""

import json
from pathlib import Path
from typing import Any

import pytest
from test_gpu_check import options, session_in

from gpu import check, experiments  # isort: skip  (test_gpu_check adds its folder to the path)


def findings_in(folder: Path, stage: str) -> dict[str, Any]:
    return json.loads((folder / "gpu_trial.json").read_text())["stages"][stage]


def test_experiment_compares_its_lines_with_its_claims(tmp_path: Path) -> None:
    assert check.main(options(tmp_path, "--stages", "experiments,report", "--only", "limits")) == 0
    findings = findings_in(tmp_path, "experiments")
    timed = {f"limits: {n} {word}" for n in ("1e6", "3e6") for word in ("limit", "no limit")}
    assert timed == {key for key, finding in findings.items() if finding.get("seconds", 0) > 0}
    (claim,) = experiments.EXPERIMENTS["limits"].claims
    assert findings["limits"]["claims"][claim] in (True, False)
    page = (tmp_path / "gpu_trial.md").read_text()
    assert f"as expected: {claim}" in page
    assert "| limits: 3e6 limit |" in page


@pytest.mark.slow
def test_every_claim_is_about_lines_that_are_timed(tmp_path: Path) -> None:
    assert check.main(options(tmp_path, "--stages", "experiments")) == 0
    findings = findings_in(tmp_path, "experiments")
    for name, experiment in experiments.EXPERIMENTS.items():
        outcomes = findings[name].get("claims", {})
        assert list(outcomes) == list(experiment.claims)
        assert None not in outcomes.values(), outcomes
    assert "knn uniform 630 k=8 periodic" in findings_in(tmp_path, "time")


def test_claims_hold_fail_or_have_no_outcome() -> None:
    claims = {"a is short": lambda lines: lines["a"] < 1, "b is short": lambda lines: lines["b"] < 1}
    assert experiments.judged(claims, {"a": 0.5}) == {"a is short": True, "b is short": None}
    assert experiments.judged(claims, {"a": 2.0, "b": 0.1}) == {"a is short": False, "b is short": True}


def test_experiments_fit_the_time_of_their_stage() -> None:
    seconds = sum(experiment.seconds for experiment in experiments.EXPERIMENTS.values()) + experiments.PEERS_SECONDS
    assert seconds <= check.STAGES["experiments"].seconds <= 480


def test_lines_interrupted_by_the_time_limit_are_timed_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session, jobs = session_in(tmp_path), []
    problems = [{"stopped": "after 20 seconds", "late": True}, None]

    def collect(stage: str, command: list[str], *_: Any, **__: Any) -> Any:
        jobs.append(json.loads(command[-1]))
        session.put(stage, f"limits: {'1e6 limit' if len(jobs) == 1 else '3e6 limit'}", {"seconds": 1.0})
        return problems[len(jobs) - 1]

    monkeypatch.setattr(session, "collect", collect)
    session.words = ["limits"]
    for _ in range(3):
        experiments.run(session)
    assert [job["known"] for job in jobs] == [[], ["1e6 limit"]]
    assert session.record.stage("experiments")["limits"]["complete"]


NCU = """
==PROF== Connected to process 123
"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","123","search_short(jztree::Problem<float>)","smsp__inst_executed.sum","inst","789,000"
"0","123","search_short(jztree::Problem<float>)","gpu__time_duration.sum","us","2,010.5"
"1","123","report(jztree::Problem<float>)","gpu__time_duration.sum","us","130"
"1","123","report(jztree::Problem<float>)","unknown","",""
"""


def test_metrics_of_the_profiler_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_in(tmp_path)
    session.words = ["profile"]
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    experiments.run(session)
    assert "not on the PATH" in session.record.stage("experiments")["profile"]["left out"]
    ncu = tmp_path / "ncu"
    ncu.write_text(f"#!/bin/sh\n/bin/cat > $3 <<'EOF'{NCU}EOF\n")
    ncu.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    session.record.forget("experiments")
    experiments.run(session)
    findings = session.record.stage("experiments")
    launch = findings["profile: 0 search_short(jztree::Problem<float>)"]
    assert (launch["instructions"], launch["duration"]) == ("789,000 inst", "2,010.5 us")
    assert findings["profile: 1 report(jztree::Problem<float>)"]["duration"] == "130 us"
    assert findings["profile"]["complete"]
