"""PurgeOptions: the flags of a purge, checked. Nothing here looks at the file system."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from slotwise._core.arguments import check_count, check_flag
from slotwise._core.redaction import kind_of, redacted_repr

if TYPE_CHECKING:
    from slotwise._core.semaphore import Semaphore
    from slotwise.redis import RedisConfig

AgeBy = Literal["mtime", "atime", "ctime"]
AGES: dict[AgeBy, str] = {"mtime": "st_mtime_ns", "atime": "st_atime_ns", "ctime": "st_ctime_ns"}

# About 2,700 years: older than any file, and still a date that datetime accepts.
_MOST_DAYS = 1_000_000


class PurgeFlags(TypedDict, total=False):
    """The flags of ``slotwise purge`` as keyword arguments, with the same defaults."""

    max_age_days: float
    age_by: AgeBy
    max_concurrency_scanning: int
    max_concurrency_deletion: int
    memory_limit_mb: float
    deadline: float | None
    remove_empty_dirs: bool
    max_empty_dirs_to_delete: int
    max_files_to_delete: int
    max_delete_per_second: float | None
    include: Sequence[str]
    exclude: Sequence[str]
    min_depth: int
    one_file_system: bool
    dry_run: bool
    audit: str | Path | None
    allow_dangerous_root: bool
    url: str | RedisConfig | None
    semaphore: Semaphore | None
    name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeOptions:
    """The checked options; each has its flag's name and default."""

    max_age_days: float = 30.0
    age_by: AgeBy = "mtime"
    max_concurrency_scanning: int = 100
    max_concurrency_deletion: int = 1000
    memory_limit_mb: float = 800
    deadline: float | None = None
    remove_empty_dirs: bool = False
    max_empty_dirs_to_delete: int = 500
    max_files_to_delete: int = 0
    max_delete_per_second: float | None = None
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    min_depth: int = 0
    one_file_system: bool = True
    dry_run: bool = False
    audit: str | Path | None = None
    allow_dangerous_root: bool = False
    url: str | RedisConfig | None = None
    semaphore: Semaphore | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        _check_number("max_age_days", self.max_age_days, zero=True)
        if self.max_age_days > _MOST_DAYS:
            raise ValueError(f"max_age_days must be at most {_MOST_DAYS}, not {self.max_age_days}")
        if self.age_by not in AGES:
            raise ValueError(
                f"age_by must be one of {', '.join(AGES)}, not {redacted_repr(self.age_by)}"
            )
        check_count("max_concurrency_scanning", self.max_concurrency_scanning)
        check_count("max_concurrency_deletion", self.max_concurrency_deletion)
        _check_number("memory_limit_mb", self.memory_limit_mb, zero=True)
        if self.deadline is not None:
            _check_number("deadline", self.deadline)
        for what in ("max_empty_dirs_to_delete", "max_files_to_delete", "min_depth"):
            given = getattr(self, what)
            if isinstance(given, bool) or not isinstance(given, int) or given < 0:
                raise ValueError(f"{what} must be an int of 0 or more, not {redacted_repr(given)}")
        if self.max_delete_per_second is not None:
            _check_number("max_delete_per_second", self.max_delete_per_second)
        for what in ("include", "exclude"):
            given = getattr(self, what)
            if isinstance(given, str):
                raise TypeError(
                    f"{what} must be a list of patterns, not the string {redacted_repr(given)}"
                )
            if not all(isinstance(pattern, str) and pattern for pattern in given):
                raise ValueError(f"{what} must be non-empty patterns, not {redacted_repr(given)}")
            object.__setattr__(self, what, tuple(given))
        for what in ("remove_empty_dirs", "one_file_system", "dry_run", "allow_dangerous_root"):
            check_flag(what, getattr(self, what))
        if self.url is not None and self.semaphore is not None:
            raise TypeError("give either url and name, or the semaphore itself")
        if self.name is not None and self.url is None and self.semaphore is None:
            raise ValueError("name needs a url: where is the limit of that name?")
        if self.url is not None and not self.name:
            raise ValueError("url needs a name: the machines that purge together share it")


def _check_number(what: str, given: Any, *, zero: bool = False) -> None:
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise TypeError(f"{what} must be a number, not {kind_of(given)}")
    if not math.isfinite(given) or given < 0 or (given == 0 and not zero):
        least = "0 or more" if zero else "above 0"
        raise ValueError(f"{what} must be finite and {least}, not {redacted_repr(given)}")
