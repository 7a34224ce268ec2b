"""Few names are pronouns, participles or adverbs. CONTRIBUTING.md has the rule."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Pronouns, participles and adverbs, which do not name a quantity.
VAGUE = re.compile(
    "one|others?|each|some|same|such|these|own|mine|theirs|what|which|who|way|here|there|near|apart|at|found|given|known|"
    "unknown|told|asked|wanted|made|taken|chosen|kept|lost|left|shown|seen|dealt|shared|lacking|least|most|few|fewer|"
    "fewest|many|much|more|further|farther|farthest|rests?|whole|alike|different|even|still|early|late"
)
# The largest share of such names among all names of a folder. Lower a limit when you have removed some.
LIMITS = {"jztree": 0.0145, "jztree_utils": 0.0175, "tests": 0.021, "checks": 0.0075, "jztree/native": 0.02}
# Declared variables and arguments of C++ and CUDA, without variables of this library's types.
DECLARED = re.compile(
    r"\b(?:u?int(?:8|32|64)_t|double|float|unsigned|auto|bool|int|size_t|T|From|Value)"
    r"\s*(?:[*&]\s*)?(?:const\s+)?([a-z_]\w*)\s*(?=[=;,)\[{(:])"
)


def names(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the place and the name of each assigned variable and each argument."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node.id
            elif isinstance(node, ast.arg):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node.arg


def declared_names(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the same of C++ and CUDA."""
    for path in sorted(file for file in folder.rglob("*") if file.suffix in (".cc", ".h", ".cu", ".cuh")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for name in DECLARED.findall(line.split("//")[0]):
                yield f"{path.relative_to(ROOT)}:{number}", name


@pytest.mark.fast
@pytest.mark.parametrize("folder", LIMITS)
def test_few_names_are_vague(folder: str) -> None:
    bound = list((declared_names if folder == "jztree/native" else names)(ROOT / folder))
    vague = [f"{place}: {name}" for place, name in bound if VAGUE.fullmatch(name.strip("_"))]
    assert len(vague) <= LIMITS[folder] * len(bound), "\n".join(vague)
