"""The purger: old files and empty directories, on file systems that are large and slow."""

from slotwise.purge.errors import AuditFailed, AuditRefused, RootRefused
from slotwise.purge.options import PurgeFlags, PurgeOptions
from slotwise.purge.plan import Plan, make_plan
from slotwise.purge.purger import AsyncEFSPurger, purge
from slotwise.purge.report import PurgeReport
from slotwise.purge.run import Run

__all__ = [
    "AsyncEFSPurger",
    "AuditFailed",
    "AuditRefused",
    "Plan",
    "PurgeFlags",
    "PurgeOptions",
    "PurgeReport",
    "RootRefused",
    "Run",
    "make_plan",
    "purge",
]
