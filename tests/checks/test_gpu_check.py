"""The parts of the GPU check (checks/gpu) that run without a GPU."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

CHECKS = Path(__file__).parents[2] / "checks"
sys.path.append(str(CHECKS))

from gpu import (  # noqa: E402
    answers,
    building,
    cases,
    check,
    comparison,
    correctness,
    inputs,
    kernel_calls,
    libraries,
    report,
    samples,
    timing,
)
from gpu.calls import CALLS  # noqa: E402
from gpu.session import Record, Session, fingerprint  # noqa: E402

from jztree.kernels import _call, _library  # noqa: E402


def options(folder: Path, *more: str) -> list[str]:
    files = ["--results", str(folder), "--work", str(folder / "work"), "--data", str(folder), "--name", "trial"]
    return ["--quick", "--platform", "cpu", *files, *more]


# The whole


@pytest.mark.slow
def test_cpu_trial_resumes_after_interruption(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    words = options(tmp_path, "--stages", "time,report", "--only", "stages,query uniform,spheres")
    assert check.main([*words, "--budget", "0"]) == 0
    assert "time: no time is left; run this stage again" in capsys.readouterr().out
    assert check.main(words) == 0
    result = json.loads((tmp_path / "gpu_trial.json").read_text())["stages"]["time"]
    assert result["query uniform 1e3 k=5 open"]["digest"]["finite"]
    assert len(result["stages uniform 2e3"]["stages"]) >= 10
    assert result["spheres clustered 2e3 b=0.2 periodic"]["digest"]["spheres"] > 0
    page = (tmp_path / "gpu_trial.md").read_text()
    assert "| query uniform 1e3 k=5 open" in page
    assert "| plane hierarchy |" in page

    capsys.readouterr()
    assert check.main(words) == 0
    assert "time: " not in capsys.readouterr().out, "what was found is not done again"
    assert json.loads((tmp_path / "gpu_trial.json").read_text())["stages"]["time"] == result


def test_wrong_arguments_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert check.main(options(tmp_path, "--stages", "build,tset")) == 2
    assert "'tset' is not a stage" in capsys.readouterr().err


def test_help_lists_the_stages_in_order_with_their_times(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        check.parse(["--help"])
    lines = capsys.readouterr().out.splitlines()
    listed = [line.split()[:2] for line in lines if line.split()[:1] and line.split()[0] in check.STAGES]
    assert listed == [[name, str(stage.seconds)] for name, stage in check.STAGES.items()]
    assert sum(stage.seconds for stage in list(check.STAGES.values())[:4]) <= 600


def test_no_gpu_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "name_of_gpu", lambda: "")
    assert check.main([*options(tmp_path), "--platform", "cuda"]) == 2
    assert "nvidia-smi finds no GPU" in capsys.readouterr().err


# Stages


def test_requested_cases_are_covered() -> None:
    keys = [call.key(case.sample) for case in cases.listed(False) for call in case.calls]
    assert len(keys) == len(set(keys))
    for n in ("1e4", "1e5", "1e6", "1e7"):
        for kind in ("uniform", "clustered"):
            for k in (4, 8, 16, 32, 64):
                assert f"knn {kind} {n} k={k} periodic" in keys
                assert f"knn {kind} {n} k={k} open" in keys
    assert [key for key in keys if key.startswith("knn uniform 1e8")] == [
        "knn uniform 1e8 k=16 periodic",
        "knn uniform 1e8 k=16 open",
    ]
    for what in ("labels", "catalogue"):
        for sample in ("uniform 1e5", "uniform 1e8", "clustered 1e7", "snapshot 2097152"):
            assert f"{what} {sample} b=0.2 periodic" in keys
        assert f"{what} uniform 1e8 b=0.7 periodic" in keys
    assert "query uniform 1e7 k=30 open" in keys
    assert "spheres snapshot 2097152 b=0.2 periodic" in keys


def test_the_most_urgent_cases_come_first() -> None:
    listed = cases.listed(False)
    assert [case.sample.name for case in listed if case.urgency == 0][:2] == ["uniform 1e6", "uniform 1e7"]
    assert listed[0].calls[0].key(listed[0].sample) == "query uniform 1e6 k=30 open"
    assert [case.urgency for case in listed] == sorted(case.urgency for case in listed)


def test_figures_to_beat_are_timed_first() -> None:
    keys = [
        call.key(case.sample) for case in cases.listed(False) if case.urgency == cases.FIGURES for call in case.calls
    ]
    for n in ("1e6", "1e7"):
        for k in (8, 16, 30, 64):
            assert {f"knn uniform {n} k={k} periodic", f"query uniform {n} k={k} open"} <= set(keys)
    assert "labels uniform 1e7 b=0.2 periodic" in keys


def test_only_some_calls() -> None:
    first, second = cases.listed(False, ["knn uniform 1e6 k=16"])
    assert [call.options["box"] for case in (first, second) for call in case.calls] == [cases.BOX, 0.0]


def test_samples_are_made_once_from_their_seed(tmp_path: Path) -> None:
    sample = samples.Sample("clustered", 300)
    sample.make(tmp_path, tmp_path)
    path = sample.path(tmp_path)
    written = path.stat().st_mtime_ns
    sample.make(tmp_path, tmp_path)
    assert path.stat().st_mtime_ns == written
    assert sample.positions(tmp_path).shape == (300, 3)
    even = samples.Sample("uniform", 50).positions(tmp_path)
    np.testing.assert_array_equal(even, samples.uniform(50, samples.SEED))


def test_jaxkd_runs_supported_cases_only() -> None:
    does = libraries.Jaxkd.does
    assert does("knn", {"k": 16, "box": 0.0}, 10**6)
    assert not does("knn", {"k": 16, "box": 1.0}, 10**6)
    assert not does("labels", {"b": 0.2, "box": 0.0}, 10**5)


def test_floor_is_the_larger_of_bytes_and_arithmetic() -> None:
    rates = {"copy bytes per second": 1e12, "instructions per second": 1e13}
    call = cases.Call("knn", {"k": 16})
    assert CALLS["knn"].bytes_to_move(10, 16) == 10 * (12 + 128)
    assert report.seconds_at_least(rates, call, 10**6, 0.0) == pytest.approx(140e-6)
    assert report.seconds_at_least(rates, call, 10**6, 500.0) == pytest.approx(400e-6)


# Compiling


def libraries_in(folder: Path, sources: str) -> Session:
    folder.mkdir()
    (folder / "sources.txt").write_text(sources)
    session = session_in(folder)
    session.libraries = folder
    return session


def test_libraries_without_the_name_of_their_sources_are_refused(tmp_path: Path) -> None:
    session = session_in(tmp_path)
    session.libraries = tmp_path
    with pytest.raises(RuntimeError, match=r"no file sources\.txt; make the folder with --compile"):
        building.copy_libraries(session)


def test_libraries_of_other_sources_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="compiled from the sources 0123abcd"):
        building.copy_libraries(libraries_in(tmp_path / "libraries", "0123abcd"))


def test_libraries_of_these_sources_are_copied_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = libraries_in(tmp_path / "libraries", fingerprint("jztree"))
    (tmp_path / "libraries" / "libjztree_cuda.so").write_text("a library")
    monkeypatch.setattr(building, "LIBRARIES", tmp_path / "lib")
    assert "instruction_set" in building.copy_libraries(session)
    assert (tmp_path / "lib" / "libjztree_cuda.so").read_text() == "a library"


def test_compiling_for_another_machine_needs_its_architecture(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDAARCHS", raising=False)
    assert check.main([*options(tmp_path), "--compile", str(tmp_path / "libraries")]) == 1
    assert "set CUDAARCHS to the compute capability" in capsys.readouterr().err


# Comparing


@pytest.mark.slow
def test_one_call_of_each_kernel_is_recorded_and_repeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called = set()

    def noting(kernel: Any, *arrays: Any) -> Any:
        called.add(kernel.name)
        return run(kernel, *arrays)

    run = _call.run
    monkeypatch.setattr(_call, "run", noting)
    kernel_calls.record(tmp_path, 1000)
    assert called == set(_library._kernel_names())
    names = {path.stem for path in tmp_path.glob("*.pickle")}
    assert {"knn", "fof", "group_edges", "select_boxes", "checked_lengths"} <= names
    # Undefined parts of small results are only recognised if the process starts with the variables of record_calls.
    assert [kernel_calls.repeat(name, tmp_path) for name in ("knn", "fof", "hierarchy", "count_within")] == [None] * 4
    assert kernel_calls.kernels.knn.__name__ == "knn", "the functions are as before"


def test_a_call_with_other_results_is_found(tmp_path: Path) -> None:
    call = kernel_calls.Recorded("as_num", (np.array([1.0, 2.0]),), {}).answered()
    kernel_calls.write(tmp_path, call)
    assert kernel_calls.repeat("as_num", tmp_path) is None
    kernel_calls.write(tmp_path, replace(call, results=(np.array([1, 3], np.int32),)))
    assert kernel_calls.repeat("as_num", tmp_path) == "output 0: 1 of 2 integers differ"
    undefined = (np.array([True, False]),)
    kernel_calls.write(tmp_path, replace(call, results=(np.array([1, 3], np.int32),), defined=undefined))
    assert kernel_calls.repeat("as_num", tmp_path) is None


def test_tasks_are_distributed_once() -> None:
    keys = [str(i) for i in range(35)]
    parts = comparison.shares(keys, 8)
    assert sorted(key for part in parts for key in part) == sorted(keys)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_task_that_ends_its_process_is_an_error_and_the_rest_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_in(tmp_path)
    code = (
        "import sys, json\nfor key in json.loads(sys.argv[1]):\n  assert key != 'b'\n  print(json.dumps({'key': key}))"
    )
    monkeypatch.setattr(comparison, "module", lambda _, job: [sys.executable, "-c", code, json.dumps(job)])
    monkeypatch.setattr(comparison, "_PROCESSES", 1)
    comparison.distribute(session, "compare", "answers", {key: key for key in "abc"}, list, 60)
    result = session.record.stage("compare")
    assert {key: "error" in column for key, column in result.items()} == {"a": False, "b": True, "c": False}


@pytest.mark.long
def test_answers_of_one_device_are_consistent() -> None:
    import jax  # noqa: PLC0415

    given = next(item for item in inputs.inputs(True) if item["n"] == 400)
    cpu = jax.devices("cpu")[0]
    assert answers.compared(given, cpu, cpu) == {}


@pytest.mark.parametrize(
    ("sums", "a", "b", "says"),
    [
        (False, [np.arange(3)], [np.arange(3)], None),
        (False, [np.arange(3)], [np.array([0, 5, 2])], "1 of 3 integers differ"),
        (False, [np.array([1.0, np.nan])], [np.array([1.0, np.nan])], None),
        (False, [np.array([1.0])], [np.array([1.0 + 1e-7])], "1 of 1 numbers differ"),
        (True, [np.array([1.0])], [np.array([1.0 + 1e-7])], None),
        (True, [np.array([1.0])], [np.array([1.0 + 1e-5])], "numbers differ"),
        (True, [np.array([1.0])], [np.array([np.inf])], "numbers differ"),
        (False, "k is too large.", "k is too large.", None),
        (False, "out of memory", [np.zeros(1)], "out of memory"),
    ],
)
def test_descriptions_of_differences(sums: bool, a: Any, b: Any, says: str | None) -> None:
    result = answers.difference(a, b, sums)
    assert result is None if says is None else says in (result or "")


SUMMARY = """
========= Invalid __global__ write of size 4 bytes
========= ERROR SUMMARY: {} errors
========= ERROR SUMMARY: 0 errors
"""
CALL = {"key": "knn n=1e4", "wrong": {}}


@pytest.mark.parametrize("errors", [0, 3])
def test_verdict_of_the_sanitizer_is_the_worst_of_its_processes(errors: int) -> None:
    result = correctness.verdict(SUMMARY.format(errors), [CALL], 1)
    assert result["verdict"] == f"ERROR SUMMARY: {errors} errors"
    assert result["complaints"] == ["========= Invalid __global__ write of size 4 bytes"]
    assert correctness.is_clean(result["verdict"]) == (errors == 0)
    clean = correctness.verdict(SUMMARY.format(0), [CALL], 1)
    assert correctness.worst([clean, result, clean])["verdict"] == result["verdict"]
    assert correctness.worst([clean, result, clean])["calls"] == 3
    assert "error" not in correctness.worst([clean, result, clean])


def test_calls_that_did_not_end_under_the_sanitizer_are_an_error() -> None:
    late = correctness.verdict("", [CALL, {"stopped": "after 400 seconds", "late": True}], 2)
    assert "after 400 seconds" in late["error"]
    failed = correctness.verdict("", [{"key": "fof", "wrong": {"fof": "RuntimeError: misaligned"}}], 1)
    assert correctness.worst([failed, late])["error"] == "RuntimeError: misaligned"


@pytest.mark.slow
def test_recorded_calls_run_in_the_stage_of_the_sanitizers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correctness, "sanitizer", lambda: None)
    session = replace(session_in(tmp_path), small=True)
    correctness.sanitize(session)
    stage = session.record.stage("sanitize")
    assert all(result["calls"] > 110 and "error" not in result for result in stage.values())


def test_sanitizers_include_the_check_of_uninitialized_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correctness, "sanitizer", lambda: None)
    session = session_in(tmp_path, "cuda")
    correctness.sanitize(session)
    stage = session.record.stage("sanitize")
    assert "initcheck" in stage


def test_truncated_suite_is_summarised() -> None:
    lines = [
        {"test": "a", "outcome": "failed", "text": "wrong", "seconds": 1.0},
        {"test": "b", "outcome": "skipped", "text": "needs 4 devices", "seconds": 0.0},
        {"test": "a", "outcome": "passed", "text": "", "seconds": 2.0},
    ]
    text = "\n".join(map(json.dumps, lines)) + '\n{"test": "c", "outc'
    result = correctness.summary(correctness.outcomes(text))
    assert (result["passed"], result["failed"], result["skipped"]) == (1, 0, 1)
    assert result["why skipped"] == {"needs 4 devices": 1}


# Processes and the record


def run_lines(tmp_path: Path, code: str, seconds: float = 60) -> list[dict[str, Any]]:
    session = session_in(tmp_path)
    return list(session.findings([sys.executable, "-c", code], session.environment(), seconds))


def session_in(folder: Path, platform: str = "cpu") -> Session:
    return Session(Record(folder / "found.json"), platform, work=folder, data=folder, source="now")


def test_findings_are_lines_and_other_output_goes_to_the_log(tmp_path: Path) -> None:
    code = "print('{\"key\": 1}'); print('hello')"
    assert run_lines(tmp_path, code) == [{"key": 1}]
    assert "hello" in (tmp_path / "log").read_text()


def test_failing_process_reports_the_reason(tmp_path: Path) -> None:
    (last,) = run_lines(tmp_path, "raise SystemExit('no such thing')")
    assert last["stopped"] == "exit status 1"
    assert "no such thing" in last["log"]


def test_process_that_exceeds_its_time_is_stopped_and_keeps_results(tmp_path: Path) -> None:
    code = "import time; print('{\"key\": 1}', flush=True); time.sleep(60)"
    first, last = run_lines(tmp_path, code, seconds=1)
    assert first == {"key": 1}
    assert last["late"]


def test_peer_imports_no_other_library_of_the_same_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other" / "jztree").mkdir(parents=True)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'other'}:{tmp_path / 'tools'}")
    monkeypatch.setenv("XLA_FLAGS", "--anything")
    environment = session_in(tmp_path, "cuda").environment(tmp_path / "site")
    assert environment["PYTHONPATH"].split(":") == [str(CHECKS), str(tmp_path / "site"), str(tmp_path / "tools")]
    assert environment["JAX_PLATFORMS"] == "cuda,cpu"
    assert "XLA_FLAGS" not in environment


def test_flags_reach_every_process_and_separate_the_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JZTREE_COMMAND_BUFFERS", "0")
    selected = check.parse(options(tmp_path, "--xla-flags=--xla_gpu_enable_command_buffer="))
    session = check.open_session(selected, set())
    assert session.environment()["XLA_FLAGS"] == "--xla_gpu_enable_command_buffer="
    assert "JZTREE_COMMAND_BUFFERS" not in session.environment()
    assert session.source != check.open_session(check.parse(options(tmp_path)), set()).source


def test_headline_cases_are_timed_with_and_without_command_buffers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, started = session_in(tmp_path), []

    def collect(stage: str, command: list[str], *_: Any) -> None:
        started.append((stage, _[-1], json.loads(command[-1])["sample"]["n"]))

    monkeypatch.setattr(session, "collect", collect)
    monkeypatch.setattr(timing, "make_samples", lambda _: None)
    monkeypatch.setattr(samples.Sample, "is_there", lambda *_: True)
    monkeypatch.setattr(timing, "home", lambda: tmp_path)
    session.stages, session.words = {"time", "buffers"}, ["knn uniform", "labels uniform 1e7"]
    timing.run(session)
    with_and_without = [("time", {}), ("buffers", {"JZTREE_COMMAND_BUFFERS": "0"})]
    for n in (10**6, 10**7):
        assert [(stage, dict(variables)) for stage, variables, of in started if of == n][:2] == with_and_without
    assert [stage for stage, _, n in started if n == 10**8] == ["time"]


def test_record_keeps_valid_results(tmp_path: Path) -> None:
    record = Record(tmp_path / "found.json")
    record.put("time", "a", "now", {"seconds": 1.0})
    record.put("time", "b", "now", {"error": "no"})
    record.put("test", "suite", "now", {"complete": False})
    again = Record(tmp_path / "found.json")
    assert again.has("time", "a", "now")
    assert not again.has("time", "a", "after an edit")
    assert not again.has("time", "b", "now")
    assert not again.has("test", "suite", "now")
    again.forget("time")
    assert not again.has("time", "a", "now")


def test_table_with_a_peer(tmp_path: Path) -> None:
    record = Record(tmp_path / "found.json")
    record.data |= {"date": "today", "source": "now", "machine": report.machine("cpu", "abc")}
    key, digest = "knn uniform 2e3 k=8 open", {"finite": True, "sum of radii": 1.0}
    record.put("time", key, "now", {"seconds": 0.001, "runs": 11, "peak_bytes": 2 * 10**9, "digest": digest})
    record.put("peers", f"published: {key}", "1.1.0", {"seconds": 0.003, "runs": 11, "digest": digest})
    record.put("buffers", f"unrecorded: {key}", "now", {"seconds": 0.002, "runs": 11, "digest": digest})
    record.put("floor", "rates", "now", {"copy bytes per second": 1e12, "instructions per second": 1e13})
    (row,) = [line for line in report.markdown(record, True).splitlines() if line.startswith(f"| {key}")]
    assert [cell.strip() for cell in row.split("|")[2:6]] == ["1", "2", "3", "3"]
    assert row.endswith("| 2 |  | yes |")


def test_architectures_are_those_of_the_gpu_or_set_by_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDAARCHS", raising=False)
    monkeypatch.setattr(building, "ask", lambda *_: "9.0\n9.0")
    assert building.architectures() == "90"
    monkeypatch.setattr(building, "ask", lambda *_: "")
    assert building.architectures() == "native"
    monkeypatch.setenv("CUDAARCHS", "80;90")
    assert building.architectures() == "80;90"
