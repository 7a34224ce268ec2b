"""One JSON file of everything that was found, written anew after each finding: a run may be cut off at any time."""

import datetime
import hashlib
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def home() -> Path:
    """The folder from which `jztree` is imported: this checkout once it is built there, else where it is installed."""
    spec = None if (ROOT / "jztree" / "lib").is_dir() else importlib.util.find_spec("jztree")
    return ROOT if spec is None or spec.origin is None else Path(spec.origin).parents[1]


def fingerprint(*folders: str) -> str:
    """Twelve hexadecimal digits that change with any source in these folders; a commit need not be known."""
    digest = hashlib.sha256()
    paths = sorted(path for folder in folders for path in (ROOT / folder).rglob("*"))
    for path in paths:
        if path.suffix in (".py", ".cu", ".cuh", ".h", ".cc", ".txt") and "lib" not in path.parts:
            digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]


class Record:
    """Findings by stage and key. Each holds the fingerprint of what it was found with, and counts only for that."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"stages": {}}

    def has(self, stage: str, key: str, source: str) -> bool:
        """Whether there is a finding for this source that is complete and no error of ours."""
        entry = self.data["stages"].get(stage, {}).get(key)
        return entry is not None and entry["source"] == source and entry.get("complete", True) and "error" not in entry

    def put(self, stage: str, key: str, source: str, finding: dict[str, Any]) -> None:
        at = datetime.datetime.now().isoformat(timespec="seconds")
        self.data["stages"].setdefault(stage, {})[key] = {"source": source, "at": at} | finding
        self.save()

    def save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(self.data, indent=1) + "\n")
        os.replace(partial, self.path)

    def forget(self, stage: str) -> None:
        self.data["stages"].pop(stage, None)

    def stage(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.data["stages"].get(name, {})
        return found
