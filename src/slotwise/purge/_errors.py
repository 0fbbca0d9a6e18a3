"""Why a purge does not start, or stops."""

from __future__ import annotations

from slotwise.errors import SlotwiseError


class RootRefused(SlotwiseError, ValueError):
    """The path must not be purged: a symlink, not a directory, or too dangerous."""


class AuditRefused(SlotwiseError, ValueError):
    """The audit file can't be used: it lies below the root, or can't be opened."""


class AuditFailed(SlotwiseError, OSError):
    """A line could not be written to the audit file, so the deletion was not done."""


class AuditAbandoned(AuditFailed):
    """The run was stopped while it waited for a pipe that nobody reads; nothing was deleted."""
