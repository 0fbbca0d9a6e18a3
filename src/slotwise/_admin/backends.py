"""Open the directory or the server that ``--url`` names, to inspect and control what is there.

A backend finds semaphores and tiers by name and creates none. A name that is not found is an
error, which suggests similar names where that does no harm. A semaphore and tiers may have the
same name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from slotwise import _urls
from slotwise._admin.text import command_hint, similar
from slotwise._core.found_tiers import FoundTiers
from slotwise._core.path_backend import PathBackend
from slotwise._core.semaphore import Semaphore
from slotwise._core.stats import Claimant, SemaphoreStats, fullest
from slotwise.errors import SlotwiseError

_ALL = 1_000_000  # more semaphores than anybody would list

# What a name is of, where a semaphore and tiers have it; None is the semaphore, or else the tiers.
Kind: TypeAlias = Literal["semaphore", "tiers"] | None

# The statistics by name, and what was wrong with the semaphores that are not among them.
Found = tuple[dict[str, SemaphoreStats], list[SlotwiseError]]
Seen = tuple[dict[str, SemaphoreStats], dict[str, FoundTiers], list[SlotwiseError]]


@dataclass(frozen=True, slots=True)
class Claimants:
    """Who holds a semaphore or tiers, and who waits, in order."""

    holders: list[Claimant]
    waiters: list[Claimant]


class NotFound(SlotwiseError, LookupError):
    """There is no semaphore or tier of that name, or no acquisition of that id."""


class Backend(ABC):
    """A directory or a server."""

    #: where the semaphores are, as messages say it
    location: str
    #: who shares them, as events name it
    scope: ClassVar[str]
    #: whether a semaphore stays until it is forgotten, even if nobody uses it
    keeps_idle: ClassVar[bool]
    #: what ``--url`` was given, for messages that say what to type
    url: str | None = None

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of the semaphores, sorted."""

    @abstractmethod
    def stats(self, names: Collection[str] | None = None) -> Found:
        """Return the statistics of these semaphores, or of all; unknown names are left out."""

    @abstractmethod
    def tiers(
        self, names: Collection[str] | None = None
    ) -> tuple[dict[str, FoundTiers], list[SlotwiseError]]:
        """Return the tiers of these names, or all that are in use, and what can't be read."""

    def look(self) -> Seen:
        """Return the statistics of all semaphores, all tiers, and what can't be read.

        It may be called again and again.
        """
        stats, errors = self.stats()
        tiers, more_errors = self.tiers()
        return stats, tiers, [*errors, *more_errors]

    def found(self, name: str, stats: SemaphoreStats) -> Semaphore:  # noqa: ARG002 - drivers need it
        """Return the semaphore whose statistics these are.

        Raises:
            NotFound: it has been deleted meanwhile.
        """
        found = self._lookup(name)
        if found is None:
            raise self._not_found(name, "semaphore")
        return found

    def claimants(self, semaphores: Mapping[str, Semaphore]) -> dict[str, Claimants | None]:
        """Return who holds and who waits, by name; None for what can't be read any more."""
        found: dict[str, Claimants | None] = dict.fromkeys(semaphores)
        for name, each in semaphores.items():
            with suppress(SlotwiseError, LookupError):
                found[name] = claimants(each)
        return found

    @abstractmethod
    def _lookup(self, name: str) -> Semaphore | None:
        """Return the semaphore ``name``, if there is one."""

    def find(self, name: str, kind: Kind = None, *, suggest: bool = True) -> Semaphore | FoundTiers:
        """Return the semaphore ``name``, or if there is none the tiers of that name.

        A command that closes or deletes doesn't ``suggest`` similar names: ``name`` may have
        ended just now, and those are other people's.

        Raises:
            NotFound: there is neither, or none of that kind.
        """
        if not name:  # nothing has an empty name
            raise self._not_found(name, kind, suggest=suggest)
        semaphore = None if kind == "tiers" else self._lookup(name)
        if semaphore is not None:
            return semaphore
        if kind != "semaphore":
            found, errors = self.tiers([name])
            if errors:
                raise errors[0]
            if name in found:
                return found[name]
        if kind == "tiers" and self._lookup(name) is not None:
            raise NotFound(f"{name!r} is a semaphore; it has no tiers")
        raise self._not_found(name, kind, suggest=suggest)

    def find_tiers(self, name: str) -> FoundTiers:
        """Return the tiers of that name; as `find`."""
        found = self.find(name, "tiers")
        assert isinstance(found, FoundTiers)
        return found

    def all_names(self) -> list[str]:
        """Return the names of the semaphores and tiers, sorted."""
        return sorted({*self.names(), *self.tiers()[0]})

    def forget(self, name: str, kind: Kind = None) -> bool:
        """Delete the semaphore ``name``, or if there is none the tiers; False if they are used.

        Raises:
            NotFound: there is neither.
        """
        semaphore = None if kind == "tiers" else self._idle(name)
        if semaphore is not None:
            with suppress(LookupError):
                return bool(semaphore._backend.control_sync("forget"))
        found, errors = self.tiers([name])
        if errors:
            raise errors[0]
        if name not in found:
            raise self._not_found(name, kind, suggest=False)
        return bool(found[name].paths.control_sync("forget"))

    def _idle(self, name: str) -> Semaphore | None:
        """Return the semaphore ``name``, which may be idle, if there may be one."""
        return self._lookup(name)

    def _not_found(self, name: str, kind: Kind, *, suggest: bool = True) -> NotFound:
        what = "are no tiers" if kind == "tiers" else "is no semaphore"
        # Looked for even if not suggested: what can't be read is an error of its own.
        others = [each for each in self.all_names() if each != name]
        near = similar(name, others) if suggest else ""
        return NotFound(f"there {what} {name!r} {self.location}{near}")


