"""``python -m slotwise``: the same as the ``slotwise`` command."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Do what the words on the command line ask for, and exit."""
    try:
        _have_streams()
        try:
            # Imported here, where an interrupt is seen to.
            from slotwise._cli.main import main as command

            sys.exit(command(sys.argv[1:]))
        finally:
            _flush()
    except KeyboardInterrupt:  # before a command could see to it
        sys.exit(130)


def _have_streams() -> None:
    """Have something for stdin, stdout and stderr when started without one (``>&-``).

    Otherwise the next files that are opened would get their numbers, and be written to.
    Writing to such a stdout is still an error. What `run` starts does not get them: they
    are closed there, as they were here.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:  # the lowest number that is free is this one
            os.open(os.devnull, os.O_WRONLY if number == 2 else os.O_RDONLY)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _flush() -> None:
    """Write what was printed, or drop what nobody can read.

    Otherwise Python would try again when it ends, and replace the exit code by its own.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


if __name__ == "__main__":
    main()
