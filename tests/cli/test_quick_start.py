"""The stand-ins for modules that `slotwise run` imports late: other libraries find them too."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import slotwise

PACKAGE = Path(slotwise.__file__).parent

START = "from slotwise._cli.quick_start import delay_imports; delay_imports('run')\n"


SILENT = """
import logging
silent = logging.NullHandler()
log = logging.getLogger("a.library")
log.addHandler(silent)
log.warning("said")
"""
PACKAGES = """
import asyncio.events, logging.handlers, sys
assert asyncio.events is sys.modules["asyncio"].events
from socket import *
socket(AF_INET).close()
"""
THREADS = """
import inspect, sys, threading
found = []
threads = [threading.Thread(target=lambda: found.append(inspect.Signature)) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert found == [sys.modules["inspect"].Signature] * 8
"""
TRANSLATION = """
import gettext
gettext.translation("none", fallback=True)
"""


@pytest.mark.parametrize("program", [SILENT, PACKAGES, THREADS, TRANSLATION])
def test_a_library_can_use_the_modules_as_usual(program: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", START + program], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_the_traceback_of_a_bug_is_printed_as_usual() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", f"{START}1 / 0"], capture_output=True, text=True, check=False
    )
    assert ran.stderr.startswith("Traceback (most recent call last)")
    assert ran.stderr.endswith("ZeroDivisionError: division by zero\n")


# ----------------------------------------------------------------- our own modules

FOUND = """
import sys
import slotwise._core.frozen as module, slotwise.processes as package
import inspect, importlib.util
assert type(module.__loader__).__name__ == "CompiledLoader", module.__loader__
assert module.__file__.endswith("/slotwise/_core/frozen.py")
assert module.__spec__.parent == module.__package__ == "slotwise._core"
assert importlib.util.cache_from_source(module.__file__) == module.__cached__
assert "class Frozen" in inspect.getsource(module)
assert package.__path__ == [package.__file__.removesuffix("/__init__.py")]
"""
TYPES = """
import typing
class Pair(typing.NamedTuple):
    first: int
T = typing.TypeVar("T")
class Box(typing.Generic[T]): ...
assert Box[int].__origin__ is Box
assert typing.get_type_hints(Pair) == {"first": int}
from slotwise.processes import ProcessSemaphore
from slotwise.tiers import Tiers
"""
WHEN_CALLED = """
from slotwise import ProcessSemaphore
semaphore = ProcessSemaphore(2, name="s", directory="DIRECTORY")
with semaphore.cm(priority=3):
    assert semaphore.holders_sync()[0].slots == 1
    assert semaphore.stats_sync().acquired_slots == 1
"""


@pytest.mark.parametrize("program", [FOUND, TYPES, WHEN_CALLED])
def test_our_own_modules_are_as_usual(program: str, tmp_path: Path) -> None:
    program = program.replace("DIRECTORY", str(tmp_path / "slots"))
    compiled = "import slotwise._core.frozen, slotwise.processes"
    subprocess.run([sys.executable, "-c", compiled], check=True)
    ran = subprocess.run(
        [sys.executable, "-c", START + program], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_a_module_that_was_changed_is_compiled_again(tmp_path: Path) -> None:
    copied = shutil.copytree(PACKAGE, tmp_path / "slotwise", ignore=_not_compiled)
    module = copied / "_core" / "frozen.py"
    program = f"{START}import slotwise._core.frozen as m; print(getattr(m, 'CHANGED', None))"

    def found() -> str:
        return subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
        ).stdout

    assert found() == "None\n"
    assert found() == "None\n"  # compiled
    module.write_text(module.read_text() + "CHANGED = 1\n")
    assert found() == "1\n"
    assert found() == "1\n"
    shutil.rmtree(module.parent / "__pycache__")
    assert found() == "1\n"


def _not_compiled(_folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name == "__pycache__"]


@pytest.mark.parametrize(
    ("words", "url", "has_stand_in"),
    [
        (["run", "x"], "", True),
        (["run", "x", "--url", "process:///tmp"], "process://", True),
        (["run", "x"], "redis://localhost", False),
        (["run", "x", "--url=rediss://localhost"], "", False),
    ],
)
def test_a_command_that_needs_other_packages_has_all_of_typing(
    words: list[str], url: str, has_stand_in: bool
) -> None:
    program = f"{START}import sys; print('typing' in sys.modules)"
    ran = subprocess.run(
        [
            sys.executable,
            "-S",
            "-c",
            f"import sys; sys.path[:0] = [{str(PACKAGE.parent)!r}]\n{program}",
            *words,
        ],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "SLOTWISE_URL": url},
    )
    assert ran.stdout == f"{has_stand_in}\n"
