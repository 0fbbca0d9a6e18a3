"""Popen and run: start Python programs without the time that Python takes to load modules.

A process that has imported slotwise, what it imports, and nothing else, and that has used none of
it, forks for each program. So a program finds what a fresh interpreter would, as a child of the
process that started it, which can wait for it and send it any signal. But all modules are loaded:
what depends on when they are imported, or taken apart, needs `subprocess`. In `make soak`, which
sets SLOTWISE_REAL_INTERPRETERS, every program has an interpreter of its own.
"""

from __future__ import annotations

import atexit
import ctypes
import inspect
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_SET_CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER

# Started with the number of a socket, and the process id of whoever has the other end.
_FORKS = r"""
import atexit, ctypes, sys


@atexit.register  # before those of modules, so called after them
def spare_modules():
    # To take them apart at the end would copy all of their memory, and take half of the time.
    spared = [sys.modules.pop(name, None) for name in loaded]
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(spared))


import gc, importlib, io, json, os, pkgutil, runpy, signal, socket, warnings
import redis, redis.asyncio, hiredis
import slotwise

for module in pkgutil.walk_packages(slotwise.__path__, "slotwise."):
    # Adapters would import their frameworks, and __main__ is run, not imported.
    if not module.name.startswith(
        ("slotwise.instrumentation.", "slotwise.integrations.", "slotwise.__main__")
    ):
        importlib.import_module(module.name)

requests = socket.socket(fileno=int(sys.argv[1]))
parent = int(sys.argv[2])
signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal, meant for the tests
loaded = sys.modules.keys() - {"builtins", "sys", "warnings"}
gc.collect()
gc.freeze()
while True:
    message, streams, _, _ = socket.recv_fds(requests, 1_000_000, 3)
    if not message:
        sys.exit()
    between = os.fork()
    if not between:
        if os.fork():
            os._exit(0)  # makes the child one of the subreaper's
        break
    os.waitpid(between, 0)
    for each in streams:
        os.close(each)

# What follows is the child: it ends as any interpreter does, but for the modules above.
wanted = json.loads(message)
try:
    for number, each in enumerate(streams):
        os.dup2(each, number)
        os.close(each)
    os.chdir(wanted["folder"])
    os.environ.clear()
    os.environ.update(wanted["environment"])
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [os.path.abspath(each) for each in paths if each]
    if wanted["start_new_session"]:
        os.setsid()
    if wanted["process_group"] >= 0:
        os.setpgid(0, wanted["process_group"])
    while os.getppid() != parent:
        os.kill(parent, 0)  # which fails if it has ended
        os.sched_yield()
finally:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    requests.send(str(os.getpid()).encode())
    requests.close()

is_unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
for number, name in enumerate(("stdin", "stdout", "stderr")):
    mode, buffering = ("wb", 0 if is_unbuffered else -1) if number else ("rb", -1)
    file = open(number, mode, buffering, closefd=False)
    stream = io.TextIOWrapper(
        file,
        errors="backslashreplace" if number == 2 else None,
        line_buffering=number == 2 or file.isatty(),
        write_through=is_unbuffered,
    )
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)
words = wanted["words"]
while words[0] == "-W":
    sys.warnoptions.append(words[1])
    warnings._processoptions(words[1:2])
    del words[:2]
flag, program = words[:2]
sys.argv = [flag, *words[2:]]
main = type(sys)("__main__")
main.__builtins__ = __builtins__
sys.modules["__main__"] = main
if flag == "-m":
    sys.path[0] = os.getcwd()
    runpy._run_module_as_main(program)
else:
    exec(compile(program, "<string>", "exec"), main.__dict__)
"""


