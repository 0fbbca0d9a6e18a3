"""The purger: delete old files and empty directories on large, slow file systems."""

from slotwise.purge._options import PurgeFlags, PurgeOptions
from slotwise.purge._plan import Plan, make_plan
from slotwise.purge._purger import AsyncEFSPurger, purge
from slotwise.purge._report import AuditFailed, AuditRefused, PurgeReport, RootRefused
from slotwise.purge._run import Run

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
