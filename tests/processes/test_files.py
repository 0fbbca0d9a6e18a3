"""The directory and the files in it: who can use them, and the errors if they can't be used."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import pytest
from tests import _fresh_processes
from tests.processes._copies import Copy
from tests.processes._inside import extent, limit_of, sweep_soon
from tests.redis._server import wait_until

from slotwise import BackendError, SemaphoreStats, SlotwiseError
from slotwise._core.paths import semaphore_spec
from slotwise.processes import ProcessSemaphore, UnknownSemaphore
from slotwise.processes._directory import OpenDirectory
from slotwise.processes._filenames import filename_of, locate, name_from
from slotwise.processes._messages import os_error
from slotwise.processes._operations import release
from slotwise.processes._state import State

Make = Callable[..., ProcessSemaphore]

ROOT = Path(__file__).parents[2]


def file_of(semaphore: ProcessSemaphore, directory: Path) -> Path:
    assert semaphore.name is not None
    return directory / filename_of(semaphore.name)


def used(make: Make, **options: object) -> ProcessSemaphore:
    semaphore = make(**options)
    semaphore.release_sync(semaphore.acquire_sync())
    return semaphore


def in_another_process(directory: Path, code: str) -> str:
    """Return what ``code`` prints in a process that has not opened any of our files."""
    program = (
        "import sys; from slotwise.processes import ProcessSemaphore\n"
        "s = ProcessSemaphore(name='s', value=1, directory=sys.argv[1])\n"
        f"try: {code}\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    return _fresh_processes.run(
        [sys.executable, "-c", program, str(directory)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout


# ------------------------------------------------------------------ the directory


def test_the_directory_is_the_argument_then_the_environment_then_the_systems(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("SLOTWISE_DIR", raising=False)
    system = Path(locate(None))
    assert system.name == f"slotwise-{os.getuid()}"
    assert str(system.parent) in ("/tmp", "/var/tmp")
    monkeypatch.setenv("SLOTWISE_DIR", str(tmp_path / "env"))
    assert locate(None) == str(tmp_path / "env")
    assert locate(tmp_path / "arg") == str(tmp_path / "arg")
    assert ProcessSemaphore(1, directory=tmp_path / "arg").directory == tmp_path / "arg"
    with pytest.raises(TypeError, match="directory must be a path"):
        ProcessSemaphore(name="s", value=1, directory=7)  # type: ignore[arg-type]


def test_the_directory_is_created_for_its_owner_only(make: Make, directory: Path) -> None:
    old = os.umask(0)
    try:
        semaphore = used(make)
    finally:
        os.umask(old)
    assert directory.stat().st_mode & 0o777 == 0o700
    assert file_of(semaphore, directory).stat().st_mode & 0o777 == 0o600


def test_a_directory_that_others_can_write_to_is_refused(make: Make, directory: Path) -> None:
    directory.mkdir()
    directory.chmod(0o770)
    told = rf"^{directory}: others can write to it \(mode 770\): run `chmod 700 {directory}`"
    with pytest.raises(BackendError, match=told):
        make().acquire_sync()
    directory.chmod(0o700)
    make().acquire_sync()


def test_a_symbolic_link_is_refused(make: Make, directory: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    directory.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BackendError, match="symbolic link"):
        make().acquire_sync()


def test_a_file_in_place_of_the_directory_is_refused(make: Make, directory: Path) -> None:
    directory.touch()
    with pytest.raises(BackendError, match=f"{directory}: not a directory"):
        make().acquire_sync()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_somebody_else_is_refused(make: Make, directory: Path) -> None:
    directory.mkdir(mode=0o700)
    os.chown(directory, 12345, 12345)
    with pytest.raises(BackendError, match="it belongs to user 12345"):
        make().acquire_sync()


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_written_is_named(make: Make, directory: Path) -> None:
    directory.mkdir(mode=0o500)
    with pytest.raises(BackendError, match=f"{directory}.*check its owner and mode"):
        make().acquire_sync()


def test_a_missing_parent_is_named(tmp_path: Path) -> None:
    semaphore = ProcessSemaphore(name="s", value=1, directory=tmp_path / "no" / "such")
    with pytest.raises(BackendError, match="create its parent directory first"):
        semaphore.acquire_sync()


def test_the_path_of_the_directory_can_be_long(tmp_path: Path) -> None:
    """It would be too long for a Unix socket."""
    deep = tmp_path / ("d" * 200)
    deep.mkdir(mode=0o700)
    with ProcessSemaphore(name="s", value=1, directory=deep).cm():
        assert in_another_process(deep, "print(s.try_acquire_sync())") == "None\n"


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOLCK, "no locks: set SLOTWISE_DIR to a directory on a local disk"),
        (errno.ENOTSUP, "no locks: set SLOTWISE_DIR to a directory on a local disk"),
        (errno.EROFS, "read-only"),
        (errno.EMFILE, "ulimit -n"),
    ],
)
def test_errors_name_the_file_and_the_remedy(number: int, remedy: str) -> None:
    told = str(os_error(OSError(number, os.strerror(number)), "/some/file"))
    assert told.startswith("/some/file: ")
    assert remedy in told


# ------------------------------------------------------------------- the names


@pytest.mark.parametrize(
    "name",
    ["plain", "a/b/../c", "ümläut 名前", ".", "..", "%41", "CASE", "case", "nul\0", "x" * 3000],
)
def test_any_text_can_be_a_name(make: Make, directory: Path, name: str) -> None:
    used(make, name=name)
    assert ProcessSemaphore.names(directory) == [name]
    assert ProcessSemaphore.existing(name, directory=directory).name == name
    assert [path.parent for path in directory.rglob("*.slots")] == [directory]


def test_short_names_are_read_from_the_file_names() -> None:
    assert name_from(filename_of("a/b c")) == "a/b c"
    assert name_from(filename_of("ü" * 1000)) is None


def test_a_directory_that_does_not_exist_has_no_names(directory: Path) -> None:
    assert ProcessSemaphore.names(directory) == []
    assert not directory.exists()


def test_what_was_never_used_does_not_exist(make: Make, directory: Path) -> None:
    with pytest.raises(LookupError, match=f"no semaphore 'x' in {directory}"):
        ProcessSemaphore.existing("x", directory=directory)
    with pytest.raises(SlotwiseError):
        ProcessSemaphore.existing("x", directory=directory)
    assert make(name="x").release_sync("p1-1") is False
    assert ProcessSemaphore.names(directory) == []
    with pytest.raises(LookupError):
        ProcessSemaphore.existing("x", directory=directory)


# ------------------------------------------------------------------- contents


def test_a_file_that_is_garbage_is_an_error_that_names_it(make: Make, directory: Path) -> None:
    directory.mkdir(mode=0o700)
    path = file_of(make(), directory)
    path.write_bytes(b"garbage" * 1000)
    with pytest.raises(BackendError, match=f"{path}: its contents are damaged .*: remove it"):
        make().acquire_sync()
    path.unlink()
    make().acquire_sync(timeout=30)


def test_a_flipped_bit_is_an_error_wherever_it_counts(make: Make, directory: Path) -> None:
    path = file_of(used(make), directory)
    sound = path.read_bytes()
    copy = Copy(OpenDirectory(directory), path.name, 77)
    copy.catch_up()
    journal = copy.journal
    for at in range(*extent(journal), 7):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :])
        journal.forget()
        with pytest.raises(BackendError, match=r"checksum|truncated"):
            journal.read()
    copy.file.close()
    copy.file.directory.close()


def test_one_damaged_root_does_no_harm(make: Make, directory: Path) -> None:
    """It is the older root, or the last change was not committed."""
    path = file_of(used(make), directory)
    sound = path.read_bytes()
    for at in (0, 64):
        path.write_bytes(sound[:at] + b"slotwise" + b"\0" * 56 + sound[at + 64 :])
        assert "SemaphoreStats" in in_another_process(directory, "print(s.stats_sync())")


def test_a_file_of_a_newer_release_is_left_alone(make: Make, directory: Path) -> None:
    path = file_of(used(make), directory)
    sound = path.read_bytes()
    roots = [b"slotwise\x03" + sound[at + 9 : at + 60] for at in (0, 64)]
    newer = b"".join(root + struct.pack("<I", crc32(root)) for root in roots) + sound[128:]
    path.write_bytes(newer)
    told = in_another_process(directory, "s.acquire_sync()")
    assert told.startswith(f"BackendError {path}: a newer release of slotwise uses it")
    assert path.read_bytes() == newer


def test_a_deleted_file_ends_what_was_held_in_it(make: Make, directory: Path) -> None:
    semaphore = make()
    acquired = semaphore.acquire_sync()
    shutil.rmtree(directory)
    assert semaphore.release_sync(acquired) is False
    assert acquired.lost.is_set()
    assert "deleted" in str(acquired.lost.reason)
    # It goes on with a new file.
    again = semaphore.acquire_sync(timeout=30)
    assert in_another_process(directory, "print(s.locked_sync())") == "True\n"
    assert semaphore.release_sync(again) is True


@pytest.mark.parametrize("displace", [Path.unlink, lambda path: path.rename(path.parent / "old")])
def test_creating_a_file_again_tells_the_holders_of_the_old_one(
    make: Make, directory: Path, displace: Callable[[Path], object]
) -> None:
    """Otherwise there would be two semaphores, and nobody would know."""
    semaphore = make()
    acquired = semaphore.acquire_sync()
    displace(file_of(semaphore, directory))
    assert not acquired.lost.is_set()
    assert "acquisition_id" in in_another_process(directory, "print(s.acquire_sync())")
    assert acquired.lost.wait(30)
    # The new file is used.
    assert semaphore.acquire_sync(timeout=30).slot_number == 1
    assert in_another_process(directory, "print(s.locked_sync())") == "True\n"


def test_a_private_semaphore_is_not_listed_and_leaves_nothing(make: Make, directory: Path) -> None:
    semaphore = make(name=None)
    semaphore.release_sync(semaphore.acquire_sync())
    semaphore.resize_sync(3)
    public = used(make, name="private-of-mine")
    assert ProcessSemaphore.names(directory) == ["private-of-mine"]
    assert len([*directory.glob("*.private")]) == 1
    del semaphore
    gc.collect()
    assert [*directory.glob("*.private")] == []
    assert file_of(public, directory).exists()


def test_a_private_semaphore_leaves_nothing_at_the_end_of_its_process(directory: Path) -> None:
    told = in_another_process(
        directory,
        "p = ProcessSemaphore(value=1, directory=sys.argv[1]); print(p.acquire_sync())",
    )
    assert "acquisition_id" in told
    assert [*directory.iterdir()] == []


def test_a_private_semaphore_is_shared_with_forked_children(directory: Path) -> None:
    """A child that ends doesn't delete it."""
    child = (
        "import os; p.release_sync('x'); tried = p.try_acquire_sync(); sys.exit(tried is not None)"
    )
    program = (
        "import os, sys; from slotwise.processes import ProcessSemaphore\n"
        "p = ProcessSemaphore(value=1, directory=sys.argv[1]); a = p.acquire_sync()\n"
        "child = os.fork()\n"
        f"if not child: {child}\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0\n"
        "assert p.release_sync(a) is True\n"
    )
    _fresh_processes.run(
        [sys.executable, "-W", "ignore", "-c", program, str(directory)], check=True, timeout=60
    )
    assert [*directory.iterdir()] == []


