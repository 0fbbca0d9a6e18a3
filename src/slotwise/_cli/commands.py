"""List the commands, with a summary of each and the module that implements it.

A command's module is imported only when the command is used or its flags are completed: a
shell loop pays for every import on every iteration.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slotwise._cli.flags import Command

USAGE = 2  # the exit code for wrong usage

SUMMARIES = {
    "run": "Hold a slot of a semaphore while a command runs",
    "acquire": "Hold slots for the calling script, until the script ends",
    "release": "Release the slots that 'slotwise acquire' holds",
    "ls": "List semaphores and tiers: value, slots held, waiting",
    "show": "Show who holds a semaphore or tiers, and who waits",
    "top": "Watch semaphores and tiers live",
    "explain": "Explain why an acquisition waits, and who has held the slots longest",
    "web": "Show semaphores and tiers in a browser, live",
    "export": "Serve metrics of semaphores and tiers to Prometheus",
    "resize": "Change how many slots a semaphore or a tier has, or its rate, while it is in use",
    "pause": "Grant nothing of a semaphore or tiers for a while; holders are undisturbed",
    "freeze": "Keep an adaptive value where it is, or at a number, until 'slotwise thaw'",
    "thaw": "Undo 'slotwise freeze'",
    "refill": "Fill a rate of tiers, and forgive its debt",
    "kick": "Take a holder's slots away; 'slotwise run' then ends its command",
    "close": "Close a semaphore or tiers for everybody, until 'slotwise open'",
    "open": "Undo 'slotwise close', and end a pause",
    "forget": "Delete a semaphore or tiers that nobody uses, with what they were resized to",
    "doctor": "Check that the directory or the server is fit for use",
    "purge": "Delete old files, and directories that are empty or become so",
    "demo": "Show what slotwise is for, in three acts; no server needed",
    "completion": "Print a script that completes commands, flags and names in your shell",
}

_MODULES = {
    "release": "acquire",
    "ls": "inspect_commands",
    "show": "inspect_commands",
    **dict.fromkeys(
        ("resize", "pause", "freeze", "thaw", "refill", "kick", "close", "open", "forget"),
        "control_commands",
    ),
}


def load(name: str) -> Command:
    """Import the command ``name``, which is one of `SUMMARIES`."""
    name_of_module = f"slotwise._cli.{_MODULES.get(name, name)}"
    __import__(name_of_module)  # importlib would take longer to import
    found: dict[str, Command] = {each.name: each for each in sys.modules[name_of_module].COMMANDS}
    return found[name]
