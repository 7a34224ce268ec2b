"""The figures in the documentation agree with the records in ``checks/results``.

`TABLES` names the record of each table of the pages with measurements, and the place of each cell in it. `SENTENCES`
does the same for figures in prose. A figure that disagrees with its record fails, and so do a table and, on some pages,
a measured time or ratio in prose without an entry.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.fast

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "checks/results"
Row = dict[str, str]
Values = dict[str, float]

# Tables without measurements, on pages with measurements.
OTHER_TABLES = {"docs/gpu.md": {"", "step"}}
MEASURED = r"[\d.,]+ (?:ms|s|seconds|minutes|times)\b"


def records(name: str) -> list[Any]:
    """Return the lines of a record with one JSON object per line, or the object of a JSON file."""
    text = (RECORDS / name).read_text()
    return [json.loads(line) for line in text.splitlines()] if name.endswith("l") else [json.loads(text)]


def at(record: Any, path: str) -> Any:
    """Return the value at keys that are separated by slashes."""
    for key in path.split("/"):
        record = record[int(key) if isinstance(record, list) else key]
    return record


def number(text: str) -> float:
    return float(text.replace(",", ""))


def agrees(text: str, value: float) -> bool:
    """Return whether ``text`` is ``value``, rounded to the digits of the text; of integers, the first three count."""
    digits = text.replace(",", "").lstrip("0.")
    unit = 10.0 ** (-len(text.partition(".")[2]) if "." in text else max(len(digits) - 3, 0))
    return abs(number(text) - value) <= 0.5001 * unit


def tables(page: str) -> Iterator[tuple[str, list[Row]]]:
    """Yield the first heading of each table of a page, and its rows as text by heading."""
    for block in re.findall(r"(?:^\|.*\n)+", (ROOT / page).read_text(), re.MULTILINE):
        heads, _, *rows = [[cell.strip(" `") for cell in line.strip("|\n").split("|")] for line in block.splitlines()]
        yield heads[0], [dict(zip(heads, row, strict=False)) for row in rows]


def sizes(text: str) -> set[float]:
    """Return the numbers of particles in the name of a case."""
    return {size for size in map(number, re.findall(r"\d[\d.,]*(?:e\+?\d+)?", text)) if size >= 10_000}


def peers(row: Row) -> Values:
    """Return recorded times and ratio of the case that the row shows, or of one of the same size."""
    cases = [
        {"jztree": case["seconds"]["jztree"], "other library": case["seconds"][case["peer"]]} | {"ratio": case["ratio"]}
        for record in records("against_peers.jsonl")
        for case in record["table"]
        if "ratio" in case and sizes(row["seconds"]) <= sizes(case["case"])
    ]
    same = [case for case in cases if all(agrees(figure(row[head]), value) for head, value in case.items())]
    return (same or cases or [{}])[0]


def figure(cell: str) -> str:
    """Return the number of a cell such as ``0.029 s``, ``SciPy 13.2`` or ``ghosts 15.5 %``; empty without one."""
    result = re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?!\w)", cell)
    return result[-1] if result else ""


DEVICES = {
    "sort in z-order": "zsort",
    "kNN, k=8, results sent home": "knn",
    "labels, b=0.2": "labels b=0.2",
    "labels, b=0.7": "labels b=0.7",
    "FoF with catalogue, b=0.2": "catalogue b=0.2",
    "FoF with catalogue, b=0.7": "catalogue b=0.7",
}


def devices(row: Row) -> Values:
    (record,) = records("multi_device_2026-11-25_without_avx512.json")
    name = DEVICES[row["elapsed, over one device"]]
    cases = {"1e6": record["cases"][0]["stages"], "4e6": record["cases"][1]["stages"]}
    values = {f"{size}, random order": stages[name]["ratio"] for size, stages in cases.items()}
    values |= {
        f"{size}, z-order": stages[f"{name}, sorted"]["ratio"]
        for size, stages in cases.items()
        if f"{name}, sorted" in stages
    }
    stage = cases["1e6"][name]
    counts = {"ghosts": "rows.ghosts", "results": "rows.results", "to group order": "rows.groups"}
    for words, key in counts.items():
        sent = re.search(rf"{words} ([\d.]+) %", row["rows sent, after the sort"])
        assert not sent or agrees(sent[1], stage["counts"][key] / 1e4), row
    return values


def gpu_key(call: str, points: str) -> str:
    """Return the name of a call such as ``kNN, k=8, periodic`` in the record of the H100."""
    if call.startswith("friends-of-friends"):
        return f"labels uniform {points} b=0.2 periodic"
    k = re.findall(r"k=\d+", call)[0]
    separate = "separate queries" in call
    return f"query uniform {points} {k} open" if separate else f"knn uniform {points} {k} periodic"


def gpu_calls(row: Row) -> Values:
    (record,) = records("gpu_h100_2026-11-27.json")
    key = gpu_key(row["call"], row["points"])
    ours = 1e3 * at(record, "stages/time")[key]["seconds"]
    published = at(record, "stages/peers").get(f"published: {key}")
    values = {"time, ms": ours}
    if published is not None:
        peer = 1e3 * published["seconds"]
        values |= {"jztree 1.1.0, ms": peer, "ratio": peer / ours}
    return values


# By page and, in the order of the page, the first heading of a table and the recorded values of one of its rows.
TABLES: dict[str, list[tuple[str, Callable[[Row], Values]]]] = {
    "docs/performance.md": [("seconds", peers), ("seconds", peers), ("elapsed, over one device", devices)],
    "docs/gpu.md": [("call", gpu_calls)],
}


@pytest.mark.parametrize("page", TABLES)
def test_figures_of_tables_are_recorded(page: str) -> None:
    shown = [(head, rows) for head, rows in tables(page) if head not in OTHER_TABLES.get(page, ())]
    assert [head for head, _ in shown] == [head for head, _ in TABLES[page]]
    for (head, rows), (_, values_of) in zip(shown, TABLES[page], strict=True):
        for row in rows:
            values = values_of(row)
            for name, cell in row.items():
                if name != head and figure(cell) and name != "rows sent, after the sort":
                    assert name in values, f"{page}: {row[head]}, {name}: {cell} has no record"
                    assert agrees(figure(cell), values[name]), (
                        f"{page}: {row[head]}, {name}: {cell}, not {values[name]}"
                    )


def recorded(name: str, *paths: str, factor: float = 1) -> Callable[[], list[float]]:
    """Return a function that reads values of a record; `at` explains the paths."""
    return lambda: [factor * float(at(records(name), path)) for path in paths]


def sweep(what: str, library: str, **options: int) -> float:
    """Return the recorded seconds of a library in the sweeps over sizes and threads."""
    (seconds,) = (
        entry["seconds"]
        for entry in records("against_peers.jsonl")[0]["sweeps"]
        if entry["what"] == what and entry["library"] == library and options.items() <= entry.items()
    )
    return float(seconds)


def over_jztree(library: str) -> float:
    return sweep("kNN, k=8", library, n=10**6) / sweep("kNN, k=8", "jztree", n=10**6)


def two_threads_over_one() -> list[float]:
    searches = ("kNN, n=1e6, k=8", "FoF, n=1e6, b=0.2")
    return [sweep(what, "jztree", threads=2) / sweep(what, "jztree", threads=1) for what in searches]


def of_most_ranks() -> list[float]:
    costs = records("many_ranks_2026-11-25.json")[0]["measured"][-1]
    return [sum(costs[part].values()) for part in ("alone_ms", "with_others_ms", "collectives_ms")]


def range_of(line: int, *texts: str) -> list[float]:
    """Return the least and the largest ratio of the cases with these texts in a line of the record of peers."""
    table = records("against_peers.jsonl")[line]["table"]
    ratios = [case["ratio"] for case in table if all(text in case["case"] for text in texts)]
    return [min(ratios), max(ratios)]


def case(line: int, name: str, key: str = "ratio") -> float:
    """Return a value of the first case of a name in a line of the record of peers."""
    return float(next(row[key] for row in records("against_peers.jsonl")[line]["table"] if row["case"] == name))


PEERS, ONE_GPU, TESTS_ON_GPU = "against_peers.jsonl", "gpu_h100_2026-11-27.json", "gpu_h100_2026-11-27_tests.json"
INSTALL = "install_2026-11-28.json"
SMALL, TIME = "2/small", "0/stages/time"
DIMENSIONS = ("1D", "2D", "4D", "6D", "8D")
CALLS = ("knn", "counts within r", "pairs within r", "labels", "lists, plain call", "pairs, plain call")
# By page: a sentence, with a group for each of its figures, and their recorded values.
SENTENCES: dict[str, list[tuple[str, Callable[[], list[float]]]]] = {
    "README.md": [
        (r"Compiles for (\S+) minutes on two cores", recorded(INSTALL, "0/cpu minutes over two cores")),
        (
            r"nanoflann takes (\S+) times as long as `jztree` .* kdcount (\S+) times as long to find their groups",
            lambda: [case(2, "kNN 1e+06, k=8"), case(2, "FoF 1e+06, b=0.2")],
        ),
        (r"SciPy took (\S+) times and pykdtree (\S+) times", lambda: [over_jztree("scipy"), over_jztree("pykdtree")]),
        (
            r"million points takes (\S+) ms and friends-of-friends of ten million (\S+) ms",
            recorded(
                ONE_GPU,
                f"{TIME}/knn uniform 1e6 k=8 periodic/seconds",
                f"{TIME}/labels uniform 1e7 b=0.2 periodic/seconds",
                factor=1e3,
            ),
        ),
    ],
    "docs/command_line.md": [
        (r"the CPU time was (\S+) times the CPU time", recorded("large.jsonl", "1/CPU seconds over those in memory"))
    ],
    "docs/installation.md": [
        (r"this takes about (\S+) minutes, without output", recorded(INSTALL, "0/cpu minutes over two cores"))
    ],
    "docs/performance.md": [
        (
            r"takes (\S+) ms for neighbours and (\S+) ms for friends",
            recorded(PEERS, f"{SMALL}/call on 1000 points, kNN", f"{SMALL}/call on 1000 points, FoF", factor=1e3),
        ),
        (
            r"lists and pair counts (\S+), counts within a radius (\S+), `pairs_within` (\S+), and labels (\S+)\. .* "
            r"need (\S+) for lists and (\S+) for pairs",
            recorded("one_device_2026-11-25.json", *(f"0/peak memory over positions/{call}" for call in CALLS)),
        ),
        (
            r"compiling takes (\S+) s for `knn` and (\S+) s for",
            recorded(PEERS, f"{SMALL}/compile kNN", f"{SMALL}/compile fof_and_catalogue"),
        ),
        (r"kNN and friends-of-friends take (\S+) times as long as with one", lambda: two_threads_over_one()[:1]),
        (r"kNN and friends-of-friends take (\S+) times as long as with one", lambda: two_threads_over_one()[1:]),
        (r"the ratios of their six rows are (\S+) to ([\d.]+\d)", lambda: range_of(6, "float64")),
        (
            r"in float32 are (\S+) to (\S+) for the clustered box, and (\S+) to (\S+) for the survey",
            lambda: range_of(9, "a clustered box", "float32") + range_of(9, "a survey", "float32"),
        ),
        (r"With AVX2, nanoflann takes (\S+) to (\S+) times as long for kNN", lambda: range_of(10, "1e+05")),
        (r"spends (\S+) ms on its own kNN with k=8, (\S+) ms on .* and (\S+) ms on messages", of_most_ranks),
    ],
    "docs/linking_lengths.md": [
        (
            r"The function takes (\S+) to (\S+) times as long as the search for the neighbours alone",
            lambda: [1 / case(4, f"density peaks 1e+06, k={k}") for k in (16, 8)],
        )
    ],
    "docs/gpu.md": [
        (
            r"neighbours (\S+) ms, their lists (\S+) ms, pair counts .* box (\S+) ms, kernel sums (\S+) ms, "
            r"DBSCAN (\S+) ms, and the minimum spanning tree (\S+) ms",
            recorded(
                TESTS_ON_GPU,
                *(f"{TIME}/{name}/0" for name in ("counts", "lists", "pair counts", "kernel sums", "dbscan", "mst")),
            ),
        ),
        (r"Friends-of-friends of 1,000 points takes (\S+) ms", recorded(TESTS_ON_GPU, f"{TIME}/fof n=1000/0")),
        (
            r"k=8 takes (\S+) ms in 1D, (\S+) in 2D, (\S+) in 4D, (\S+) in 6D and (\S+) in 8D",
            recorded(TESTS_ON_GPU, *(f"{TIME}/knn k=8 {dims}/0" for dims in DIMENSIONS)),
        ),
    ],
}


def prose(page: str) -> str:
    """Return a page in one line, with shell commands, but without tables and other code."""
    text = re.sub(r"^\|.*\n", "", (ROOT / page).read_text(), flags=re.MULTILINE)
    code = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
    return " ".join(code.sub(lambda block: block[2] if block[1] == "sh" else "", text).split())


@pytest.mark.parametrize(
    ("page", "sentence", "values"), [(page, *entry) for page in SENTENCES for entry in SENTENCES[page]]
)
def test_figures_of_sentences_are_recorded(page: str, sentence: str, values: Callable[[], list[float]]) -> None:
    shown = re.search(sentence, prose(page))
    assert shown, f"{page} does not have the sentence"
    for text, value in zip(shown.groups(), values(), strict=True):
        assert agrees(text.rstrip(",."), value), f"{page}: {shown[0]}, not {value}"


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/performance.md"])
def test_measured_times_and_ratios_in_prose_have_records(page: str) -> None:
    text = prose(page)
    for sentence, _ in SENTENCES.get(page, ()):
        text = re.sub(sentence, "", text)
    assert re.findall(MEASURED, text) == []


@pytest.mark.parametrize("path", sorted(RECORDS.iterdir()), ids=lambda path: path.name)
def test_records_name_date_commit_and_machine(path: Path) -> None:
    for record in records(path.name):
        machine = record["machine"]
        assert record.get("date") or machine["date"]
        assert machine.get("commit") or record.get("commits")
        assert machine["cpu"]


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("0.56", 0.5637, True),
        ("0.52", 0.5637, False),
        ("4.2", 4.675, False),
        ("4.68", 4.675, True),
        ("1,060", 1058.5, True),
        ("1,050", 1058.5, False),
        ("139", 138.78, True),
        ("140", 138.78, False),
        ("16", 16.1, True),
    ],
)
def test_figures_agree_to_the_digits_shown(text: str, value: float, expected: bool) -> None:
    assert agrees(text, value) == expected