def test_a_directory_that_is_mounted_twice_is_one(tmp_path: Path) -> None:
    """Opening its files by the other path would drop the locks on them."""
    here, there = tmp_path / "here", tmp_path / "there"
    for path in (here, there):
        path.mkdir(mode=0o700)
    inside = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    mount = f"mount --bind '{here}' '{there}'"
    if (
        shutil.which("unshare") is None
        or subprocess.run([*inside, mount], capture_output=True, check=False).returncode
    ):
        pytest.skip("nothing may be mounted here")
    program = tmp_path / "program.py"
    program.write_text(
        "import subprocess, sys\n"
        "from slotwise.processes import ProcessSemaphore\n"
        "here, there = (ProcessSemaphore(name='s', value=1, directory=d) for d in sys.argv[1:])\n"
        "acquired = here.acquire_sync()\n"
        "assert there.locked_sync()\n"
        "assert ProcessSemaphore.names(sys.argv[2]) == ['s']\n"
        "other = 'import sys; from slotwise.processes import ProcessSemaphore as P;'"
        " 'print(P(name=\"s\", value=1, directory=sys.argv[1]).try_acquire_sync())'\n"
        "got = subprocess.check_output([sys.executable, '-c', other, sys.argv[1]], text=True)\n"
        "assert got == 'None\\n', got\n"
        "assert there.release_sync(acquired) is True\n"
    )
    run = f"{mount} && exec '{sys.executable}' '{program}' '{here}' '{there}'"
    subprocess.run([*inside, run], check=True, timeout=60)