class _DirectoryBackend(Backend):
    scope = "process"
    keeps_idle = True

    def __init__(self, directory: str | None) -> None:
        from slotwise.processes import ProcessSemaphore

        self._driver = ProcessSemaphore
        self.directory = directory
        self.location = f"in {directory}" if directory else "of yours on this machine"

    def names(self) -> list[str]:
        return self._driver.names(self.directory)

    def stats(self, names: Collection[str] | None = None) -> Found:
        from slotwise.processes._filenames import SUFFIX, locate
        from slotwise.processes._inspect import read_each
        from slotwise.processes._views import stats_of_semaphore

        asked = self.names() if names is None else names
        found, errors = read_each(locate(self.directory), asked, SUFFIX, stats_of_semaphore)
        return found, [*errors.values()]

    def tiers(
        self, names: Collection[str] | None = None
    ) -> tuple[dict[str, FoundTiers], list[SlotwiseError]]:
        from slotwise.processes._inspect import survey_tiers

        found, errors = survey_tiers(names, self.directory)
        return found, [*errors]

    def _lookup(self, name: str) -> Semaphore | None:
        from slotwise.processes._filenames import locate
        from slotwise.processes._inspect import stuck_locks
        from slotwise.processes._messages import stuck_error

        for pid in stuck_locks(locate(self.directory), [name]).values():
            raise stuck_error(name, pid)
        try:
            return self._driver.existing(name, directory=self.directory)
        except LookupError:
            return None


class _RedisBackend(Backend):
    scope = "redis"
    keeps_idle = False

    def __init__(self, url: str) -> None:
        from slotwise.redis import RedisSemaphore

        self._driver = RedisSemaphore
        # Somebody is waiting at the terminal: fail soon instead of retrying for long.
        self.config = _urls.redis_config(url, attempts=2)
        self.location = f"in use on {self.config.endpoint}"

    def _survey(self, kinds: Collection[str], names: Collection[str] | None = None) -> Any:
        from slotwise.redis._survey import survey_sync

        wanted = None if names is None else [(kind, name) for kind in kinds for name in names]
        return survey_sync(self.config, wanted, kinds=kinds)

    def names(self) -> list[str]:
        return sorted(self.stats()[0])

    def found(self, name: str, stats: SemaphoreStats) -> Semaphore:
        semaphore = self._driver(name=name, value=stats.max_slots, config=self.config)
        semaphore._backend.accepts_any = True
        return semaphore

    def claimants(self, semaphores: Mapping[str, Semaphore]) -> dict[str, Claimants | None]:
        import asyncio  # commands for this machine don't need it

        from slotwise.redis._diagnosis import Refused
        from slotwise.redis._shared_client import shared_client_for

        async def look(each: Semaphore) -> Claimants | None:
            try:
                waiters, holders = await asyncio.gather(each.waiters(), each.holders())
            except Refused:
                return None
            return Claimants(holders, waiters)

        async def look_at_all() -> list[Claimants | None]:  # their calls travel together
            return await asyncio.gather(*map(look, semaphores.values()))

        found = shared_client_for(self.config).heartbeat_thread.run(look_at_all())
        return dict(zip(semaphores, found, strict=True))

    def look(self) -> Seen:
        found = self._survey(("semaphore", "tiers"))
        return found.semaphores, found.tiers, found.errors

    def stats(self, names: Collection[str] | None = None) -> Found:
        found = self._survey(("semaphore",), names)
        return fullest(found.semaphores, _ALL, idle_too=names is not None), found.errors

    def tiers(
        self, names: Collection[str] | None = None
    ) -> tuple[dict[str, FoundTiers], list[SlotwiseError]]:
        found = self._survey(("tiers",), names)
        tiers: dict[str, FoundTiers] = found.tiers
        shown = {
            name: each
            for name, each in tiers.items()
            if each.is_used or each.closure or (names and each.specs)
        }
        return shown, found.errors

    def _lookup(self, name: str) -> Semaphore | None:
        found, errors = self.stats([name])
        if errors:
            raise errors[0]
        stats = found.get(name)
        if stats is None:
            return None
        return self.found(name, stats)

    def _idle(self, name: str) -> Semaphore | None:
        # Its value does not matter: one that is idle may have any.
        return self._driver(name=name, value=1, config=self.config)


