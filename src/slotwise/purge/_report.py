"""PurgeReport: the counts of a purge, and its exit code."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

SAMPLES_KEPT = 20

# Reasons to end early that were asked for, and are not errors.
ASKED_FOR = ("max_files_to_delete", "max_empty_dirs_to_delete", "deadline")
SIGNALS = {"SIGINT": 130, "SIGTERM": 143}


@dataclass(slots=True)
class PurgeReport:
    """The summary of a purge; in a dry run, of what a real run would do."""

    root: str = ""
    files_scanned: int = 0
    files_to_purge: int = 0
    files_purged: int = 0
    dirs_scanned: int = 0
    empty_dirs_deleted: int = 0
    symlinks_skipped: int = 0
    special_files_skipped: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    error_samples: list[dict[str, str]] = field(default_factory=list)
    bytes_freed: int = 0
    duration_seconds: float = 0.0
    files_per_second: float = 0.0
    peak_memory_mb: float = 0.0
    dry_run: bool = False
    stopped_by: str | None = None
    """None if everything was visited; else a cap, "deadline", a signal, "cancelled", or what
    failed."""

    @property
    def failures(self) -> int:
        return sum(self.errors.values())

    @property
    def exit_code(self) -> int:
        """0 done, 1 done with errors, 2 not done, 130 or 143 interrupted."""
        if self.stopped_by in SIGNALS:
            return SIGNALS[self.stopped_by]
        if self.stopped_by is not None and self.stopped_by not in ASKED_FOR:
            return 2
        return 1 if self.errors else 0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
