"""Build the documentation as a site, with Sphinx. `nox -s docs` runs it.

The pages are Markdown for MyST, and read well without Sphinx too. The folder `api` has the pages of the API reference,
which autodoc fills with the docstrings of the code.
"""

import re
import shlex
import sys
from importlib.metadata import version as version_of
from textwrap import indent
from typing import Any

from docutils.nodes import Element, TextElement, reference
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

project = "incoming-payments"
copyright = "the authors of incoming-payments"
version = release = version_of(project)

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "sphinx_llms_txt",
    "sphinxcontrib.mermaid",
]

# --- pages ---

myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
html_theme = "furo"  # replaceable: no page and no setting depends on this theme
html_title = project
llms_txt_summary = (
    "A Python library with which a bank or a wallet is paid over Open Payments: the incoming payment resource, HTTP "
    "message signatures, GNAP tokens, and the ILP receiver."
)
llms_txt_uri_template = "_sources/{docname}{suffix}{sourcelink_suffix}"  # relative, as the site may be in a folder
llms_txt_exclude = ["api/*"]  # their sources only name the classes

# --- diagrams: an SVG file for each, without a browser and without a network ---

mermaid_cmd = shlex.join([sys.executable, "-m", "mermaidx", "--quiet"])
mermaid_params = ["--theme", "neutral"]
mermaid_output_format = "svg"
html_static_path = ["_static"]
html_css_files = ["diagrams.css"]

# --- the API reference ---

add_module_names = False
autodoc_default_options = {
    "members": True,
    "inherited-members": "str,BaseException,Exception,Generic,Protocol,tuple,RuleBasedStateMachine",
}
autodoc_member_order = "bysource"
default_role = "py:obj"  # a name in backticks is a link, if the reference has that name
python_maximum_signature_line_length = 100
toc_object_entries_show_parents = "hide"

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(?<!`)`(?!`)([^`]+)`(?!`)")


def convert_docstring(_app: Sphinx, _what: str, _name: str, _obj: Any, _options: Any, lines: list[str]) -> None:
    """Change the Markdown of a docstring to reStructuredText, where the two differ: code fences, and code in a line."""
    text = _CODE.sub(lambda code: code[0] if re.fullmatch(r"[\w.]+", code[1]) else f"``{code[1]}``", "\n".join(lines))
    text = _FENCE.sub(lambda code: f".. code-block:: {code[1] or 'default'}\n\n{indent(code[2], '    ')}", text)
    lines[:] = text.splitlines()


def find_name(app: Sphinx, env: BuildEnvironment, node: Element, shown: TextElement) -> reference | None:
    """Link a name that stands in a docstring without its module, if the reference has exactly one such name."""
    if node.get("refdomain") != "py":
        return None
    domain = env.domains.python_domain
    target = f".{node['reftarget']}"
    places = [place for place, entry in domain.objects.items() if place.endswith(target) and not entry.aliased]
    if len(places) != 1:
        return None
    return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", places[0], node, shown)


def setup(app: Sphinx) -> None:
    """Connect the functions of this file."""
    app.connect("autodoc-process-docstring", convert_docstring)
    app.connect("missing-reference", find_name)
