"""Audit a removal: one line before it is done, another if it fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from slotwise.purge._errors import AuditAbandoned, AuditFailed
from slotwise.purge._failures import kind_of

if TYPE_CHECKING:
    from slotwise.purge._run import Run
    from slotwise.purge._tree import DirectoryNode


@contextmanager
def audited(run: Run, op: str, node: DirectoryNode, name: str, size: int) -> Iterator[None]:
    """Audit the removal of ``name`` from ``node``, which is the block.

    Raises:
        AuditFailed: it could not be written. The run is stopped, and the block is not run.
    """
    audit = run.audit
    if audit is None:
        yield
        return
    path = run.full_path(node, name)
    try:
        audit.before(op, path, size)
    except AuditAbandoned:  # the run is stopping, for a reason of its own
        raise
    except AuditFailed as error:
        run.error("audit", node, name, error)
        run.stop("audit")
        raise
    try:
        yield
    except OSError as error:
        try:
            audit.failed(op, path, size, kind_of(error))
        except AuditFailed:
            run.stop("audit")
        raise