def test_a_reused_pid_is_not_mistaken_for_the_dead_process(make: Make, directory: Path) -> None:
    semaphore = used(make)
    # A dead holder with the pid of a live process: this one.
    forged = f"s._backend.limit().journal.process.pid = {os.getpid()}; print(s.acquire_sync())"
    assert "acquisition_id" in in_another_process(directory, forged)
    assert semaphore.try_acquire_sync() is not None


def test_after_a_reboot_a_name_begins_anew(make: Make, directory: Path) -> None:
    directory.mkdir(mode=0o700)
    before = State("s", [semaphore_spec(1)], "the boot before")
    before.apply(["request", 9e9, 1, "pabc-1", [[None]], 5.0, None, 4711, None])
    before.apply(["request", 9e9, 1, "pabc-2", [[None]], None, 9e9, 4711, None])
    before.apply(["close_everywhere", 9e9, 1, None, None, "night"])
    copy = Copy(OpenDirectory(directory), filename_of("s"), 77)
    copy.create(before)
    copy.file.close()
    copy.file.directory.close()
    with pytest.raises(UnknownSemaphore):
        ProcessSemaphore.existing("s", directory=directory)
    semaphore = make(1)
    assert semaphore.stats_sync() == SemaphoreStats(0, 1)
    held = semaphore.acquire_sync(timeout=0)
    assert in_another_process(directory, "print(s.stats_sync())").startswith("SemaphoreStats(acq")
    assert semaphore.release_sync(held)


