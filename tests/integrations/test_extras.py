"""An adapter whose framework is missing says which extra installs it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import slotwise.integrations

ROOT = Path(__file__).parents[2]
FRAMEWORKS = [
    *("aiohttp", "celery", "django", "dramatiq", "fastapi", "flask", "httpx", "rq", "taskiq"),
]
ALTERNATIVES = {"httpx": ["httpx", "httpx2"]}  # either will do


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_missing_framework_is_an_import_error_that_names_its_extra(
    name: str, monkeypatch
) -> None:
    packages = ALTERNATIVES.get(name, [name])
    for module in [each for each in sys.modules if each.split(".")[0] in packages]:
        monkeypatch.delitem(sys.modules, module)
    for package in packages:
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"slotwise.integrations.{name}", raising=False)
    monkeypatch.delattr(slotwise.integrations, name, raising=False)
    with pytest.raises(ImportError, match=rf"pip install 'slotwise\[{name}\]'"):
        __import__(f"slotwise.integrations.{name}")


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
