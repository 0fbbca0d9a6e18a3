"""Commands in a fresh interpreter, from its start to its end; most other tests use forks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli._shell import HANG, Shell, command


def test_commands_import_what_they_need(any_shell: Shell) -> None:
    def fresh(*words: object) -> str:
        ran = subprocess.run(
            command(*words),
            *(), capture_output=True, text=True, check=False, timeout=HANG,
            env=any_shell.environment,
        )  # fmt: skip
        assert (ran.returncode, ran.stderr) == (0, ""), words
        return ran.stdout

    acquired = fresh("acquire", "api", "--limit", 2).strip()
    [held] = any_shell.holders()
    assert held.acquisition_id == acquired
    assert fresh("run", "api", "--", "echo", "ran") == "ran\n"
    assert "api" in fresh("ls")
    fresh("release", acquired)
    assert any_shell.holders() == []


AT_THE_END = """
import atexit, threading
atexit.register(print, "registered")
threading.Thread(target=lambda: (threading.main_thread().join(), print("thread"))).start()
"""


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("run", "api", "--limit", "1", "--", "sh", "-c", "exit 7"), 7),
        (("release", "of-nobody"), 1),
        (("purge", "nowhere", "--yes"), 2),
    ],
)
def test_what_is_to_run_at_the_end_runs(words: tuple[str, ...], code: int, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(AT_THE_END)
    ran = subprocess.run(
        [sys.executable, "-m", "slotwise", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG,
        process_group=0,  # in which a stop signal stops it, as in a shell
        env={**os.environ, "PYTHONPATH": str(tmp_path), "SLOTWISE_DIR": str(tmp_path / "slots")},
    )
    assert (ran.returncode, ran.stdout) == (code, "thread\nregistered\n")
