"""``slotwise doctor``: run the checks of a directory or a server, and print what to do."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain

from slotwise import _urls
from slotwise._admin.text import count
from slotwise._cli.flags import JSON, URL, Command, Flag
from slotwise._cli.output import print_json, printable
from slotwise._core.redaction import redact
from slotwise._core.semaphore import Semaphore
from slotwise.errors import SlotwiseError

OK, WARNING, FAILED = "ok", "warning", "failed"


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check, and what to do if it is not ok."""

    check: str
    state: str
    found: str
    remedy: str | None = None


def doctor(given: argparse.Namespace) -> int:
    """Check everything, and print it; the exit code is 1 if a check has failed."""
    where, as_json = given.url or _urls.url_of_environment() or "process://", given.json
    checks = []
    for check in chain([_default()], _checks(where, given.load_scripts)):
        checks.append(check)
        if not as_json:
            _print(check)
    if as_json:
        print_json([asdict(check) for check in checks])
    failed = sum(check.state == FAILED for check in checks)
    if not as_json:
        sys.stdout.write(_summary(failed, sum(check.state == WARNING for check in checks)))
        sys.stdout.flush()
    return 1 if failed else 0


def _default() -> Check:
    """What a program uses that names no url."""
    url = _urls.url_of_environment()
    found = "memory://, since SLOTWISE_URL is not set" if url is None else redact(url)
    return Check("SLOTWISE_URL", OK, f"programs that name no url use {found}")


def _checks(where: str, load_scripts: bool) -> Iterable[Check]:
    scheme = _urls.scheme_of(where)
    if load_scripts and scheme in ("memory", "process"):
        raise ValueError(f"--load-scripts is for Redis: {scheme}:// has no scripts")
    if scheme == "memory":
        return [Check("scope", OK, "memory:// needs nothing but this process")]
    if scheme == "process":
        from slotwise._cli.doctor_directory import examine

        return examine(_urls.directory_of(where))
    import slotwise.redis  # noqa: F401  # the first: it says what to install
    from slotwise._cli.doctor_redis import examine as examine_server

    return examine_server(where, load_scripts=load_scripts)


def _print(check: Check) -> None:
    """Print it at once: the next check may take a while."""
    remedy = f"{'':<24}{printable(check.remedy)}\n" if check.remedy else ""
    sys.stdout.write(f"{check.state:<8}  {check.check:<12}  {printable(check.found)}\n{remedy}")
    sys.stdout.flush()


def _summary(failed: int, warnings: int) -> str:
    if failed:
        return f"{count(failed, 'check')} failed\n"
    return "fit for use" + (f", with {count(warnings, 'warning')}" if warnings else "") + "\n"


# ------------------------------------------------------------------ of both kinds of examination


def problem(check: str, error: BaseException, state: str = FAILED, *, colon: bool = False) -> Check:
    """Split a message into what is wrong and, after a semicolon or its last colon, what helps."""
    words = str(error)
    found, _, remedy = words.rpartition(": ") if colon else words.partition("; ")
    return Check(check, state, found or words, remedy or None)


def readable(
    check: str, number: int, errors: Iterable[BaseException], *, colon: bool = False
) -> Iterator[Check]:
    """Say what can't be read, or how many there are."""
    broken = [problem(check, error, colon=colon) for error in errors]
    yield from broken or [Check(check, OK, f"{number}, all readable")]


def a_slot(semaphore: Semaphore) -> Check:
    """Acquire a slot of a private semaphore and release it: the check that matters."""
    started = time.perf_counter()
    try:
        semaphore.release_sync(semaphore.acquire_sync(timeout=5))
    except SlotwiseError as error:
        return problem("a slot", error)
    taken = (time.perf_counter() - started) * 1000
    return Check("a slot", OK, f"acquired and released in {taken:.1f} ms")


def first_few(things: list[str], most: int = 3) -> str:
    """The first few of many."""
    more = f" and {len(things) - most} more" if len(things) > most else ""
    return ", ".join(things[:most]) + more


COMMANDS = (
    Command(
        "doctor",
        doctor,
        Flag(
            "--load-scripts",
            action="store_true",
            help="load slotwise's scripts into the Redis server first",
        ),
        JSON,
        URL,
        details="Every problem is printed with its remedy. The exit code is 1 if a check failed.",
        examples="  slotwise doctor\n"
        "  slotwise doctor --url redis://cache:6379\n"
        "  slotwise doctor --json | jq '.[] | select(.state == \"failed\")'\n"
        "  slotwise doctor --load-scripts --url redis://admin:...@cache   for users without +eval",
    ),
)
