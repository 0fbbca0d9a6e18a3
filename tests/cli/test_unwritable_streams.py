"""What the commands do when stdout or stderr can't be written: the exit code still tells."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.cli._shell import HANG, Shell, command


@contextmanager
def unwritable(kind: str) -> Iterator[int]:
    """A descriptor that takes nothing."""
    if kind == "stuck":
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        with suppress(BlockingIOError):
            while True:
                os.write(writing, bytes(4096))
        os.set_blocking(writing, True)
        try:
            yield writing
        finally:
            os.close(reading)
            os.close(writing)
        return
    if kind == "full":
        if not Path("/dev/full").exists():
            pytest.skip("there is no /dev/full here")
        writing = os.open("/dev/full", os.O_WRONLY)
    else:
        reading, writing = os.pipe()
        os.close(reading)
    try:
        yield writing
    finally:
        os.close(writing)


def exit_code(shell: Shell, *words: object, **streams: int) -> int:
    ran = subprocess.run(
        command(*words), env=shell.environment, cwd=shell.folder, timeout=HANG, check=False,
        **{"stdin": subprocess.DEVNULL, **streams},
    )  # fmt: skip
    return ran.returncode


@pytest.mark.parametrize(
    ("kind", "words", "code"),
    [
        ("full", ("run", "api", "--limit", "abc", "--", "true"), 125),
        ("unread", ("run", "api", "--limit", "1", "--", "/nonexistent"), 127),
        ("full", ("run", "full", "--limit", "1", "--no-wait", "--", "true"), 75),
        ("unread", ("run", "api", "--limit", "1", "--ttl", "0.2", "--", "sleep", "1000"), 124),
        ("stuck", ("run", "api", "--limit", "1", "--ttl", "0.2", "--", "sleep", "1000"), 124),
        ("full", ("resize", "full", "0"), 2),
        ("unread", ("show", "nobody-made-this"), 1),
        ("full", ("lss",), 2),
        ("unread", ("purge", ".", "--no-such-flag"), 2),
        ("full", ("purge", "/", "--yes"), 2),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, tuple) else str(given),
)
def test_the_exit_code_does_not_depend_on_stderr(shell: Shell, kind, words, code):
    shell.occupy("full")
    with unwritable(kind) as stream:
        assert exit_code(shell, *words, stderr=stream) == code


@pytest.mark.parametrize("kind", ["full", "unread"])
def test_a_warning_that_can_not_be_written_does_not_keep_the_command_from_running(
    shell: Shell, kind
):
    shell.occupy(limit=1)
    assert shell.here("resize", "api", 2).returncode == 0
    words = ("run", "api", "--limit", 1, "--no-wait", "--", "touch", "it-ran")
    with unwritable(kind) as stream:
        assert exit_code(shell, *words, stderr=stream) == 0
    assert (shell.folder / "it-ran").exists()


@pytest.mark.parametrize("words", [("run", "--help"), ("--help",), ("ls",), ("completion", "zsh")])
def test_what_can_not_be_printed_is_an_error(shell: Shell, words):
    with unwritable("full") as stream:
        assert exit_code(shell, *words, stdout=stream) == 1
    assert os.system(" ".join([*command(*words), ">&-", "2>/dev/null"])) >> 8 == 1


@pytest.mark.parametrize("kind", ["full", "unread", "closed"])
def test_slots_whose_id_can_not_be_printed_are_not_held(any_shell: Shell, kind, capfd):
    words = ("acquire", "api", "--for-pid", os.getpid())
    if kind == "closed":
        shell = ["sh", "-c", '"$@" >&-', "sh", *command(*words)]
        ran = subprocess.run(shell, env=any_shell.environment, timeout=HANG, check=False)
        code = ran.returncode
    else:
        with unwritable(kind) as stream:
            code = exit_code(any_shell, *words, stdout=stream)
    assert code == 125
    assert "nothing is held: can't write the id to stdout" in capfd.readouterr().err
    assert any_shell.holders() == []
