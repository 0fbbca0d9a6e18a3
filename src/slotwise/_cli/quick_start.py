"""Start and end quickly, for commands that scripts call all the time.

A shell pays for the start of ``slotwise run`` with every turn of its loop. Most of that was
the import of modules that what it uses imports, but of which it uses nothing: they are
imported when something of them is used. And the end of an interpreter takes long in which it
frees memory, one object after the other.
"""

from __future__ import annotations

import atexit
import os
import sys
from importlib import import_module
from types import ModuleType

_IN_LOOPS = ("run", "acquire", "release")  # what scripts call all the time
_SELDOM_USED = ("inspect", "ipaddress", "secrets", "shutil", "socket", "traceback")


def delay_imports(command: str) -> None:
    """Have some modules wait that this command hardly needs, if they were not imported yet."""
    if command in _IN_LOOPS:
        for name in _SELDOM_USED:
            sys.modules.setdefault(name, _Delayed(name))
        _add("asyncio", _Delayed("asyncio"), _get_running_loop=_running_loop)
        # Nothing of our log is printed: what matters of it is in the errors.
        _add("logging", _Delayed("logging"), getLogger=_logger, NullHandler=object, DEBUG=10)
        # argparse would look for a translation of its words; ours are all in English.
        _add("gettext", ModuleType("gettext"), gettext=_same, ngettext=_singular_or_plural)


def exit_quickly(command: str, code: int) -> None:
    """End the process as `sys.exit` does, except that it frees nothing; only for some commands."""
    if command in _IN_LOOPS:
        atexit._run_exitfuncs()
        os._exit(code)


def _add(name: str, module: ModuleType, **contents: object) -> None:
    module.__dict__.update(contents)
    sys.modules.setdefault(name, module)


class _Delayed(ModuleType):
    """Becomes the module when something of it is asked for."""

    def __getattr__(self, attribute: str) -> object:
        module = _load(self.__name__)
        self.__dict__.update(module.__dict__)
        return getattr(module, attribute)


def _load(name: str) -> ModuleType:
    """Import the module that there was a stand-in for."""
    if isinstance(sys.modules.get(name), _Delayed):
        del sys.modules[name]
    module = import_module(name)
    if name == "logging":  # what `main` has done with the stand-in
        module.getLogger("slotwise").addHandler(module.NullHandler())
    return module


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


def _same(text: str) -> str:
    return text


def _singular_or_plural(singular: str, plural: str, count: int) -> str:
    return singular if count == 1 else plural
