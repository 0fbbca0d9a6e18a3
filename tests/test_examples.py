"""The examples of the README that are programs run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROGRAMS = re.findall(
    r"^```python\n(?!>>>)(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
)


def test_the_readme_has_programs() -> None:
    assert PROGRAMS


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_a_program_of_the_readme_runs(program: str) -> None:
    outcome = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (outcome.returncode, outcome.stderr) == (0, "")