def open_backend(url: str | None) -> Backend:
    """Open what ``--url`` names, else ``SLOTWISE_URL``, else this machine's own directory."""
    where = url or _urls.url_of_environment() or "process://"
    scheme = _urls.scheme_of(where)
    if scheme == "memory":
        raise ValueError(
            "memory:// can be seen only by its own process; use --url process:// or redis://..."
        )
    backend: Backend
    if scheme == "process":
        backend = _DirectoryBackend(_urls.directory_of(where))
    else:
        backend = _RedisBackend(where)
    backend.url = url
    return backend


def controlled(found: Semaphore | FoundTiers) -> PathBackend:
    """Return what has holders and waiters, and can be changed."""
    return found.paths if isinstance(found, FoundTiers) else found._backend


def claimants(found: Semaphore | FoundTiers) -> Claimants:
    """Return the holders and waiters of a semaphore or of tiers."""
    limit = controlled(found)
    # Waiters first: one granted in between is then seen twice instead of missed.
    waiters = limit.waiters_sync()
    return Claimants(limit.holders_sync(), waiters)


# The name of a limit, the limit, and one of its holders.
HolderFound: TypeAlias = tuple[str, PathBackend, Claimant]


def find_holder(
    backend: Backend, acquisition_id: str, name: str | None = None, kind: Kind = None
) -> HolderFound:
    """Return who holds slots by that id, and of what; if ``name`` is given, of nothing else.

    Raises:
        NotFound: nobody does, of what can be read. It suggests nobody else: whoever is found here
            is kicked or released.
    """
    errors: list[SlotwiseError] = []
    for each, found in _limits(backend, name, kind, errors):
        try:
            who = claimants(found)
        except SlotwiseError as error:  # it may still be a holder of another one
            errors.append(error)
            continue
        for holder in who.holders:
            if holder.acquisition_id == acquisition_id:
                return each, controlled(found), holder
        if any(waiter.acquisition_id == acquisition_id for waiter in who.waiters):
            raise NotFound(f"{acquisition_id!r} is a waiter of {each!r}; it holds nothing yet")
    show = command_hint("show", "NAME", url=backend.url)
    unread = "".join(f"; can't look into all of them: {error}" for error in errors[:1])
    raise NotFound(
        f"no limit {backend.location} has a holder with the id {acquisition_id!r};"
        f" '{show}' lists the ids{unread}"
    )


def _limits(
    backend: Backend, only: str | None, kind: Kind, errors: list[SlotwiseError]
) -> Iterator[tuple[str, Semaphore | FoundTiers]]:
    """Yield all limits that can be read; why the others can't is added to ``errors``."""
    names = [] if kind == "tiers" else backend.names() if only is None else [only]
    for name in names:
        try:
            yield name, backend.find(name, "semaphore")
        except NotFound:  # deleted just now
            continue
        except SlotwiseError as error:
            errors.append(error)
    if kind != "semaphore":
        tiers, more_errors = backend.tiers(None if only is None else [only])
        errors += more_errors
        yield from tiers.items()
