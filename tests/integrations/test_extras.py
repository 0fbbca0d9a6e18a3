"""An adapter whose framework is missing says which extra installs it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import slotwise

ROOT = Path(__file__).parents[2]
FRAMEWORKS = [
    *("aiohttp", "celery", "django", "dramatiq", "fastapi", "flask", "httpx", "rq", "taskiq"),
]


BARE = """
import importlib, sys
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    try:
        importlib.import_module(f"slotwise.integrations.{name}")
    except ImportError as error:
        print(error)
"""


def test_a_missing_framework_is_an_import_error_that_names_it_and_its_extra() -> None:
    names = [*FRAMEWORKS, "pytest_plugin"]
    outcome = subprocess.run(
        # Without site-packages: there is nothing but the standard library.
        [sys.executable, "-I", "-S", "-c", BARE, Path(slotwise.__file__).parents[1], *names],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    remedy = "this adapter needs more packages, pip install"
    extras = [(each, f"'slotwise[{each}]'") for each in FRAMEWORKS]
    assert outcome.stdout.splitlines() == [
        f"No module named '{package}': {remedy} {what}"
        for package, what in [*extras, ("pytest", "pytest")]
    ]


def test_every_adapter_has_an_extra_of_its_name() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert {*FRAMEWORKS} <= extras.keys()


def test_the_decorator_and_asgi_need_only_the_standard_library() -> None:
    program = (
        "import sys, slotwise, slotwise.integrations.asgi, slotwise.integrations.wsgi\n"
        "slotwise.limited\n"
        "loaded = {each.split('.')[0] for each in sys.modules}\n"
        f"print(sorted(loaded & {{*{FRAMEWORKS!r}, 'redis'}}))"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert outcome.stdout.strip() == "[]"