class Popen(subprocess.Popen[Any]):
    """Like `subprocess.Popen`; ``python -c`` and ``python -m`` are forks of a loaded process."""

    def _execute_child(self, *given: Any) -> None:
        start: Any = super()._execute_child  # type: ignore[misc]
        options = inspect.signature(start).bind(*given).arguments
        words = [os.fsdecode(word) for word in options["args"]]
        environment = dict(os.environ if options["env"] is None else options["env"])
        if not _can_fork(words, environment, options):
            start(*given)
            return
        streams = [options["p2cread"], options["c2pwrite"], options["errwrite"]]
        self.pid = _loaded_process().fork(
            {
                "words": words[1:],
                "folder": os.fspath(options["cwd"] or Path.cwd()),
                "environment": environment,
                "start_new_session": options["start_new_session"],
                "process_group": options["process_group"],
            },
            [number if each == -1 else each for number, each in enumerate(streams)],
        )
        self._child_created = True
        self._close_pipe_fds(*(options[name] for name in _PIPES))  # type: ignore[attr-defined]


def run(
    words: Sequence[str | Path],
    *,
    capture_output: bool = False,
    input: str | None = None,  # noqa: A002 - as `subprocess.run` has it
    timeout: float | None = None,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Like `subprocess.run`, with `Popen`."""
    if capture_output:
        options["stdout"] = options["stderr"] = subprocess.PIPE
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with Popen(words, **options) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    ended = subprocess.CompletedProcess(words, process.returncode, out, err)
    if check:
        ended.check_returncode()
    return ended


def run_command(*words: str) -> int:
    """Run the command line with the streams of this process; return its exit code."""
    return run([sys.executable, "-m", "slotwise", *words], timeout=60).returncode


_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_OPTIONS = {  # which a fork can't have, and their values
    "executable": None,
    "gid": None,
    "gids": None,
    "pass_fds": (),
    "preexec_fn": None,
    "shell": False,
    "uid": None,
    "umask": -1,
}


def _can_fork(words: list[str], environment: dict[str, str], options: Mapping[str, object]) -> bool:
    rest = words[1:]
    while rest[:1] == ["-W"]:
        rest = rest[2:]
    return (
        sys.platform == "linux"
        and "SLOTWISE_REAL_INTERPRETERS" not in os.environ
        and words[0] == sys.executable
        and len(rest) > 1
        and rest[0] in ("-c", "-m")
        and all(options[name] == value for name, value in _OPTIONS.items())
        and _read_at_the_start(environment) == _read_at_the_start(os.environ)
    )


def _read_at_the_start(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what an interpreter reads of its environment before it runs a program.

    But for PYTHONPATH, which a fork sets itself.
    """
    prefixes = ("LANG", "LC_", "LD_", "MALLOC_", "OTEL_", "PYTHON")
    read = {name: value for name, value in environment.items() if name.startswith(prefixes)}
    read.pop("PYTHONPATH", None)
    return read


class _LoadedProcess:
    """Our end of the process that forks."""

    def __init__(self) -> None:
        self.parent = os.getpid()
        self._lock = threading.Lock()
        self._requests, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Each fork has a PYTHONPATH of its own. What is on this one might not be found otherwise:
        # Python doesn't add a path twice, and so not for an editable install either.
        environment = {name: os.environ[name] for name in os.environ if name != "PYTHONPATH"}
        with its_end:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _FORKS, str(its_end.fileno()), str(self.parent)],
                stdin=subprocess.DEVNULL,
                env=environment,
                pass_fds=[its_end.fileno()],
            )
        atexit.register(self._end)

    def fork(self, wanted: Mapping[str, object], streams: list[int]) -> int:
        """Start a program; return its process id once it is a child of ours."""
        with self._lock:
            # Only for now: otherwise what others leave behind would become ours, and not init's.
            _become_subreaper(True)
            try:
                socket.send_fds(self._requests, [json.dumps(wanted).encode()], streams)
                return int(self._requests.recv(100))
            finally:
                _become_subreaper(False)

    def _end(self) -> None:
        if os.getpid() == self.parent:
            self._requests.close()
            self._process.wait()


_loaded: _LoadedProcess | None = None


def prepare() -> None:
    """Start the process that forks, before the first program."""
    if sys.platform == "linux" and "SLOTWISE_REAL_INTERPRETERS" not in os.environ:
        _loaded_process()


def _loaded_process() -> _LoadedProcess:
    global _loaded
    if _loaded is None or _loaded.parent != os.getpid():  # or this is a fork of the tests
        _loaded = _LoadedProcess()
    return _loaded


def _become_subreaper(is_one: bool) -> None:
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, int(is_one), 0, 0, 0)
