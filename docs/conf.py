"""Sphinx configuration: pages in MyST, the API reference from the docstrings, no network access.

Docstrings are in Google style, which `sphinx.ext.napoleon` renders. A name in single backticks is a reference; an
unresolved reference fails the build.
"""

import contextlib
import pkgutil
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
    "notebook",
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
nitpick_ignore_regex = [("py:.*", r"(jax|numpy|matplotlib|h5py|pandas|astropy|sklearn)(\..*)?|PartitionSpec")]
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


def setup(app: Any) -> None:
    """Connect the extension; Sphinx calls this."""
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
