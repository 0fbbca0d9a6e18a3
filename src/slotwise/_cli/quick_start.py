"""Start and end quickly, for commands that scripts call all the time.

A shell loop pays for the start of ``slotwise run`` on every iteration. Most of that went into
modules that are imported by what it uses, but never used themselves. These are imported
lazily. Other libraries in this process see the stand-ins too, so a stand-in offers whatever
the real module has.

Shutting an interpreter down is slow as well, since it frees memory object by object.
"""

from __future__ import annotations

import _thread
import atexit
import gc
import os
import sys
from collections.abc import Callable
from types import ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_IN_LOOPS = ("run", "acquire", "release")  # what scripts call all the time
_QUICK = (*_IN_LOOPS, "purge")  # those, and what is compared with find
_SELDOM_USED = ("inspect", "ipaddress", "secrets", "shutil", "socket", "traceback")
# Our own, and what is called of them in other modules.
_OURS_SELDOM_USED = {
    "slotwise._core.locked": ("KnownAnswer", "LockedAnswer"),
    "slotwise._core.priorities": ("check_priority",),
    "slotwise.processes._adaptations": ("read_adaptation", "write_adaptation"),
    "slotwise.processes._in_thread": ("in_thread", "start_thread"),
    "slotwise.processes._inspect": (),
}
_PACKAGES = ("asyncio", "logging")


def delay_imports(command: str) -> None:
    """Have some modules wait that this command hardly needs, if they were not imported yet."""
    if command in _QUICK:
        gc.disable()  # what is imported stays: looking for garbage among it finds none
        _find_compiled_modules()
        for name in _SELDOM_USED:
            _delay(name)
        # argparse would look for a translation of its words; ours are all in English.
        _delay("gettext", gettext=_same, ngettext=_singular_or_plural)
    if command in _IN_LOOPS:
        if _is_local():
            _delay("typing", **_TYPING)
        for name, functions in _OURS_SELDOM_USED.items():
            _delay(name, **{function: _later(name, function) for function in functions})
        for name in ("heapq", "bisect"):  # what they are in C is enough
            _delay(name, **_public(_import(f"_{name}")))
        _delay("asyncio", _get_running_loop=_running_loop)
        _delay("logging", getLogger=_logger, DEBUG=10)


def _find_compiled_modules() -> None:
    if sys.flags.optimize:
        return  # these are compiled in another way
    try:
        from slotwise._cli.compiled import CompiledFinder
    except ImportError:  # another Python, which finds them by itself
        return
    if not any(isinstance(finder, CompiledFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, CompiledFinder())


def _is_local() -> bool:
    """Return whether no other packages are needed, which could do more with types than we do."""
    urls = [os.environ.get("SLOTWISE_URL", ""), *sys.argv]
    return not any("://" in url and "process://" not in url for url in urls)


def collect_garbage() -> None:
    """Look for garbage again, from now on, once the imports are done."""
    gc.freeze()
    gc.enable()


class UnprintedLog:
    """Lets nothing of our log be printed: what matters of it is in the errors."""

    def __enter__(self) -> None:
        logging = sys.modules.get("logging")
        # Our loggers say nothing while it waits; see `_load` for later ones.
        self._is_needed = not isinstance(logging, _Delayed)
        if self._is_needed:
            logging = _import("logging")
            self._logger, self._silent = logging.getLogger("slotwise"), logging.NullHandler()
            self._logger.addHandler(self._silent)  # without a handler Python would print it

    def __exit__(self, *_: object) -> None:
        if self._is_needed:
            self._logger.removeHandler(self._silent)


def exit_quickly(command: str, code: int) -> None:
    """End the process as `sys.exit` does, except that it frees nothing; only for some commands."""
    if command in _QUICK:
        atexit._run_exitfuncs()
        os._exit(code)


def _delay(name: str, **contents: object) -> None:
    """Put a stand-in into the place of a module, with what can be used without importing it."""
    stand_in = _Delayed(name)
    stand_in.__dict__.update(contents)
    sys.modules.setdefault(name, stand_in)


def _later(module: str, name: str) -> Callable[..., Any]:
    """Return what calls a function of a module that is imported then."""

    def call(*args: Any, **options: Any) -> Any:
        return getattr(_load(module), name)(*args, **options)

    return call


def _public(module: ModuleType) -> dict[str, object]:
    return {name: found for name, found in vars(module).items() if not name.startswith("_")}


def _import(name: str) -> ModuleType:
    """Do what `importlib.import_module` does; it isn't imported for that."""
    __import__(name)
    return sys.modules[name]


_swapping = _thread.RLock()  # held while a stand-in is removed, but not while it is imported


class _Delayed(ModuleType):
    """Becomes the module when something of it is asked for."""

    def __getattr__(self, attribute: str) -> object:
        if attribute == "__path__" and self.__name__ not in _PACKAGES:
            raise AttributeError(attribute)  # every `from ... import` asks whether it is a package
        return getattr(_load(self.__name__), attribute)


def _load(name: str) -> ModuleType:
    """Import the module that there was a stand-in for."""
    with _swapping:
        stand_in = sys.modules.get(name)
        if isinstance(stand_in, _Delayed):
            _replaced[name] = stand_in
            del sys.modules[name]  # of two threads, the second one must not delete the real one
    module = _import(name)
    if name in _replaced:  # for those who have imported the stand-in
        _replaced[name].__dict__.update(module.__dict__)
    if name == "logging" and not module.getLogger("slotwise").handlers:
        module.getLogger("slotwise").addHandler(module.NullHandler())  # as `UnprintedLog` would
    return module


_replaced: dict[str, ModuleType] = {}


def _running_loop() -> object:
    """Return the loop that runs in this thread: none does while asyncio is not imported."""
    asyncio = sys.modules["asyncio"]
    return None if isinstance(asyncio, _Delayed) else asyncio._get_running_loop()


def _logger(name: str = "") -> object:
    """Return a logger that says nothing, for ours; the others get the real one."""
    if name.startswith("slotwise"):
        return _Silent()
    found: object = _load("logging").getLogger(name)
    return found


class _Silent:
    """A logger that nothing is logged by."""

    def __init__(self) -> None:
        self._cache: dict[int, bool] = {}  # what `slotwise._core.log` looks into

    def isEnabledFor(self, _level: int) -> bool:  # noqa: N802
        return False

    def _nothing(self, *_: object, **__: object) -> None:
        pass

    addHandler = removeHandler = _nothing  # noqa: N815
    log = debug = info = warning = error = exception = critical = _nothing


class _Type:
    """Stands for whatever of typing our modules use while they are imported."""

    def __call__(self, *_: object, **__: object) -> _Type:
        return self

    __getitem__ = __or__ = __ror__ = __call__

    def __mro_entries__(self, _bases: object) -> tuple[()]:
        return ()


class _Generic:
    __slots__ = ()

    def __class_getitem__(cls, _: object) -> type[_Generic]:
        return cls


_TYPING = {
    **dict.fromkeys(("Any", "ClassVar", "Final", "Literal", "NoReturn", "Protocol"), _Type()),
    **dict.fromkeys(("Self", "TextIO", "TypeAlias", "TypeVar"), _Type()),
    "Generic": _Generic,
    "TYPE_CHECKING": False,
    "cast": lambda _, value: value,
}


def _same(text: str) -> str:
    return text


def _singular_or_plural(singular: str, plural: str, count: int) -> str:
    return singular if count == 1 else plural
