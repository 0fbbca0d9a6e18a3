"""CompiledFinder: import slotwise's own compiled modules with a third of the usual file look-ups.

Python tries every file that a module could be in. Ours are next to each other, so the compiled file
is opened directly. Anything unusual is left to Python: a module that has changed or was never
compiled, a package in an archive, or compiled files that are validated by a hash.
"""

from __future__ import annotations

import marshal
import os
import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import MAGIC_NUMBER, SourceFileLoader
from collections.abc import Sequence
from types import CodeType

_TAG = sys.implementation.cache_tag
_LARGEST = 100_000  # bytes that are read at once


class CompiledFinder:
    """Finds slotwise's compiled modules, as an entry of ``sys.meta_path``."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, _: object = None
    ) -> ModuleSpec | None:
        if path is None or not name.startswith("slotwise."):
            return None
        module = name.rpartition(".")[2]
        spec = _find_compiled(name, path[0], module)
        if spec is None:
            spec = _find_compiled(name, f"{path[0]}/{module}", "__init__")
            if spec is not None:
                spec.submodule_search_locations = [f"{path[0]}/{module}"]
        return spec


def _find_compiled(name: str, folder: str, module: str) -> ModuleSpec | None:
    source = f"{folder}/{module}.py"
    compiled = f"{folder}/__pycache__/{module}.{_TAG}.pyc"
    try:
        descriptor = os.open(compiled, os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = os.read(descriptor, _LARGEST)
        finally:
            os.close(descriptor)
        status = os.stat(source)  # noqa: PTH116 - pathlib is not imported yet
    except OSError:
        return None
    if len(found) == _LARGEST:
        return None
    # The header that `importlib` writes: magic, flags, time and size of the source.
    numbers = int(status.st_mtime) & 0xFFFFFFFF, status.st_size & 0xFFFFFFFF
    header = b"".join(number.to_bytes(4, "little") for number in (0, *numbers))
    if found[:16] != MAGIC_NUMBER + header:
        return None
    spec = ModuleSpec(name, CompiledLoader(name, source, found), origin=source)
    spec.has_location = True
    spec.cached = compiled
    return spec


class CompiledLoader(SourceFileLoader):
    """Python's own loader, given the contents of the compiled file."""

    def __init__(self, name: str, source: str, compiled: bytes) -> None:
        super().__init__(name, source)
        self._compiled = compiled

    def get_code(self, _: str) -> CodeType:
        code: CodeType = marshal.loads(memoryview(self._compiled)[16:])  # noqa: S302 - as Python
        return code
