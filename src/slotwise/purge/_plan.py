"""Turn options and a root into a plan: what is old, what matches, what is refused.

The root is opened here, once, and everything after goes through its descriptor.
Nothing is deleted here.
"""

from __future__ import annotations

import os
import pwd
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from slotwise.purge._audit import descriptor_of
from slotwise.purge._globs import Globs
from slotwise.purge._identity import Identity, identity_of
from slotwise.purge._options import AGES, PurgeOptions
from slotwise.purge._report import AuditRefused, RootRefused, printable

OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_NS_PER_DAY = 86_400 * 1_000_000_000


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be done. Made by `make_plan`; holds the root's descriptor until closed."""

    options: PurgeOptions
    root: str
    root_fd: int
    identity: Identity
    cutoff_ns: int
    age_field: str
    include: Globs
    exclude: Globs
    audit_path: str | None

    def close(self) -> None:
        os.close(self.root_fd)

    def describe(self) -> list[tuple[str, str]]:
        """Return the plan as labels and values, to be shown."""
        options = self.options
        cutoff = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.cutoff_ns / 1e9))
        rows = [
            ("root", printable(self.root)),
            ("files", f"{options.age_by} before {cutoff} ({_days(options.max_age_days)})"),
            ("empty directories", _empty_directories(options)),
        ]
        if options.include:
            rows.append(("only", ", ".join(options.include)))
        if options.exclude:
            rows.append(("never", ", ".join(options.exclude)))
        if options.min_depth:
            rows.append(("from depth", str(options.min_depth)))
        if options.max_files_to_delete:
            rows.append(("at most", f"{options.max_files_to_delete:,} files"))
        if options.max_delete_per_second:
            rows.append(("no faster than", f"{options.max_delete_per_second:g} deletions a second"))
        if options.deadline is not None:
            rows.append(("stop after", f"{options.deadline:g} s"))
        if not options.one_file_system:
            rows.append(("other file systems", "entered"))
        if self.audit_path:
            rows.append(("audit", printable(self.audit_path)))
        return rows


def _days(days: float) -> str:
    return f"{days:g} days" if days >= 1 or not days else f"{days * 24:g} hours"


def _empty_directories(options: PurgeOptions) -> str:
    if not options.remove_empty_dirs:
        return "kept"
    most = options.max_empty_dirs_to_delete
    return f"removed, at most {most:,}" if most else "removed"


def make_plan(root: str | os.PathLike[str], options: PurgeOptions) -> Plan:
    """Check the root and fix the cut-off.

    Raises:
        RootRefused: a symlink, not a directory, or ``/`` or a home directory
            without ``allow_dangerous_root``.
        AuditRefused: the audit file lies below the root.
        ValueError: a pattern that can match nothing.
    """
    now_ns = time.time_ns()
    path = os.fspath(root)
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    root_fd = _open_root(path)
    try:
        found = os.fstat(root_fd)
        if not options.allow_dangerous_root:
            _refuse_dangerous(path, found)
        audit_path = None
        if options.audit is not None:
            audit_path = os.path.realpath(options.audit)
            _refuse_audit_below(audit_path, found)
            if descriptor_of(os.fspath(options.audit)) is not None:
                audit_path = os.fspath(options.audit)  # a pipe can't be resolved
        real = os.path.realpath(path)
        names = (real, os.path.abspath(path))  # noqa: PTH100  # a Path forgets what was typed
        return Plan(
            options=options,
            root=real,
            root_fd=root_fd,
            identity=identity_of(root_fd),
            cutoff_ns=now_ns - int(options.max_age_days * _NS_PER_DAY),
            age_field=AGES[options.age_by],
            include=Globs(options.include, names),
            exclude=Globs(options.exclude, names),
            audit_path=audit_path,
        )
    except BaseException:
        os.close(root_fd)
        raise


def _open_root(path: str) -> int:
    if not path or "\0" in path:
        raise RootRefused(f"{path!r} is not a path")
    # A symlink followed by "/" or "/." would be followed by the kernel.
    bare = path
    while len(bare) > 1 and bare.endswith(("/", "/.")):
        bare = bare[:-1] if bare.endswith("/") else bare[:-2]
    try:
        if stat.S_ISLNK(os.lstat(bare or "/").st_mode):
            raise RootRefused(f"{printable(path)} is a symlink; name the directory itself")
        return os.open(bare or "/", OPEN_DIRECTORY)
    except OSError as error:
        raise RootRefused(
            f"{printable(path)} can't be opened as a directory: {error.strerror}"
        ) from error


def _refuse_dangerous(path: str, found: os.stat_result) -> None:
    homes = [Path("/"), Path(os.environ.get("HOME") or "/")]
    for uid in {os.getuid(), os.geteuid()}:
        try:
            homes.append(Path(pwd.getpwuid(uid).pw_dir or "/"))
        except KeyError:  # no such user, as in many containers
            continue
    for home in homes:
        try:
            same = os.path.samestat(home.stat(), found)
        except OSError:
            continue
        if same:
            what = "the root of the file system" if str(home) == "/" else "a home directory"
            raise RootRefused(f"{printable(path)} is {what}; --allow-dangerous-root overrides this")


def _refuse_audit_below(audit: str, root: os.stat_result) -> None:
    """Climb from the file upwards and compare inodes with the root, since names can mislead."""
    for directory in Path(audit).parents:
        try:
            if os.path.samestat(directory.stat(), root):
                raise AuditRefused(
                    f"the audit file {printable(audit)} lies below the root, where it may be purged"
                )
        except OSError as error:
            raise AuditRefused(f"the audit file's directory: {error}") from error
