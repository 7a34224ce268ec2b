"""Tables made from a record."""

import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .calls import CALLS
from .cases import Call, Case, listed
from .session import ROOT, Record, Session, ask
from .timing import name_in_record, rates

_HEAD = (
    "| what | ours, ms | no command buffers, ms "
    "| published, ms | ratio | jaxkd, ms | floor, ms | over floor | peak, GB | published, GB | same |"
)
_COUNTED = 8  # arithmetic instructions of a squared distance in 3 dimensions: 3 differences, 3 products, 2 sums


def save(session: Session) -> str:
    """Write the page of the findings so far, and return it."""
    page = markdown(session.record, session.small)
    session.record.path.with_suffix(".md").write_text(page)
    return page


def write(session: Session) -> None:
    """Run the stage."""
    print(save(session))


def machine(platform_name: str, commit: str) -> dict[str, Any]:
    """Return the properties of the machine that affect the results."""
    gpus = ask("nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm", "--format=csv,noheader")
    versions = "import jax, jaxlib, numpy; print(jax.__version__, jaxlib.__version__, numpy.__version__)"
    words = ask(sys.executable, "-P", "-c", versions).split()
    return {
        "gpu": gpus if platform_name == "cuda" else "none: a test of the script on a CPU",
        "nvcc": (ask("nvcc", "--version").splitlines() or [""])[-1],
        "cpu": _cpu(),
        "python": platform.python_version(),
        "versions": dict(zip(("jax", "jaxlib", "numpy"), words, strict=False)),
        "commit": commit or ask("git", "-C", str(ROOT), "describe", "--always", "--dirty"),
    }


def name_of_gpu() -> str:
    """Return the name of the GPU for a file name: h200."""
    name = ask("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").split("\n")[0]
    return name.replace("NVIDIA", "").strip().lower().replace(" ", "_")


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if "model name" in line), platform.processor())


def markdown(record: Record, small: bool) -> str:
    """Return the whole report on one page."""
    parts = (_title(record), _correctness(record), _experiments(record), _timings(record, small), _ends(record))
    return "\n".join(line for part in parts for line in part) + "\n"


