"""Tables out of a record."""

import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import floor
from .building import ask
from .cases import Call, Case, listed
from .record import ROOT, Record
from .timing import name_in_record, rates

_HEAD = (
    "| what | ours, ms | published, ms | ratio | jaxkd, ms | floor, ms | over floor | peak, GB | published, GB | same |"
)


def machine(platform_name: str, commit: str) -> dict[str, Any]:
    """What results depend on besides the sources."""
    gpus = ask("nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm", "--format=csv,noheader")
    versions = "import jax, jaxlib, numpy; print(jax.__version__, jaxlib.__version__, numpy.__version__)"
    words = ask(sys.executable, "-P", "-c", versions).split()
    return {
        "gpu": gpus if platform_name == "cuda" else "none: a trial of the script on a CPU",
        "nvcc": (ask("nvcc", "--version").splitlines() or [""])[-1],
        "cpu": _cpu(),
        "python": platform.python_version(),
        "versions": dict(zip(("jax", "jaxlib", "numpy"), words, strict=False)),
        "commit": commit or ask("git", "-C", str(ROOT), "describe", "--always", "--dirty"),
    }


def name_of_gpu() -> str:
    """The name of the GPU for a file: h200."""
    name = ask("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").split("\n")[0]
    return name.replace("NVIDIA", "").strip().lower().replace(" ", "_")


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if "model name" in line), platform.processor())


def markdown(record: Record, small: bool) -> str:
    """Everything in one page."""
    parts = [_title(record), *_build(record), *_tests(record), *_compare(record), *_sanitize(record)]
    parts += [*_timings(record, small), *_stages(record), *_errors(record)]
    return "\n".join(parts) + "\n"


def _title(record: Record) -> str:
    about = record.data["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    where = about["gpu"] or "no GPU"
    lines = [f"# {where}", "", f"{versions}, {about['nvcc'] or 'no nvcc'}, {about['cpu']}."]
    lines += [f"Sources {record.data['source']}, commit {about['commit'] or 'unknown'}; {record.data['date']}.", ""]
    return "\n".join(lines)


def _build(record: Record) -> Iterator[str]:
    found = record.stage("build").get("libraries")
    if found and "CUDA seconds" in found:
        yield f"Building for {found['architectures']}: {found['CUDA seconds']:.0f} s, {found['megabytes']:.1f} MB.\n"


def _tests(record: Record) -> Iterator[str]:
    found = record.stage("test").get("suite")
    if found and "passed" in found:
        unfinished = "" if found["complete"] else " (cut off)"
        yield f"Tests: {found['passed']} passed, {found['failed']} failed, {found['skipped']} skipped{unfinished}.\n"
        yield from (f"* {one['test']}: {one['text'].splitlines()[0][:200]}" for one in found["failures"] if one["text"])


def _compare(record: Record) -> Iterator[str]:
    found = {key: one for key, one in record.stage("compare").items() if key != "all inputs"}
    if found:
        wrong = {key: one["wrong"] for key, one in found.items() if one.get("wrong")}
        yield f"\nGPU and CPU agree on {len(found) - len(wrong)} of {len(found)} inputs.\n"
        yield from (f"* {key}: {name}: {text}" for key, one in wrong.items() for name, text in one.items())


def _sanitize(record: Record) -> Iterator[str]:
    for tool, found in record.stage("sanitize").items():
        yield f"\n{tool}: {found.get('left out') or found.get('verdict')}\n"


def _timings(record: Record, small: bool) -> Iterator[str]:
    if not record.stage("time"):
        return
    best = rates(record)
    if best:
        yield (
            f"\nMeasured rates: copy {best['copy bytes per second'] / 1e12:.2f} TB/s, "
            f"{best['instructions per second'] / 1e12:.1f}e12 float32 instructions/s.\n"
        )
    yield _HEAD
    yield "|---" * (_HEAD.count("|") - 1) + "|"
    for case in sorted(listed(small), key=lambda case: (case.calls[0].what, case.sample.kind, case.sample.n)):
        for call in case.calls:
            ours = record.stage("time").get(call.key(case.sample), {})
            if call.what not in ("stages", "distances") and "seconds" in ours:
                yield _row(record, case, call, ours, best)


def _row(record: Record, case: Case, call: Call, ours: dict[str, Any], best: dict[str, float]) -> str:
    published, jaxkd = (
        record.stage("peers").get(name_in_record(library, call, case), {}) for library in ("published", "jaxkd")
    )
    least = _least(record, case, call, best)
    ratio = published["seconds"] / ours["seconds"] if "seconds" in published else None
    cells = [
        " ".join([call.key(case.sample), *_remarks(record, ours)]),
        _number(ours["seconds"], 1e3),
        "failed" if "error" in published else _number(published.get("seconds"), 1e3),
        _number(ratio),
        _number(jaxkd.get("seconds"), 1e3),
        _number(least, 1e3),
        _number(ours["seconds"] / least if least else None),
        _number(ours.get("peak_bytes"), 1e-9),
        _number(published.get("peak_bytes"), 1e-9),
        _agreement(ours["digest"], published.get("digest")),
    ]
    return "| " + " | ".join(cells) + " |"


def _remarks(record: Record, ours: dict[str, Any]) -> Iterator[str]:
    if ours["runs"] < 10:
        yield f"({ours['runs']} runs)"
    if ours["source"] != record.data["source"]:
        yield "(earlier sources)"


def _least(record: Record, case: Case, call: Call, best: dict[str, float]) -> float | None:
    """Seconds of the floor. Distances are known for one k of large samples, and grow with k."""
    if not best:
        return None
    counted = [
        one["distances a query"]
        for key, one in record.stage("time").items()
        if key.startswith(f"distances {case.sample.kind}") and "distances a query" in one
    ]
    distances = counted[-1] if counted and call.what == "knn" and call.options["k"] == 16 else 0.0
    return floor.seconds_at_least(best, call.what, case.sample.n, call.options, distances)


def _agreement(ours: dict[str, Any], theirs: dict[str, Any] | None) -> str:
    """Whether digests are the same: sums to 1e-5, numbers of groups exactly."""
    if theirs is None:
        return ""
    pairs = [(float(ours[name]), float(theirs[name])) for name in ours if name in theirs]
    if all(a == b for a, b in pairs):
        return "yes"
    worst = max(abs(a - b) / max(abs(a), abs(b)) for a, b in pairs if a != b)
    return "yes" if "sum of radii" in ours and worst < 1e-5 else f"no: {worst:.1g}"


def _number(value: float | None, scale: float = 1.0) -> str:
    return "" if value is None else f"{value * scale:.3g}"


def _stages(record: Record) -> Iterator[str]:
    found = {key: one["stages"] for key, one in record.stage("time").items() if "stages" in one}
    if found:
        yield "\n| kernel, ms | " + " | ".join(key.removeprefix("stages ") for key in found) + " |"
        yield "|---" * (len(found) + 1) + "|"
        for name in dict.fromkeys(name for one in found.values() for name in one):
            cells = [_number(one.get(name, {}).get("seconds"), 1e3) for one in found.values()]
            yield f"| {name} | " + " | ".join(cells) + " |"


def _errors(record: Record) -> Iterator[str]:
    for stage, findings in record.data["stages"].items():
        for key, found in findings.items():
            if "error" in found:
                yield f"\n{stage}, {key}: {' '.join(str(found['error']).split())[:600]}"
