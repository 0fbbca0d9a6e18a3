"""Sphinx settings."""

from __future__ import annotations

import sys
from pathlib import Path

from slotwise import __version__

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

project = "slotwise"
author = "The slotwise maintainers"
copyright = f"2026, {author}"
version = release = __version__

extensions = [
    "_life_cycle",
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
# What is copied can be pasted: prompts and output stay behind.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_inherit_docstrings = True
default_role = "any"
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "slotwise"
