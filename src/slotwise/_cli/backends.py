"""Where semaphores are kept: what ``--url`` names, to look at and to steer from outside.

A place knows its semaphores by name. It makes none: one that nobody has made is an error,
which names those that look like it.
"""

from __future__ import annotations

import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Collection
from difflib import get_close_matches

from slotwise import _urls
from slotwise._core.results import SemaphoreStats
from slotwise._core.semaphore import Semaphore
from slotwise.errors import SlotwiseError

_ALL = 1_000_000  # more semaphores than anybody would read a list of


# How full semaphores are, and what was wrong with others.
Found = tuple[dict[str, SemaphoreStats], list[SlotwiseError]]


class NoSuchThing(SlotwiseError, LookupError):
    """There is nothing of that name here; the message names what is like it."""


class Backend(ABC):
    """A folder or a server."""

    #: as messages name it
    words: str

    @abstractmethod
    def names(self) -> list[str]:
        """The semaphores that are here, in the order of their names."""

    @abstractmethod
    def stats(self, names: Collection[str] | None = None) -> Found:
        """How full these are, or all; those that are gone are left out."""

    @abstractmethod
    def find(self, name: str) -> Semaphore:
        """The semaphore ``name``.

        Raises:
            NoSuchThing: there is none.
        """

    def _missing(self, name: str) -> NoSuchThing:
        return NoSuchThing(f"there is no semaphore {name!r} {self.words}{like(name, self.names())}")


class _Folder(Backend):
    def __init__(self, directory: str | None) -> None:
        from slotwise.processes import ProcessSemaphore

        self._driver = ProcessSemaphore
        self.directory = directory
        self.words = f"in {directory}" if directory else "of yours on this machine"

    def names(self) -> list[str]:
        found = self._driver.names(self.directory)
        if not found:
            self._check_writable()
        return found

    def _check_writable(self) -> None:
        """Raise what making a semaphore would raise: /proc, too, looks like an empty folder."""
        from slotwise.processes._directory import OpenDirectory
        from slotwise.processes._filenames import locate
        from slotwise.processes._messages import os_error

        path = locate(self.directory)
        if not os.path.lexists(path):
            return
        folder, file = OpenDirectory(path), f".probe-{secrets.token_hex(8)}"
        try:
            os.close(folder.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            folder.unlink(file)
        except OSError as error:
            raise os_error(error, path) from error
        finally:
            folder.close()

    def stats(self, names: Collection[str] | None = None) -> Found:
        found: dict[str, SemaphoreStats] = {}
        troubles: list[SlotwiseError] = []
        for name in self.names() if names is None else names:
            try:
                found[name] = self.find(name).stats_sync()
            except NoSuchThing:
                pass
            except SlotwiseError as error:  # one bad file is not the end
                troubles.append(error)
        return found, troubles

    def find(self, name: str) -> Semaphore:
        try:
            return self._driver.existing(name, directory=self.directory)
        except LookupError:
            raise self._missing(name) from None


class _Server(Backend):
    def __init__(self, url: str) -> None:
        from slotwise.redis import RedisSemaphore

        self._driver = RedisSemaphore
        # Somebody looks at the terminal: better a quick complaint than patience.
        self.config = _urls.redis_config(url, attempts=2)
        self.words = f"in use on {self.config.endpoint}"

    def names(self) -> list[str]:
        return sorted(self.stats()[0])

    def stats(self, names: Collection[str] | None = None) -> Found:
        found, troubles = self._driver._survey_sync(names, _ALL, self.config)
        return found, [*troubles]

    def find(self, name: str) -> Semaphore:
        found, troubles = self.stats([name])
        if troubles:
            raise troubles[0]
        stats = found.get(name)
        if stats is None:
            raise self._missing(name)
        return self._driver(name=name, value=stats.max_slots, config=self.config)


def open_backend(url: str | None) -> Backend:
    """The place that ``--url``, else ``SLOTWISE_URL``, names; else this machine's own."""
    where = url or _urls.url_of_environment() or "process://"
    scheme = _urls.scheme_of(where)
    if scheme == "memory":
        raise ValueError(
            "what is in memory:// can be seen only by its own process; use --url process://"
            " or redis://..."
        )
    return _Folder(_urls.folder_of(where)) if scheme == "process" else _Server(where)


def like(wanted: str, there: Collection[str]) -> str:
    """``; did you mean 'api'?``, or nothing."""
    near = get_close_matches(wanted, there, n=3)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
