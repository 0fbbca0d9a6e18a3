"""Shorten the start and the exit of commands that scripts call all the time.

A shell loop pays for the start of ``slotwise run`` on every iteration. Most of that time went
into importing modules that other modules import, but that a command never uses. Stand-ins delay
those imports. Other libraries in this process see the stand-ins too, so a stand-in offers
everything that the real module has.

Shutting an interpreter down is slow as well, since it frees memory object by object.
"""

from __future__ import annotations

import _thread
import atexit
import gc
import sys
from collections.abc import Callable
from types import ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_IN_LOOPS = ("run", "acquire", "release")  # what scripts call all the time
_QUICK = (*_IN_LOOPS, "purge")  # and purge, which competes with find
_SELDOM_USED = ("inspect", "ipaddress", "secrets", "shutil", "socket", "traceback", "warnings")
# Our own, with the functions and classes that other modules import from them.
_OURS_SELDOM_USED = {
    "slotwise._core.locked": ("KnownAnswer", "LockedAnswer"),
    "slotwise._core.priorities": ("check_priority",),
    "slotwise._wait.threads": ("start_thread",),
    "slotwise.processes._adaptations": ("read_adaptation", "write_adaptation"),
    "slotwise.processes._in_thread": ("in_thread",),
    "slotwise.processes._inspect": (),
}
_PACKAGES = ("asyncio", "logging")

FAILED = 1  # the exit code when output is lost


def delay_imports(command: str) -> None:
    """Delay the import of modules that this command hardly needs, unless they are imported."""
    if command in _QUICK:
        gc.disable()  # imports leave no garbage, so looking for it is wasted time
        _find_compiled_modules()
        for name in _SELDOM_USED:
            _delay(name)
        # The numbers are enough: turning them into enums takes longer than using them.
        _delay("signal", **_public(_import("_signal")))
        # argparse would look for translations; our messages are all in English.
        _delay("gettext", gettext=_same, ngettext=_singular_or_plural)
    if command in _IN_LOOPS:
        for name, functions in _OURS_SELDOM_USED.items():
            _delay(name, **{function: _later(name, function) for function in functions})
        for name in ("heapq", "bisect"):  # we use only what they have in C
            _delay(name, **_public(_import(f"_{name}")))
        _delay("asyncio", _get_running_loop=_running_loop)
        _delay("logging", getLogger=_logger, DEBUG=10)


def _find_compiled_modules() -> None:
    if sys.flags.optimize:
        return  # python -O compiles to other files
    try:
        from slotwise._cli.compiled import CompiledFinder
    except ImportError:  # another Python, which finds them by itself
        return
    if not any(isinstance(finder, CompiledFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, CompiledFinder())


def collect_garbage() -> None:
    """Turn garbage collection on again, once the imports are done."""
    gc.freeze()
    gc.enable()


class UnprintedLog:
    """Keeps our log from being printed: the command's own messages say what matters."""

    def __enter__(self) -> None:
        logging = sys.modules.get("logging")
        # While its import is delayed, our loggers are silent; `_load` silences later ones.
        self._is_needed = not isinstance(logging, _Delayed)
        if self._is_needed:
            logging = _import("logging")
            self._logger, self._silent = logging.getLogger("slotwise"), logging.NullHandler()
            self._logger.addHandler(self._silent)  # without a handler Python would print it

    def __exit__(self, *_: object) -> None:
        if self._is_needed:
            self._logger.removeHandler(self._silent)


def exit_quickly(command: str, code: int) -> None:
    """Exit as `sys.exit` does, but without freeing memory.

    It waits for threads, calls the exit handlers of Python and of C, and flushes the streams.
    For other commands, and under a profiler or a debugger, it does nothing.
    """
    if command not in _QUICK or _is_watched():
        return
    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # the output of an exit handler is lost
            code = code or FAILED
    from slotwise._cli.libc import exit_now  # once compiled modules are found quickly

    exit_now(code)


def _is_watched() -> bool:
    """Return whether a profiler or a debugger is active, which has to see the end."""
    tools = [getattr(sys, "monitoring", None)]
    return (
        bool(sys.getprofile() or sys.gettrace())
        or any(each.get_tool(number) for each in tools if each for number in range(6))
        or bool(sys.flags.interactive or sys.flags.inspect or sys.flags.dev_mode)
    )


def _delay(name: str, **contents: object) -> None:
    """Put a stand-in in place of a module; using its ``contents`` doesn't import the module."""
    stand_in = _Delayed(name)
    stand_in.__dict__.update(contents)
    sys.modules.setdefault(name, stand_in)


def _later(module: str, name: str) -> Callable[..., Any]:
    """Return a function that imports a module when it is called, and calls a function of it."""

    def call(*args: Any, **options: Any) -> Any:
        return getattr(_load(module), name)(*args, **options)

    return call


def _public(module: ModuleType) -> dict[str, object]:
    return {name: found for name, found in vars(module).items() if not name.startswith("_")}


def _import(name: str) -> ModuleType:
    """Do what `importlib.import_module` does, without importing importlib."""
    __import__(name)
    return sys.modules[name]


_swapping = _thread.RLock()  # held while a stand-in is removed, but not during the import


class _Delayed(ModuleType):
    """Imports the module when an attribute is used that the stand-in doesn't have."""

    def __getattr__(self, attribute: str) -> object:
        if attribute == "__path__" and self.__name__ not in _PACKAGES:
            raise AttributeError(attribute)  # `from ... import` checks whether it is a package
        return getattr(_load(self.__name__), attribute)


def _load(name: str) -> ModuleType:
    """Import a module in place of its stand-in."""
    with _swapping:
        stand_in = sys.modules.get(name)
        if isinstance(stand_in, _Delayed):
            _replaced[name] = stand_in
            del sys.modules[name]  # under the lock: a second thread would delete the real one
    module = _import(name)
    if name in _replaced:  # for modules that have imported the stand-in
        _replaced[name].__dict__.update(module.__dict__)
    if name == "logging" and not module.getLogger("slotwise").handlers:
        module.getLogger("slotwise").addHandler(module.NullHandler())  # as `UnprintedLog` would
    return module


_replaced: dict[str, ModuleType] = {}


def _running_loop() -> object:
    """Return the loop that runs in this thread: None before asyncio is imported."""
    asyncio = sys.modules["asyncio"]
    return None if isinstance(asyncio, _Delayed) else asyncio._get_running_loop()


def _logger(name: str = "") -> object:
    """Return a silent logger for our own modules, and a real one for others."""
    if name.startswith("slotwise"):
        return _Silent()
    found: object = _load("logging").getLogger(name)
    return found


class _Silent:
    """A logger that drops everything."""

    def __init__(self) -> None:
        self._cache: dict[int, bool] = {}  # read by `slotwise._core.log`

    def isEnabledFor(self, _level: int) -> bool:  # noqa: N802
        return False

    def _nothing(self, *_: object, **__: object) -> None:
        pass

    addHandler = removeHandler = _nothing  # noqa: N815
    log = debug = info = warning = error = exception = critical = _nothing


def _same(text: str) -> str:
    return text


def _singular_or_plural(singular: str, plural: str, count: int) -> str:
    return singular if count == 1 else plural
