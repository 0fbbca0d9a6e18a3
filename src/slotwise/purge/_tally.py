"""The counts of one worker: written by that worker alone, read by all."""

from __future__ import annotations


class Tally:
    """One worker's share of the report's counts."""

    __slots__ = (
        "bytes_freed",
        "dirs_deleted",
        "dirs_scanned",
        "files_purged",
        "files_scanned",
        "files_to_purge",
        "seconds_per_operation",
        "special_files",
        "symlinks",
        "thread_id",
    )

    def __init__(self) -> None:
        self.files_scanned = 0
        self.files_to_purge = 0
        self.files_purged = 0
        self.dirs_scanned = 0
        self.dirs_deleted = 0
        self.symlinks = 0
        self.special_files = 0
        self.bytes_freed = 0
        # Seconds per operation in the latest batch or directory, until the supervisor has read it.
        self.seconds_per_operation: float | None = None
        self.thread_id = 0  # of the worker, for the kernel

    @property
    def operations(self) -> int:
        return self.files_scanned + self.files_purged + 2 * self.dirs_scanned + self.dirs_deleted

    def add(self, other: Tally) -> None:
        self.files_scanned += other.files_scanned
        self.files_to_purge += other.files_to_purge
        self.files_purged += other.files_purged
        self.dirs_scanned += other.dirs_scanned
        self.dirs_deleted += other.dirs_deleted
        self.symlinks += other.symlinks
        self.special_files += other.special_files
        self.bytes_freed += other.bytes_freed
