"""Files with any contents: they work, or there is an error with a remedy. Nothing hangs."""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.processes._copies import Copy
from tests.processes.test_files import in_another_process
from tests.processes.test_stuck_lock import stuck

from slotwise import BackendError, Limit, SlotwiseError, Tier, Tiers
from slotwise._core.paths import semaphore_spec
from slotwise.processes import ProcessSemaphore
from slotwise.processes._directory import OpenDirectory
from slotwise.processes._filenames import SUFFIX, TIERS_SUFFIX, filename_of
from slotwise.processes._state import State

Make = Callable[..., ProcessSemaphore]

HEAD = 384  # two roots, and the lock queue
LONG = 20.0  # seconds; nothing here has to wait


def a_history(path: Path) -> None:
    """A file as dead processes leave it: holders, waiters, deadlines, a snapshot and records."""
    state = State("s", [semaphore_spec(2)], "another boot")
    for number, ttl in enumerate((None, 5.0, None)):
        state.apply(["request", 100.0, 7, f"pabc-{number}", [[None]], ttl, None, 4711, "a label"])
    copy = Copy(OpenDirectory(path.parent), path.name, 77)
    copy.create(state)
    copy.write(["request", 101.0, 8, "pdef-1", [[None], [2]], 5.0, 1e9, 4712, None])
    copy.write(["release", 102.0, 9, "pabc-0"])
    copy.write(["resize", 103.0, 9, None, None, 3])
    copy.write(["drop dead", 104.0, 9, ["pdef"]])
    copy.file.close()
    copy.file.directory.close()


def garble_anywhere(dice: random.Random, raw: bytes) -> bytes:
    damaged = bytearray(raw)
    # Mostly where it matters: the head, and right behind it.
    limit = dice.choice([128, HEAD, HEAD, 2000])
    match dice.randrange(4):
        case 0:
            for _ in range(dice.randint(1, 4)):
                damaged[dice.randrange(limit)] ^= 1 << dice.randrange(8)
        case 1:
            at = dice.randrange(limit)
            damaged[at : at + 16] = dice.randbytes(16)
        case 2:
            at = dice.randrange(limit)
            damaged[at : at + 256] = dice.choice([b"\0", b"\xff"]) * 256
        case _:
            del damaged[limit + dice.randrange(600) :]
    return bytes(damaged)


def serves(semaphore: ProcessSemaphore, path: Path) -> bool:
    """Call everything; return False if the file was refused, as it should be."""
    calls: list[Callable[[], object]] = [
        lambda: semaphore.release_sync("pabc-1"),
        semaphore.stats_sync,
        semaphore.holders_sync,
        semaphore.waiters_sync,
        semaphore.locked_sync,
        semaphore.try_acquire_sync,
        lambda: semaphore.acquire_sync(timeout=0),
    ]
    sound = True
    for call in calls:
        since = time.monotonic()
        try:
            call()
        except BackendError as error:
            told = str(error)
            sound = sound and not told.startswith(str(path))
            if sound or not re.search("damaged .* remove it|an? (newer|older) release", told):
                raise
        except SlotwiseError:
            pass  # closed, in use with another value, nothing free: all of that is possible
        assert time.monotonic() - since < LONG
    ProcessSemaphore.get_acquired_stats_sync(
        directory=path.parent
    )  # it leaves out what it can't read
    return sound


@pytest.mark.soak
def test_a_garbled_file_serves_or_is_refused(make: Make, directory: Path) -> None:
    directory.mkdir(mode=0o700)
    a_history(directory / "template")
    template = (directory / "template").read_bytes()
    refused = 0
    for seed in range(200):
        name = f"n{seed}"
        path = directory / filename_of(name)
        path.write_bytes(garble_anywhere(random.Random(seed), template))
        try:
            sound = serves(make(2, name=name), path)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        refused += not sound
        path.unlink(missing_ok=True)
        if not sound:  # remove it, as the message says
            with make(2, name=name).cm(timeout=LONG):
                pass
            path.unlink()
    assert 0 < refused < 200


@pytest.mark.parametrize("size", [1, 63, 64, 127])
def test_nothing_is_granted_in_a_file_that_was_truncated_while_it_is_held(
    make: Make, directory: Path, size: int
) -> None:
    semaphore = make(3)
    semaphore.acquire_sync()
    os.truncate(directory / filename_of("s"), size)
    with pytest.raises(BackendError, match=r"damaged .* remove it"):
        semaphore.acquire_sync(timeout=LONG)


