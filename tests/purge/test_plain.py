"""Without any package but slotwise itself, the purger works plainly, and says what it did."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from slotwise._cli.signals import readable

REPOSITORY = Path(__file__).parents[2]

PROGRAM = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from slotwise.__main__ import main
main()
"""


@pytest.fixture(scope="module", params=["source", pytest.param("wheel", marks=pytest.mark.soak)])
def package(request, tmp_path_factory) -> Path:
    """The folder from which slotwise is imported: the source, or what a wheel installs."""
    if request.param == "source":
        return REPOSITORY / "src"
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, REPOSITORY],
        check=True,
        timeout=300,
    )
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "installed")
    return folder / "installed"


def on_a_terminal(package: Path, *words: str) -> tuple[int, str]:
    """Run slotwise where there is neither rich nor anything else, on a terminal."""
    child, fd = pty.fork()
    if not child:
        alone = [sys.executable, "-I", "-S", "-c", PROGRAM, str(package), *words]
        os.execve(sys.executable, alone, {**os.environ, "TERM": "xterm", "COLUMNS": "80"})
    said = b""
    while readable(fd, timeout=60):
        try:
            part = os.read(fd, 4096)
        except OSError:  # the other end has closed
            break
        if not part:
            break
        said += part
    _, status = os.waitpid(child, 0)
    os.close(fd)
    return os.waitstatus_to_exitcode(status), said.decode()


def test_a_purge_deletes_and_says_so(package, root, old) -> None:
    path = old(root / "x")
    code, said = on_a_terminal(package, "purge", str(root), "--yes")
    assert code == 0, said
    assert not path.exists()
    assert "files purged" in said
    assert "rich" not in said


def test_a_shared_limit_that_needs_redis_deletes_nothing(package, root, old) -> None:
    path = old(root / "x")
    words = ("purge", str(root), "--yes", "--url", "redis://127.0.0.1:1", "--name", "n")
    code, said = on_a_terminal(package, *words)
    assert (code, path.exists()) == (2, True)
    assert "slotwise[redis]" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("words", [("--help",), ("--version",), ("purge", "--help")])
def test_help_and_version_need_nothing(package, words) -> None:
    code, said = on_a_terminal(package, *words)
    assert (code, said.startswith(("usage: slotwise", "slotwise "))) == (0, True), said
