"""``python -m slotwise``: the same as the ``slotwise`` command."""

from __future__ import annotations

import sys


def main() -> None:
    if sys.argv[1:2] == ["purge"]:
        # Straight there: the rest of the command line takes longer to import than a
        # small tree takes to purge.
        from slotwise.cli import purge

        sys.exit(purge.main(sys.argv[2:]))
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError as error:
        sys.exit(f"the command line needs {error.name}: pip install 'slotwise[cli]'")
    from slotwise.cli.main import app

    app(prog_name="slotwise")


if __name__ == "__main__":
    main()
