"""The stand-ins for modules that `slotwise run` imports late: other libraries find them too."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli._shell import HANG, Shell, command

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
WHEN_CALLED = """
from slotwise import ProcessSemaphore
semaphore = ProcessSemaphore(2, name="s", directory="DIRECTORY")
with semaphore.cm(priority=3):
    assert semaphore.holders_sync()[0].slots == 1
    assert semaphore.stats_sync().acquired_slots == 1
"""


@pytest.mark.parametrize("program", [FOUND, WHEN_CALLED])
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


def test_on_a_server_commands_do_what_they_do_with_everything_loaded(
    redis_shell: Shell,
) -> None:
    """Other tests start them where redis-py and what they delay is loaded already."""

    def fresh(*words: object) -> str:
        ran = subprocess.run(
            command(*words),
            *(), capture_output=True, text=True, check=False, timeout=HANG,
            env=redis_shell.environment,
        )  # fmt: skip
        assert (ran.returncode, ran.stderr) == (0, ""), words
        return ran.stdout

    acquired = fresh("acquire", "api", "--limit", 2).strip()
    [held] = redis_shell.holders()
    assert held.acquisition_id == acquired
    assert fresh("run", "api", "--", "echo", "ran") == "ran\n"
    assert "api" in fresh("ls")
    fresh("release", acquired)
    assert redis_shell.holders() == []


# ------------------------------------------------------------------- a quick end

AT_THE_END = """
import atexit, ctypes, threading, time
atexit.register(print, "registered")
threading.Thread(target=lambda: (threading.main_thread().join(), print("thread"))).start()
ctypes.CDLL(None).puts(b"C")  # into a buffer that the C library writes at the end
"""


def _run_with(program: str, tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run ``python`` with these words, and a program that is executed before them."""
    (tmp_path / "sitecustomize.py").write_text(program)
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG,
        process_group=0,  # in which a stop signal stops it, as in a shell
        env={**buffered, "PYTHONPATH": str(tmp_path), "SLOTWISE_DIR": str(tmp_path / "slots")},
    )


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("run", "api", "--limit", "1", "--", "sh", "-c", "exit 7"), 7),
        (("release", "of-nobody"), 1),
        (("purge", "nowhere", "--yes"), 2),
    ],
)
def test_what_is_to_run_at_the_end_runs(words: tuple[str, ...], code: int, tmp_path: Path) -> None:
    ran = _run_with(AT_THE_END, tmp_path, "-m", "slotwise", *words)
    assert (ran.returncode, ran.stdout) == (code, "thread\nregistered\nC\n")


def test_what_is_printed_at_the_end_and_lost_shows_in_the_exit_code(tmp_path: Path) -> None:
    full = "import atexit, os, sys; atexit.register(lambda: os.close(1))\n"
    full += "atexit.register(print, 'lost')"
    words = ("-m", "slotwise", "run", "api", "--limit", "1", "--", "true")
    assert _run_with(full, tmp_path, *words).returncode == 1


@pytest.mark.soak
@pytest.mark.parametrize("flags", [("-m", "cProfile"), ("-m", "trace", "--listfuncs")])
def test_a_profiler_sees_the_end(flags: tuple[str, ...], tmp_path: Path) -> None:
    module = ("-m", "slotwise") if "cProfile" in flags else ("--module", "slotwise")
    command = ("run", "api", "--limit", "1", "--", "sh", "-c", "exit 7")
    ran = _run_with("", tmp_path, *flags, *module, *command)
    assert ran.stdout.startswith(("         ", "\nfunctions called"))