def test_the_holders_of_a_file_that_was_emptied_are_told_by_another_process(
    make: Make, directory: Path
) -> None:
    """Its records are as long as the old ones were, and must not pass for what came after them."""
    semaphore = make(1)
    held = semaphore.acquire_sync()
    os.truncate(directory / filename_of("s"), 0)
    same = "[s.release_sync(s.acquire_sync(timeout=30)) for _ in range(3)]"
    assert in_another_process(directory, f"print({same})") == "[True, True, True]\n"
    assert held.lost.wait(LONG)
    assert semaphore.release_sync(held) is False
    assert semaphore.acquire_sync(timeout=LONG).slot_number == 1


@pytest.mark.parametrize("size", [128, 383, 384, 500])
def test_a_process_that_has_read_a_file_needs_nothing_that_was_cut_off(
    make: Make, directory: Path, size: int
) -> None:
    semaphore = make(3)
    held = semaphore.acquire_sync()
    os.truncate(directory / filename_of("s"), size)
    for _ in range(200):  # until there is a new snapshot
        assert semaphore.release_sync(semaphore.acquire_sync(2, timeout=LONG))
        assert semaphore.try_acquire_sync(3) is None
    assert "acquired_slots=1" in in_another_process(directory, "print(s.stats_sync())")
    assert semaphore.release_sync(held)


def test_a_wait_for_the_lock_of_a_deleted_file_ends(make: Make, directory: Path) -> None:
    semaphore = make()
    semaphore.release_sync(semaphore.acquire_sync())
    with stuck(directory):
        (directory / filename_of("s")).unlink()
        with semaphore.cm(timeout=LONG):
            pass


@pytest.mark.parametrize("kind", ["semaphore", "tiers"])
def test_nobody_waits_for_a_file_that_is_damaged_meanwhile(
    make: Make, directory: Path, kind: str
) -> None:
    tiers = Tiers(Tier("all", 1), name="s", url=f"process://{directory}")
    limit: Limit = make(1) if kind == "semaphore" else tiers.at()
    limit.acquire_sync()
    told: list[BaseException] = []

    def wait() -> None:
        try:
            limit.acquire_sync()
        except BaseException as error:
            told.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    until = time.monotonic() + LONG
    while not limit.stats_sync().waiting:
        assert time.monotonic() < until
    os.truncate(directory / filename_of("s", SUFFIX if kind == "semaphore" else TIERS_SUFFIX), 100)
    thread.join(LONG)
    assert [type(error) for error in told] == [BackendError]
    assert re.search("damaged .* remove it", str(told[0]))


def test_a_damaged_file_does_not_keep_the_holders_of_others_from_being_told(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damaged, deleted, waited_for = (
        ProcessSemaphore(1, name=name, directory=directory) for name in ("a", "b", "c")
    )
    damaged.acquire_sync()
    lost, held = deleted.acquire_sync(), waited_for.acquire_sync()
    # While somebody waits, all files are checked once in a second.
    waiting = threading.Thread(target=waited_for.acquire_sync, daemon=True)
    waiting.start()
    os.truncate(directory / filename_of("a"), 100)
    (directory / filename_of("b")).unlink()
    was_told = lost.lost.wait(LONG)
    waited_for.release_sync(held)
    waiting.join(LONG)
    assert was_told
    said = [each for each in caplog.messages if f"{directory / filename_of('a')}: " in each]
    assert len(said) <= 1  # none if it was checked for the last time before the damage


@pytest.mark.parametrize("how", ["moved", "emptied"])
def test_a_waiter_for_several_slots_is_told_that_the_file_is_gone(
    make: Make, directory: Path, how: str
) -> None:
    """And not that there are too few slots."""
    semaphore = make(4)
    held = semaphore.acquire_sync(4)
    told: list[BaseException] = []

    def wait() -> None:
        try:
            semaphore.acquire_sync(2)
        except BaseException as error:
            told.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    until = time.monotonic() + LONG
    while not semaphore.stats_sync().waiting:
        assert time.monotonic() < until
    if how == "moved":
        (directory / filename_of("s")).rename(directory / "elsewhere")
    else:
        os.truncate(directory / filename_of("s"), 0)
    thread.join(LONG)
    assert [type(error) for error in told] == [BackendError]
    assert "lost its place in the queue" in str(told[0])
    assert held.lost.wait(LONG)
    assert semaphore.acquire_sync(2, timeout=LONG).slot_number == 1
