"""The stand-ins for modules that `slotwise run` imports late: other libraries find them too."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
