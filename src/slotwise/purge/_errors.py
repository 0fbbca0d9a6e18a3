"""Why a purge is not begun, or not gone on with."""

from __future__ import annotations

from slotwise.errors import SlotwiseError


class RootRefused(SlotwiseError, ValueError):
    """The path is none that may be purged: a symlink, no directory, or too dangerous."""


class AuditRefused(SlotwiseError, ValueError):
    """The audit file can't be used: below the root, or not to be opened."""


class AuditFailed(SlotwiseError, OSError):
    """A line could not be written to the audit file, so the deletion was not done."""


class AuditAbandoned(AuditFailed):
    """The run was stopped while it waited for a pipe that nobody reads; nothing was deleted."""
