"""Docs, docstrings and comments use few phrases that readers find hard to understand. CONTRIBUTING.md has the rule."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "jztree", "jztree_utils", "tests", "checks")
PHRASES = re.compile(
    r"\b(nobody|somebody|whoever|foretold|foretells|mends?|beside|told|tells|behind|so many|that many|whatever"
    r"|(?:come|comes|came|go|goes|went) along|(?:is|are) (?:none|no)|looked at|by (?:itself|themselves)|as it is"
    r"|(?:one|two|row|number) an? (?:query|particle|row|dimension|leaf|node|rank|device|neighbour|group|thread)"
    r"|what (?:is|are|was|has|comes|they|it|each))\b",
    re.IGNORECASE,
)
MOST = 2  # per 1,000 words


def prose_of(path: Path) -> Iterator[str]:
    """The running text of Markdown, and the docstrings and comments of code."""
    text = path.read_text()
    if path.suffix == ".md":
        yield re.sub(r"^```.*?^```|`[^`\n]*`", " ", text, flags=re.M | re.S)
        return
    if path.suffix == ".py":
        owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        yield from (ast.get_docstring(node) or "" for node in ast.walk(ast.parse(text)) if isinstance(node, owners))
    marker = "#" if path.suffix == ".py" else "//"
    yield from re.findall(rf"(?:^|\s){marker}\s(.*)$", text, re.M)


def test_hard_phrases_are_rare() -> None:
    hits: Counter[str] = Counter()
    words = 0
    suffixes = {".md", ".py", ".h", ".cc", ".cu", ".cuh"}
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in suffixes]
    for path in [*ROOT.glob("*.md"), *paths]:
        for prose in prose_of(path):
            words += len(prose.split())
            hits[str(path.relative_to(ROOT))] += len(PHRASES.findall(prose))
    assert words > 100_000
    rate = 1000 * hits.total() / words
    assert rate <= MOST, f"{rate:.1f} per 1,000 words; most of them in {hits.most_common(10)}"
