"""What must never be deleted, whatever happens meanwhile."""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests._stdlib import leave

from slotwise.purge import PurgeOptions, RootRefused, make_plan, purge

NOBODY = 65534


def in_child(work, *, uid: int | None = None, files: int | None = None) -> dict:
    """Run ``work`` in a process of its own, as another user or with few descriptors."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            if files is not None:
                # What other tests have left open in this process is not ours to count.
                for fd in {int(path.name) for path in Path("/proc/self/fd").iterdir()}:
                    if fd > 2 and fd != writing:
                        with contextlib.suppress(OSError):
                            os.close(fd)
                resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
            if uid is not None:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
            os.write(writing, json.dumps(work()).encode())
            status = 0
        except BaseException as error:
            os.write(writing, json.dumps({"raised": repr(error)}).encode())
        finally:
            leave(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    result = json.loads(said)
    assert "raised" not in result, result["raised"]
    return result


# ------------------------------------------------------------------------ roots


@pytest.fixture
def no_real_purge(monkeypatch):
    """Roots that must be refused are never walked, even if the refusal were broken."""

    def refuse(*args, **more):
        raise AssertionError("a dangerous root was about to be walked")

    monkeypatch.setattr("slotwise.purge._run.Run.run", refuse)


@pytest.mark.parametrize("spelling", ["/", "//", "/.", "/../", "/tmp/..", "/proc/self/root/"])
def test_the_root_of_the_file_system_is_refused_in_any_spelling(spelling, no_real_purge) -> None:
    with pytest.raises(RootRefused):
        purge(spelling, dry_run=True)


def test_home_is_refused_whatever_the_spelling(tmp_path, monkeypatch, no_real_purge) -> None:
    home = tmp_path / "home"
    (home / "sub").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    for spelling in (home, f"{home}/", f"{home}/.", f"{home}/sub/..", f"{home}//"):
        with pytest.raises(RootRefused, match="home directory"):
            purge(spelling, dry_run=True)
    plan = make_plan(home, PurgeOptions(allow_dangerous_root=True))
    plan.close()
    make_plan(home / "sub", PurgeOptions()).close()


def test_the_home_of_the_passwd_is_refused_without_home_in_the_environment(
    tmp_path, monkeypatch, no_real_purge
) -> None:
    import pwd

    entry = list(pwd.getpwuid(os.getuid()))
    entry[5] = str(tmp_path)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: pwd.struct_passwd(entry))
    monkeypatch.delenv("HOME", raising=False)
    with pytest.raises(RootRefused, match="home directory"):
        purge(tmp_path, dry_run=True)


def test_a_symlink_or_no_directory_is_always_refused(tmp_path, root, old) -> None:
    old(root / "a")
    (tmp_path / "link").symlink_to(root)
    for spelling in ("link", "link/", "link/.", "link//./", "nowhere", "root/a"):
        with pytest.raises(RootRefused):
            purge(f"{tmp_path}/{spelling}", allow_dangerous_root=True, max_age_days=0)
    for wrong in ("", "a\0b"):
        with pytest.raises(RootRefused):
            purge(wrong)
    assert (root / "a").exists()


def test_the_root_itself_is_never_removed(root, old) -> None:
    os.utime(root, (1, 1))
    purge(root, remove_empty_dirs=True, max_age_days=0, max_empty_dirs_to_delete=0)
    assert root.is_dir()


# --------------------------------------------------------------- changing trees


@pytest.mark.soak
@pytest.mark.parametrize("crowd", [False, True])
def test_symlinks_swapped_in_during_the_walk_are_never_followed(
    root, outside, old, crowd, monkeypatch
) -> None:
    from slotwise.purge import _scaling

    if crowd:
        monkeypatch.setattr(_scaling, "SLOW", -1.0)
        monkeypatch.setattr(_scaling, "FAST", -1.0)
        monkeypatch.setattr(_scaling, "BUSY", math.inf)
    for number in range(20):
        old(outside / f"d{number}" / "precious")
    before = {path for path in outside.rglob("*") if path.is_file()}
    over = threading.Event()
    swaps = 0

    def swap() -> None:
        nonlocal swaps
        while not over.is_set():
            for number in range(20):
                victim, aside = root / f"d{number}", root / f"aside{number}"
                try:
                    victim.rename(aside)
                    victim.symlink_to(outside / f"d{number}")
                    victim.unlink()
                    aside.rename(victim)
                    swaps += 1
                except OSError:  # the purge was faster; and it may be faster again
                    with contextlib.suppress(OSError):
                        victim.unlink() if victim.is_symlink() else victim.mkdir(exist_ok=True)

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        rounds = 0
        while rounds < 15 or swaps < 200:
            rounds += 1
            for number in range(20):
                for file in range(5):
                    try:
                        old(root / f"d{number}" / "e" / f"{file}")
                    except OSError:
                        continue
            # The test itself may have written through a swapped symlink just now.
            purge(root, remove_empty_dirs=bool(rounds % 2))
    finally:
        over.set()
        swapping.join()
    assert {path for path in before if not path.exists()} == set()


def test_mount_points_are_left_alone(root, outside, old) -> None:
    if shutil.which("unshare") is None or os.geteuid() != 0:
        pytest.skip("mounting needs root and unshare")
    for name in ("bind", "tmpfs"):
        (root / name).mkdir()
    old(root / "plain" / "x")
    script = f"""
        mount --bind '{outside}' '{root}/bind' && mount -t tmpfs none '{root}/tmpfs' &&
        touch -d 2001-01-01 '{root}/tmpfs/y' &&
        '{sys.executable}' -m slotwise purge '{root}' --yes --json --remove-empty-dirs &&
        ls '{root}/tmpfs'
    """
    ran = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, check=False
    )
    if "mount" in ran.stderr:
        pytest.skip(f"no mounts here: {ran.stderr.strip()}")
    assert ran.returncode == 0, ran.stderr
    assert (outside / "precious").exists()
    assert ran.stdout.splitlines()[-1] == "y"
    summary = json.loads(ran.stdout.splitlines()[-2])
    assert (summary["files_purged"], summary["empty_dirs_deleted"]) == (1, 1)


def let_others_in(root: Path) -> None:
    for path in (root, *root.parents):
        path.chmod(path.stat().st_mode | stat.S_IXOTH)
        if path.name.startswith("pytest-of"):
            break


def test_unreadable_directories_are_counted_and_the_rest_is_purged(root, old) -> None:
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    old(root / "fine" / "x")
    old(root / "closed" / "y")
    old(root / "readonly" / "z")
    for path in (root, *root.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    (root / "closed").chmod(0)
    (root / "readonly").chmod(0o500)
    let_others_in(root)

    def dry() -> dict:
        return purge(root, remove_empty_dirs=True, dry_run=True).as_dict()

    def real() -> dict:
        report = purge(root, remove_empty_dirs=True)
        return {**report.as_dict(), "exit_code": report.exit_code}

    expected = in_child(dry, uid=NOBODY)
    let_others_in(root)  # another run of pytest keeps them out when it starts
    report = in_child(real, uid=NOBODY)
    (root / "closed").chmod(0o700)
    (root / "readonly").chmod(0o700)
    assert (root / "closed" / "y").exists()
    assert (root / "readonly" / "z").exists()
    assert not (root / "fine").exists()
    assert report["errors"] == expected["errors"] == {"EACCES": 2}
    assert report["exit_code"] == 1
    assert {sample["op"] for sample in report["error_samples"]} == {"open", "unlink"}
    for count in ("files_purged", "empty_dirs_deleted", "files_to_purge"):
        assert report[count] == expected[count]


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
@pytest.mark.parametrize("mode", [0o000, 0o300, 0o400])
def test_a_dry_run_and_a_real_run_agree_on_empty_directories_that_are_closed(root, mode) -> None:
    """The kernel would remove them, but that they are empty is not to be seen."""
    (root / "closed").mkdir()
    for path in (root, root / "closed"):
        os.chown(path, NOBODY, NOBODY)
    (root / "closed").chmod(mode)
    let_others_in(root)

    def work(dry_run: bool) -> dict:
        return purge(root, remove_empty_dirs=True, dry_run=dry_run).as_dict()

    dry = in_child(lambda: work(True), uid=NOBODY)
    real = in_child(lambda: work(False), uid=NOBODY)
    for count in ("dirs_scanned", "empty_dirs_deleted", "errors"):
        assert real[count] == dry[count]
    assert (root / "closed").exists() != bool(real["empty_dirs_deleted"])


# ------------------------------------------------------------------------ shapes


def deep(root: Path, levels: int) -> None:
    """A chain of directories with an old file in each, made without long paths."""
    fd = os.open(root, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
        os.close(os.open("f", os.O_CREAT, dir_fd=fd))
        os.utime("f", (1, 1), dir_fd=fd)
    os.close(fd)


@pytest.fixture
def rm(root: Path) -> Iterator[None]:
    """Remove even what a failed test has left: pytest's own clean-up can't go that deep."""
    yield
    subprocess.run(["rm", "-rf", root], check=True)


@pytest.mark.usefixtures("rm")
@pytest.mark.parametrize("files", [None, 64])
def test_1500_levels_with_few_descriptors(root, files) -> None:
    deep(root, 1500)

    def work() -> dict:
        return purge(root, remove_empty_dirs=True, max_empty_dirs_to_delete=0).as_dict()

    report = in_child(work, files=files)
    assert (report["files_purged"], report["empty_dirs_deleted"]) == (1500, 1500)
    assert report["errors"] == {}
    assert not any(root.iterdir())


@pytest.mark.parametrize("crowd", [False, True])
def test_a_bushy_tree_with_few_descriptors_and_a_full_stack(root, crowd, monkeypatch) -> None:
    from slotwise.purge import _scaling, _walk, _workers

    monkeypatch.setattr(_walk, "BATCH", 3)
    monkeypatch.setattr(_workers, "_SMALLEST_STACK", 2)
    monkeypatch.setattr(_workers, "_STACK_PER_WORKER", 0)
    if crowd:
        monkeypatch.setattr(_scaling, "SLOW", -1.0)
        monkeypatch.setattr(_scaling, "FAST", -1.0)
        monkeypatch.setattr(_scaling, "BUSY", math.inf)
    count = 0
    for a in range(6):
        for b in range(6):
            for c in range(6):
                path = root / f"{a}" / f"{b}" / f"{c}"
                path.mkdir(parents=True)
                for f in range(4):
                    (path / f"{f}").touch()
                    os.utime(path / f"{f}", (1, 1))
                    count += 1

    def work() -> dict:
        return purge(root, remove_empty_dirs=True, max_empty_dirs_to_delete=0).as_dict()

    report = in_child(work, files=64)
    assert report["files_purged"] == count
    assert report["empty_dirs_deleted"] == 6 + 36 + 216
    assert not any(root.iterdir())


@pytest.mark.parametrize("crowd", [False, True])
def test_many_siblings(root, crowd, monkeypatch) -> None:
    from slotwise.purge import _scaling, _walk

    if crowd:
        monkeypatch.setattr(_scaling, "SLOW", -1.0)
        monkeypatch.setattr(_scaling, "FAST", -1.0)
        monkeypatch.setattr(_scaling, "BUSY", math.inf)
    many = 2 * _walk.BATCH + 500  # more than the stack of directories holds, too
    for number in range(many):
        (root / f"{number}").mkdir()
    report = purge(
        root,
        remove_empty_dirs=True,
        max_empty_dirs_to_delete=0,
        max_concurrency_scanning=20,
        max_concurrency_deletion=20,
    )
    assert report.empty_dirs_deleted == many
    assert report.dirs_scanned == many + 1
    assert not any(root.iterdir())


@pytest.mark.soak
def test_operations_that_fail_end_as_errors_and_never_as_a_hang(
    root, old, monkeypatch, workers_of
) -> None:
    workers_of(16)
    for number in range(300):
        old(root / f"{number % 30}" / f"{number}")
    real = {name: getattr(os, name) for name in ("unlink", "rmdir", "open", "scandir")}
    failures = {"count": 0}
    lock = threading.Lock()

    def sometimes(name):
        def call(*args, **more):
            if more.get("dir_fd") is not None or name == "scandir":
                with lock:
                    failures["count"] += 1
                    fail = failures["count"] % 7 == 0
                if fail:
                    raise OSError(5, "Input/output error")
            return real[name](*args, **more)

        return call

    for name in real:
        monkeypatch.setattr(os, name, sometimes(name))
    report = purge(root, remove_empty_dirs=True, max_files_to_delete=280)
    monkeypatch.undo()
    assert report.errors["EIO"] > 0
    left = sum(len(files) for _, _, files in os.walk(root))
    assert report.files_purged == 300 - left
    assert report.exit_code == 1


@pytest.mark.soak
def test_a_million_files_in_one_directory_cost_no_memory(root) -> None:
    fd = os.open(root, os.O_RDONLY)
    for number in range(1_000_000):
        os.close(os.open(f"{number}", os.O_CREAT, dir_fd=fd))
    os.close(fd)

    def work() -> dict:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        report = purge(root, max_age_days=0)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return {"purged": report.files_purged, "grown": after - before}

    report = in_child(work)
    assert report["purged"] == 1_000_000
    assert report["grown"] < 10_000  # kB


def test_a_symlink_of_dots_is_refused_too(tmp_path, root, monkeypatch) -> None:
    (tmp_path / "...").symlink_to(root)
    monkeypatch.chdir(tmp_path)
    for spelling in ("...", ".../", ".../.", "..././/"):
        with pytest.raises(RootRefused, match="symlink"):
            make_plan(spelling, PurgeOptions())


def test_a_pattern_that_is_none_and_an_age_beyond_the_calendar_are_refused(root) -> None:
    with pytest.raises(ValueError, match="is not a valid pattern"):
        make_plan(root, PurgeOptions(exclude=["[z-a]"]))
    with pytest.raises(ValueError, match="max_age_days"):
        PurgeOptions(max_age_days=1e300)
    plan = make_plan(root, PurgeOptions(max_age_days=1e6))
    assert plan.describe()
    plan.close()


@pytest.mark.parametrize("limit", [100, 1])
def test_the_age_is_not_the_one_that_a_listing_without_types_had_to_read(
    root, old, monkeypatch, limit
) -> None:
    files = [old(root / f"f{number}") for number in range(3)]
    scandir, unlink = os.scandir, os.unlink

    class WithoutTypes:
        """The kernel told no types, so Python has asked for each entry, and remembers."""

        def __init__(self, fd: int) -> None:
            self._entries = scandir(fd)

        def __iter__(self):
            return self

        def __next__(self):
            entry = next(self._entries)
            entry.stat(follow_symlinks=False)
            return entry

        def close(self) -> None:
            self._entries.close()

        def __enter__(self):  # pathlib lists with it, from Python 3.13 on
            return self

        def __exit__(self, *_) -> None:
            self.close()

    def unlink_and_touch_the_others(name, *, dir_fd) -> None:
        unlink(name, dir_fd=dir_fd)
        for file in files:
            if file.exists():
                os.utime(file)

    monkeypatch.setattr(os, "scandir", WithoutTypes)
    monkeypatch.setattr(os, "unlink", unlink_and_touch_the_others)
    report = purge(root, max_concurrency_scanning=limit, max_concurrency_deletion=limit)
    monkeypatch.undo()
    assert report.files_purged == 1
    assert sum(file.exists() for file in files) == 2