def open_files() -> int:
    """Return how many files this process has open."""

    def is_open(number: int) -> bool:
        try:
            os.fstat(number)
        except OSError:
            return False
        return True

    return sum(is_open(number) for number in range(1000))


def test_many_names_do_not_keep_many_files_open(make: Make, directory: Path) -> None:
    held = make(name="held")
    acquired = held.acquire_sync()
    before = open_files()
    for number in range(300):
        used(make, name=f"name {number}")
    assert open_files() < before + 200
    assert (
        in_another_process(
            directory,
            "print(ProcessSemaphore.existing('held', directory=sys.argv[1]).locked_sync())",
        )
        == "True\n"
    )
    assert held.release_sync(acquired) is True


def test_a_full_disk_does_not_prevent_a_release(tmp_path: Path) -> None:
    directory = tmp_path / "tiny"
    directory.mkdir(mode=0o700)
    mount = f"mount -t tmpfs -o size=128k,mode=700 tiny '{directory}'"
    inside = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*inside, mount], capture_output=True, check=False).returncode
    ):
        pytest.skip("no file system may be mounted here")
    done = subprocess.run(
        [
            *inside,
            f"{mount} && exec '{sys.executable}' -m tests.processes._full_disk '{directory}'",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_a_limit_for_file_sizes_is_named(directory: Path) -> None:
    limited = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        " resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); s.acquire_sync()"
    )
    told = in_another_process(directory, limited)
    assert told.startswith(f"BackendError {directory / filename_of('s')}")
    assert "ulimit -f" in told
    # Nothing is left that would block others.
    assert "acquisition_id" in in_another_process(directory, "print(s.acquire_sync())")


def test_what_was_held_in_a_file_that_was_moved_away_and_back_is_free(
    make: Make, directory: Path
) -> None:
    semaphore = make(1)
    held = semaphore.acquire_sync()
    path, away = directory / filename_of("s"), directory / "away"
    path.rename(away)
    in_another_file = semaphore.acquire_sync(timeout=20)
    assert held.lost
    semaphore.release_sync(in_another_file)
    path.unlink()
    away.rename(path)
    semaphore.release_sync(semaphore.acquire_sync(timeout=20))
    assert semaphore.stats_sync().acquired_slots == 0


# ------------------------------------------------------------------------ growth


LONG = 30.0


def files(directory: Path) -> list[Path]:
    return [*directory.glob("*.slots"), *directory.glob("*.private")]


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def use(semaphore: ProcessSemaphore) -> None:
    with semaphore.cm(timeout=LONG):
        pass


def test_names_not_used_for_a_minute_are_deleted_as_others_are_created(
    make: Make, directory: Path
) -> None:
    for number in range(200):  # more than stay open
        use(make(name=f"old {number}"))
    old = files(directory)
    assert len(old) == 200
    for path in old:
        age(path, 20)
    for number in range(5):
        use(make(name=f"young {number}"))
    assert len(files(directory)) == 205, "not yet"
    for path in old:
        age(path, 61)
    for number in range(200):
        use(make(name=f"new {number}"))
    assert [path for path in old if path.exists()] == []
    assert len(files(directory)) == 205, "and none of the others"


def test_an_idle_process_deletes_its_files_by_itself(make: Make, directory: Path) -> None:
    semaphore = make()
    use(semaphore)
    age(directory / filename_of("s"), 61)
    sweep_soon(semaphore)
    wait_until(lambda: files(directory) == [], "no file", within=LONG)
    use(semaphore)
    assert len(files(directory)) == 1


def test_files_of_held_resized_or_closed_semaphores_stay(make: Make, directory: Path) -> None:
    held, resized, closed = (make(name=name) for name in ("held", "resized", "closed"))
    acquired = held.acquire_sync()
    resized.resize_sync(3)
    use(closed)
    closed.close_everywhere_sync("for the night")
    for path in files(directory):
        age(path, 3600)
    for number in range(10):
        use(make(name=f"new {number}"))
    assert {*ProcessSemaphore.names(directory)} >= {"held", "resized", "closed"}
    assert held.release_sync(acquired) is True


def test_a_release_of_an_unknown_id_creates_no_file(make: Make, directory: Path) -> None:
    semaphore = make()
    assert semaphore.release_sync("p1-1") is False
    assert files(directory) == []


def test_a_timer_creates_no_file(make: Make, directory: Path) -> None:
    semaphore = make(ttl=0.05)
    acquired = semaphore.acquire_sync()
    (directory / filename_of("s")).unlink()
    assert acquired.lost.wait(LONG)
    assert files(directory) == []


def test_the_file_of_a_private_semaphore_is_deleted_with_its_last_holder(
    make: Make, directory: Path
) -> None:
    semaphore = make(name=None)
    acquired = semaphore.acquire_sync()
    limit = limit_of(semaphore)
    del semaphore
    gc.collect()
    assert len(files(directory)) == 1, "it is held"
    limit.change(release, limit, acquired.acquisition_id, None)
    del acquired
    gc.collect()
    assert files(directory) == []


def test_a_file_of_an_older_release_that_can_not_be_read_is_called_that(
    make: Make, directory: Path
) -> None:
    """Not damaged: nothing is wrong with the disk."""
    path = file_of(used(make), directory)
    snapshot, start = b'{"of": "long ago"}', 384
    frame = struct.pack("<II", len(snapshot), crc32(snapshot, 9)) + snapshot
    root = struct.pack("<8sHHQQQQ16x", b"slotwise", 1, 0, 1000, 9, start, start + len(frame))
    old = bytearray(path.read_bytes())
    old[0:64] = root + struct.pack("<I", crc32(root))
    old[start : start + len(frame)] = frame
    path.write_bytes(old)
    told = in_another_process(directory, "s.acquire_sync()")
    assert told.startswith(
        f"BackendError {path}: an older release of slotwise wrote it (format 1.0,"
    )
    assert path.read_bytes() == old


def test_old_idle_files_are_deleted_by_later_processes(make: Make, directory: Path) -> None:
    yesterday = time.time() - 25 * 3600
    idle, resized, in_use, young = (make(name=name) for name in ("idle", "resized", "in use", "y"))
    for semaphore in (idle, resized, young):
        semaphore.release_sync(semaphore.acquire_sync())
    resized.resize_sync(3)
    held = in_use.acquire_sync()
    for semaphore in (idle, resized, in_use):
        os.utime(file_of(semaphore, directory), (yesterday, yesterday))
    in_another_process(directory, "s.acquire_sync()")
    assert ProcessSemaphore.names(directory) == ["in use", "resized", "s", "y"]
    # A process that has the deleted file open creates another.
    again = idle.acquire_sync(timeout=30)
    assert ProcessSemaphore.names(directory) == ["idle", "in use", "resized", "s", "y"]
    assert idle.release_sync(again) is True
    assert in_use.release_sync(held) is True