def _title(record: Record) -> Iterator[str]:
    about = record.data["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    yield f"# {about['gpu'] or 'no GPU'}\n\n{versions}, {about['nvcc'] or 'no nvcc'}, {about['cpu']}."
    yield f"Sources {record.data['source']}, commit {about['commit'] or 'unknown'}; {record.data['date']}.\n"
    built = record.stage("build").get("libraries", {})
    if "CUDA seconds" in built:
        yield (
            f"Building for {built['architectures']}: {built['CPU seconds']:.0f} s for the CPU, "
            f"{built['CUDA seconds']:.0f} s for the GPU at the same time, {built['megabytes']:.1f} MB.\n"
        )


def _correctness(record: Record) -> Iterator[str]:
    suite = record.stage("test").get("suite", {})
    if "passed" in suite:
        unfinished = "" if suite["complete"] else " (interrupted)"
        yield f"Tests: {suite['passed']} passed, {suite['failed']} failed, {suite['skipped']} skipped{unfinished}.\n"
        yield from (
            f"* {failure['test']}: {failure['text'].splitlines()[0][:200]}"
            for failure in suite["failures"]
            if failure["text"]
        )
    for stage, noun in (("smoke", "calls of kernels"), ("compare", "inputs")):
        if compared := record.stage(stage):
            wrong = {key: finding["wrong"] for key, finding in compared.items() if finding.get("wrong")}
            agree = sum("error" not in finding and not finding["wrong"] for finding in compared.values())
            yield f"\nGPU and CPU agree on {agree} of {len(compared)} {noun}.\n"
            yield from (f"* {key}: {name}: {text}" for key, finding in wrong.items() for name, text in finding.items())
    for tool, result in record.stage("sanitize").items():
        yield f"\n{tool}: {result.get('left out') or result.get('verdict')}\n"


def _experiments(record: Record) -> Iterator[str]:
    """Yield a line for each claim and each timed line of the experiments."""
    words = {True: "as expected", False: "NOT as expected", None: "not measured"}
    findings = record.stage("experiments")
    for name, finding in findings.items():
        if claims := finding.get("claims"):
            yield f"\nExperiment {name}:\n"
            yield from (f"* {words[outcome]}: {text}" for text, outcome in claims.items())
    if seconds := {key: finding["seconds"] for key, finding in findings.items() if "seconds" in finding}:
        yield "\n| experiment | ms |\n|---|---|"
        yield from (f"| {key} | {_number(value, 1e3)} |" for key, value in seconds.items())
    for key, finding in findings.items():
        if "instructions" in finding:
            metrics = (f"{name} {value}" for name, value in finding.items() if name not in ("source", "at"))
            yield f"\n{key}: {', '.join(metrics)}"


def _timings(record: Record, small: bool) -> Iterator[str]:
    if not record.stage("time"):
        return
    best = rates(record)
    if best:
        copy, instructions = best["copy bytes per second"] / 1e12, best["instructions per second"] / 1e12
        yield f"\nMeasured rates: copy {copy:.2f} TB/s, {instructions:.1f}e12 float32 instructions/s.\n"
    yield from (_HEAD, "|---" * (_HEAD.count("|") - 1) + "|")
    for case in sorted(listed(small), key=lambda case: (case.calls[0].what, case.sample.kind, case.sample.n)):
        for call in case.calls:
            ours = record.stage("time").get(call.key(case.sample), {})
            if call.what in CALLS and "seconds" in ours:
                yield _row(record, case, call, ours, best)


def _row(record: Record, case: Case, call: Call, ours: dict[str, Any], best: dict[str, float]) -> str:
    peers = record.stage("peers")
    published, jaxkd = (peers.get(name_in_record(library, call, case), {}) for library in ("published", "jaxkd"))
    # The floor is that of a call whose queries are all particles.
    has_record = best and "queries" not in call.options
    smallest = seconds_at_least(best, call, case.sample.n, _distances(record, case, call)) if has_record else None
    remarks = f" ({ours['runs']} runs)" if ours["runs"] < 10 else ""
    remarks += " (earlier sources)" if ours["source"] != record.data["source"] else ""
    cells = [
        call.key(case.sample) + remarks,
        _number(ours["seconds"], 1e3),
        _number(record.stage("buffers").get(name_in_record("unrecorded", call, case), {}).get("seconds"), 1e3),
        "failed" if "error" in published else _number(published.get("seconds"), 1e3),
        _number(published["seconds"] / ours["seconds"] if "seconds" in published else None),
        _number(jaxkd.get("seconds"), 1e3),
        _number(smallest, 1e3),
        _number(ours["seconds"] / smallest if smallest else None),
        _number(ours.get("peak_bytes"), 1e-9),
        _number(published.get("peak_bytes"), 1e-9),
        _agreement(ours["digest"], published.get("digest")),
    ]
    return "| " + " | ".join(cells) + " |"


def seconds_at_least(best: dict[str, float], call: Call, n: int, distances: float) -> float:
    """Return the larger of the times for memory traffic and arithmetic. distances: required number per query."""
    moving = CALLS[call.what].bytes_to_move(n, call.options.get("k", 0)) / best["copy bytes per second"]
    return max(moving, n * distances * _COUNTED / best["instructions per second"])


def _distances(record: Record, case: Case, call: Call) -> float:
    """Return the required distances per query. They are known for one k of large samples, and grow with k."""
    of_kind = f"distances {case.sample.kind}"
    counted = [
        timing.get("distances a query", 0.0) for key, timing in record.stage("time").items() if key.startswith(of_kind)
    ]
    return counted[-1] if counted and call.what == "knn" and call.options["k"] == 16 else 0.0


def _agreement(ours: dict[str, Any], reference: dict[str, Any] | None) -> str:
    """Return whether digests agree: sums to 1e-5, numbers of groups exactly."""
    if reference is None:
        return ""
    pairs = [(float(ours[name]), float(reference[name])) for name in ours if name in reference]
    worst = max((abs(a - b) / max(abs(a), abs(b)) for a, b in pairs if a != b), default=0.0)
    return "yes" if worst == 0 or ("sum of radii" in ours and worst < 1e-5) else f"no: {worst:.1g}"


def _number(value: float | None, scale: float = 1.0) -> str:
    return "" if value is None else f"{value * scale:.3g}"


def _ends(record: Record) -> Iterator[str]:
    """Yield the table of kernels, and all errors."""
    result = {key: timing["stages"] for key, timing in record.stage("time").items() if "stages" in timing}
    if result:
        yield "\n| kernel, ms | " + " | ".join(key.removeprefix("stages ") for key in result) + " |"
        yield "|---" * (len(result) + 1) + "|"
        for name in dict.fromkeys(name for stages in result.values() for name in stages):
            cells = [_number(stages.get(name, {}).get("seconds"), 1e3) for stages in result.values()]
            yield f"| {name} | " + " | ".join(cells) + " |"
    for stage, findings in record.data["stages"].items():
        for key, finding in findings.items():
            if "error" in finding:
                yield f"\n{stage}, {key}: {' '.join(str(finding['error']).split())[:600]}"
