"""``python -m slotwise``: the same as the ``slotwise`` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Do what the words on the command line ask for, and exit."""
    try:
        sys.exit(_main(sys.argv[1:]))
    except KeyboardInterrupt:  # before a command could see to it
        sys.exit(130)


def _main(words: list[str]) -> int:
    # Straight to these two: the rest of the command line takes longer to import than a
    # small tree takes to purge, and is paid for in every turn of a shell's loop.
    if words[:1] == ["purge"]:
        from slotwise.cli import purge

        return purge.main(words[1:])
    if words[:1] == ["run"]:
        from slotwise.cli import run

        return run.main(words[1:])
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError as error:
        sys.stderr.write(f"slotwise: this needs {error.name}: pip install 'slotwise[cli]'\n")
        return 1
    from slotwise.cli.main import main as command

    return command(words)


if __name__ == "__main__":
    main()
