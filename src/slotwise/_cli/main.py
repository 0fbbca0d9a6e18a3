"""The ``slotwise`` command: run the subcommand that was typed.

An error becomes one line on stderr and an exit code. Every command's flags are read by `flags`;
`commands` knows where the commands are.
"""

from __future__ import annotations

import errno
import logging
import sys
from collections.abc import Sequence

from slotwise import __version__
from slotwise._admin import BadRequest
from slotwise._cli.commands import SUMMARIES, USAGE, load
from slotwise._cli.flags import UsageError
from slotwise._cli.output import Declined, print_any, print_error, print_usage_error

FAILED, INTERRUPTED, NOBODY_READS = 1, 130, 141

COMPLETE = "__complete"  # what the scripts of `completion` call

_COMMANDS = "\n".join(f"  {name:<11} {summary}" for name, summary in SUMMARIES.items())

_HELP = f"""\
usage: slotwise COMMAND ...

Limit how many run at once, on this machine or in a fleet.

Without --url, and without SLOTWISE_URL in the environment, semaphores are those of
your processes on this machine (process://). --url redis://host:6379 names a fleet's.

commands:
{_COMMANDS}

options:
  -h, --help   show this help
  --version    print the version

examples:
  slotwise run backup --limit 1 -- ./backup.sh   hold a slot while a command runs
  slotwise ls                                    what there is, and how full
  slotwise show backup                           who holds, who waits
  slotwise top                                   the same, live
  slotwise doctor                                whether everything works
  slotwise run --help                            all about one command
"""


def main(words: Sequence[str]) -> int:
    """Run ``slotwise`` with these words, and return the exit code."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    # The messages of the command say what matters; without a handler Python would print our log.
    log, silent = logging.getLogger("slotwise"), logging.NullHandler()
    log.addHandler(silent)
    try:
        return _main(words)
    finally:
        log.removeHandler(silent)


def _main(words: Sequence[str]) -> int:
    name = words[0] if words and words[0] in SUMMARIES else ""
    try:
        code = _dispatch(name, words)
        if code == 0:  # otherwise something has already failed
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        return NOBODY_READS
    except KeyboardInterrupt:
        return INTERRUPTED
    except (UsageError, BadRequest) as error:
        print_usage_error(name, str(error))
        return load(name).usage_error if name else USAGE
    except Declined as error:
        print_error(name, error)
        return USAGE
    except Exception as error:
        number = error.errno if isinstance(error, OSError) and error.filename is None else None
        if number in (errno.EBADF, errno.ENOSPC) and isinstance(error, OSError):
            print_error(name, f"the output can't be written to stdout: {error.strerror}")
        else:
            print_any(name, error)
    return FAILED


def _dispatch(name: str, words: Sequence[str]) -> int:
    if name:
        command = load(name)
        try:
            given = command.parser().parse(words[1:])
        except SystemExit:  # help was printed
            return 0
        return command.main(given)
    first = words[0] if words else "--help"
    if first == COMPLETE:
        from slotwise._cli import completion

        return completion.offer(words[1:])
    if first in ("-h", "--help"):
        sys.stdout.write(_HELP)
    elif first == "--version":
        sys.stdout.write(f"slotwise {__version__}\n")
    else:
        raise _not_understood(first)
    return 0


def _not_understood(first: str) -> UsageError:
    from slotwise._cli.other_words import suggest_command, suggest_flag  # slow to import

    flags = ("--help", "--version")
    if first.startswith("-"):
        return UsageError(f"unknown flag {first}{suggest_flag(first, flags)}")
    hint = suggest_command(first, (*SUMMARIES, *flags))
    return UsageError(f"there is no command {first!r}{hint}")
