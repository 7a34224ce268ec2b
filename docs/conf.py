"""Sphinx configuration: pages in MyST, the API reference from the docstrings, no network access.

Docstrings are in Google style, which `sphinx.ext.napoleon` renders. `describe_arguments` renders those that still have
lines ``name: meaning`` without a heading such as ``Args:``. A name in single backticks is a reference; an unresolved
reference fails the build.
"""

import contextlib
import inspect
import itertools
import pkgutil
import re
import sys
from pathlib import Path
from typing import Any

from sphinx.util.nodes import make_refnode

sys.path.insert(0, str(Path(__file__).parent))

project = "jztree"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "catalogue_columns",
    "gallery_pictures",
]
exclude_patterns = ["drawings", "gallery"]
html_theme = "furo"
html_static_path = ["static"]
html_extra_path = ["gallery/halos_3d.html"]
html_css_files = ["width.css"]
html_title = "jztree"
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False

myst_enable_extensions = ["dollarmath", "fieldlist"]
myst_heading_anchors = 3
# Pages use the language "slurm", which the highlighter does not have.
highlight_language = "text"

default_role = "py:obj"
nitpicky = True
# References to other projects are not resolved, because the build does not use the network.
nitpick_ignore_regex = [("py:.*", r"(jax|numpy|matplotlib|h5py|pandas|astropy)(\..*)?|PartitionSpec")]
autodoc_mock_imports = ["torch"]  # large, and not needed here
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False  # types are in the signature
napoleon_custom_sections = [("Attributes", "params_style")]  # fields of classes, as a list like that of arguments
maximum_signature_line_length = 88
add_module_names = False
python_display_short_literal_types = True
toc_object_entries_show_parents = "hide"

_ARGUMENT = re.compile(r"((?:[A-Za-z_]\w*)(?:, [A-Za-z_]\w*)*): +(\S.*)")
_FURTHER = re.compile(r"(?<=\.) ((?:[A-Za-z_]\w*)(?:, [A-Za-z_]\w*)*): ")
_WORD = re.compile(r"(``[^`]+``): +\S")


def setup(app: Any) -> None:
    """Connect the extension; Sphinx calls this."""
    app.connect("autodoc-process-docstring", describe_arguments)
    app.connect("autodoc-skip-member", leave_out_fields)
    app.connect("missing-reference", find_reference)


def leave_out_fields(_app: Any, _what: str, _name: str, obj: Any, _skip: bool, _options: Any) -> bool | None:
    """Leave out the fields of named tuples; the docstring of the class describes them."""
    return True if str(getattr(obj, "__doc__", "")).startswith("Alias for field number") else None


def find_reference(app: Any, env: Any, node: Any, text: Any) -> Any:
    """Resolve short names of documented objects; return plain text for objects that exist but have no page."""
    target = node["reftarget"]
    objects = env.get_domain("py").objects
    # The name of a class in its defining module is an alias of its documented name.
    found = [name for name, one in objects.items() if name.endswith(f".{target}") and not one.aliased]
    if len(found) == 1:
        return make_refnode(app.builder, node["refdoc"], objects[found[0]].docname, objects[found[0]].node_id, text)
    return text if exists(target, node.get("py:module")) else None


def exists(name: str, module: str | None) -> bool:
    """Return whether ``name`` can be imported, either directly or from ``module``."""
    for path in (name, f"{module}.{name}"):
        with contextlib.suppress(ImportError, AttributeError, ValueError):
            return pkgutil.resolve_name(path) is not None
    return False


def describe_arguments(_app: Any, what: str, _name: str, obj: Any, _options: Any, lines: list[str]) -> None:
    """Turn ``name: meaning`` lines into a definition list, and set off the "Returns" and "Raises" parts."""
    lines[:] = with_definitions(lines, names_of(obj), any_name=what in ("class", "exception"))


def names_of(obj: Any) -> set[str]:
    """Return the names of the arguments of a function, or of the fields of a class."""
    names: set[str] = set()
    if isinstance(obj, type):  # not for a module, which may have a variable called _fields
        names = set(getattr(obj, "__dataclass_fields__", ())) | set(getattr(obj, "_fields", ()))
    try:
        return names | set(inspect.signature(obj).parameters)
    except (TypeError, ValueError):
        return names


def with_definitions(lines: list[str], known: set[str], any_name: bool) -> list[str]:
    """Return the lines of a docstring as reStructuredText.

    known: names that may be defined. any_name: any other name at the beginning of a paragraph may be defined too, for
        attributes.
    """
    made: list[str] = []
    inside = False  # a definition, which continues while lines are indented
    for line in itertools.chain.from_iterable(one_definition_a_line(line, known) for line in lines):
        match = _ARGUMENT.fullmatch(line)
        # Returned values may have names too; a colon announces them.
        announced = inside or (made and made[-1].endswith(":")) or (any_name and made and not made[-1])
        if match and (announced or set(match[1].split(", ")) <= known):
            term = ", ".join(f"**{name}**" for name in match[1].split(", "))
            made += ["", term, f"    {match[2]}"]
            inside = True
        elif inside and line.startswith(" "):
            text = line.strip()
            made += ["", f"    * {text}"] if _WORD.match(text) else [_continued(made[-1], text)]
        else:
            starts = line.startswith(("Returns ", "Raises "))
            made += [""] if inside or starts else []
            made.append(re.sub(r"^(Returns|Raises) ", r"**\1** ", line))
            inside = False
    return made


def one_definition_a_line(line: str, known: set[str]) -> list[str]:
    """Split a line with several definitions, such as ``a: this. b: that.``, into one line per definition."""
    cuts = [m.start() for m in _FURTHER.finditer(line) if _ARGUMENT.fullmatch(line) and set(m[1].split(", ")) <= known]
    ends = [*cuts, len(line)]
    return [line[start:end].strip() if start else line[:end] for start, end in zip([0, *cuts], ends, strict=True)]


def _continued(above: str, text: str) -> str:
    """Return ``text`` at the indentation of the item that the line ``above`` belongs to."""
    bullet = above.startswith(("    * ", "      "))
    return ("      " if bullet else "    ") + text
