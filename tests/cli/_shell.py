"""Type commands as a person at a shell does: start them, read what they print, wait for states."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pexpect
import pytest
from tests import _fresh_processes

import slotwise
from slotwise import Claimant
from slotwise._admin.backends import NotFound, open_backend
from slotwise._cli.main import main as command_line

HANG = 30.0  # seconds after which a test is hopeless; none should come near

# Counts the interrupts it gets, and tells how many on SIGUSR1; ends on SIGTERM.
COUNTS_INTERRUPTS = """
import os, signal, sys
got = []
def say(text):  # a handler must not print: it may have interrupted a print
    os.write(1, text.encode() + b"\\n")
def interrupted(*_):
    got.append(1)
    say(f"interrupt {len(got)}")
def tell(*_):
    say(f"interrupts in total: {len(got)}")
signal.signal(signal.SIGINT, interrupted)
signal.signal(signal.SIGUSR1, tell)
# Not signal.pause(): a signal just before it would be handled only after the next one.
reading, writing = os.pipe()
os.set_blocking(writing, False)
signal.set_wakeup_fd(writing)
print("ready", os.getpid(), flush=True)
while True:
    os.read(reading, 1)
"""


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "slotwise", *map(str, words)]


class Shell:
    """One user's environment, with the url that all commands use by default."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        kept = {k: v for k, v in os.environ.items() if not k.startswith("SLOTWISE_")}
        self.environment = {
            **kept,
            "SLOTWISE_URL": url,
            "COLUMNS": "160",
            "LINES": "30",
            "TERM": "xterm",
        }
        self._started: list[subprocess.Popen[str] | pexpect.spawn] = []
        self._occupied: list[Callable[[], object]] = []

    def adopt(self, started: subprocess.Popen[str]) -> None:
        """End this with the test, too."""
        self._started.append(started)

    def run(self, *words: object, **more: str) -> subprocess.CompletedProcess[str]:
        """Type a command, and wait for its end."""
        return self._run(command(*words), **more)

    def run_program(self, program: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a program in Python with these arguments, and wait for its end."""
        return self._run([sys.executable, "-c", program, *words])

    def _run(self, typed: list[str], **more: str) -> subprocess.CompletedProcess[str]:
        ran = _fresh_processes.run(
            typed,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env={**self.environment, **more},
            cwd=self.folder,
            timeout=HANG,
            check=False,
        )
        assert "Traceback" not in ran.stderr
        return ran

    def here(self, *words: object, **more: str) -> subprocess.CompletedProcess[str]:
        """Like `run` but in this process, which is quicker."""
        typed = [str(word) for word in words]
        out = io.TextIOWrapper(io.BytesIO(), "utf-8")
        err = io.TextIOWrapper(io.BytesIO(), "utf-8")
        with (
            pytest.MonkeyPatch.context() as patch,
            redirect_stdout(out),
            redirect_stderr(err),
        ):
            for name, value in {**self.environment, **more}.items():
                patch.setenv(name, value)
            try:
                code = command_line(typed)
            except SystemExit as ending:
                code = int(ending.code or 0)
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read())
        assert "Traceback" not in texts[1]
        return subprocess.CompletedProcess(typed, code, *texts)

    @contextmanager
    def stopped_amid_a_change(self, name: str) -> Iterator[int]:
        """A process that has the lock of a semaphore's file and was stopped: its pid."""
        [file] = (self.folder / "slots").glob(f"{name}*")
        hog = _fresh_processes.Popen(
            [sys.executable, "-m", "tests.processes._lock_hog", str(file)],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with hog:
            assert hog.stdout is not None
            assert hog.stdout.readline() == b"locked\n"
            os.kill(hog.pid, signal.SIGSTOP)
            try:
                yield hog.pid
            finally:
                os.kill(hog.pid, signal.SIGCONT)

    def json(self, *words: object) -> Any:
        ran = self.here(*words, "--json")
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout)

    def start(self, *words: object, before: str = "", **more: Any) -> subprocess.Popen[str]:
        """Type a command with ``&`` behind it, and perhaps a word before it."""
        more = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "stdin": subprocess.DEVNULL,
            **more,
        }
        typed = [*before.split(), *command(*words)]
        started = _fresh_processes.Popen(
            typed,
            text=True,
            env=self.environment,
            cwd=self.folder,
            **more,
        )
        self._started.append(started)
        return started

    def hold(self, name: str = "api", *flags: object, limit: int = 1) -> subprocess.Popen[str]:
        """Start a command that holds a slot until it is killed; return when it holds it."""
        words = ("sh", "-c", "echo holding; exec sleep 1000")
        holder = self.start("run", name, "--limit", limit, *flags, "--", *words)
        assert line_of(holder) == "holding\n"
        return holder

    def occupy(
        self, name: str = "api", *, limit: int = 1, slots: int = 1, label: str | None = None
    ) -> Callable[[], object]:
        """Hold slots in this very process; return a function that releases them."""
        semaphore: Any = slotwise.semaphore(name, limit, self.url)
        acquired = semaphore.acquire_sync(slots, timeout=HANG, label=label)

        def release() -> None:
            self._occupied.remove(release)
            semaphore.release_sync(acquired)

        self._occupied.append(release)
        return release

    def terminal(self, *words: object) -> pexpect.spawn:
        """Type a command into a terminal of its own."""
        return self.in_terminal(command(*words))

    def in_terminal(self, words: list[str], columns: int = 160) -> pexpect.spawn:
        with warnings.catch_warnings():
            # Newer Pythons warn of forks where there are threads; this one only execs.
            warnings.simplefilter("ignore", DeprecationWarning)
            spawned = pexpect.spawn(
                words[0],
                words[1:],
                env={**self.environment, "COLUMNS": str(columns)},
                cwd=self.folder,
                timeout=HANG,
                encoding="utf-8",
                dimensions=(30, columns),
                use_poll=True,  # select() knows no descriptors above 1,023
            )
        self._started.append(spawned)
        return spawned

    def holders(self, name: str = "api") -> list[Claimant]:
        """Return the holders, asked in this process, which is quicker."""
        return self._ask(name, "holders_sync")

    def waiters(self, name: str = "api") -> list[Claimant]:
        return self._ask(name, "waiters_sync")

    def _ask(self, name: str, verb: str) -> list[Claimant]:
        try:
            found: list[Claimant] = getattr(open_backend(self.url).find(name), verb)()
        except NotFound:
            return []
        return found

    def until_waiting(self, count: int, name: str = "api") -> None:
        until(lambda: len(self.waiters(name)) == count, f"{count} waiters")

    def clean_up(self) -> None:
        for release in [*self._occupied]:
            release()
        for each in self._started:
            if isinstance(each, pexpect.spawn):
                each.close(force=True)
                continue
            if each.poll() is None:
                each.send_signal(signal.SIGCONT)
                each.terminate()
                try:
                    each.wait(10)
                except subprocess.TimeoutExpired:
                    each.kill()
            each.communicate()


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for a process to end; return its exit code and what it printed."""
    out, err = process.communicate(timeout=HANG)
    assert "Traceback" not in err, err
    return process.returncode, out, err


def line_of(process: subprocess.Popen[str]) -> str:
    """Read a line that a process prints; if it has ended instead, fail with how and why."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        _, err = process.communicate(timeout=HANG)
        pytest.fail(f"it has ended with {process.returncode}: {err}")
    return line


def ended(terminal: pexpect.spawn) -> int:
    """Wait for what runs in a terminal to end; return its exit code."""
    terminal.expect(pexpect.EOF)
    terminal.wait()
    assert terminal.signalstatus is None
    return int(terminal.exitstatus)


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + HANG
    while not condition():
        assert time.monotonic() < deadline, f"never came: {what}"
        time.sleep(0.02)


def state_of(pid: int) -> str:
    """Return the kernel's letter for the state of a process; X if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    return state_of(pid) not in "ZX"
