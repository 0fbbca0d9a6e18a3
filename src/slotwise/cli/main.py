"""The ``slotwise`` command: which commands there are."""

from __future__ import annotations

import asyncio

import typer

from slotwise import __version__
from slotwise.cli import purge as purging

app = typer.Typer(
    name="slotwise",
    help="Concurrency limits that keep their promises, and tools built on them.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"slotwise {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    pass


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def purge(context: typer.Context) -> None:
    """Delete old files, and directories that are empty or become so."""
    raise typer.Exit(purging.main(context.args))


@app.command()
def demo() -> None:
    """A few semaphores under contention, live; no server needed."""
    from slotwise.cli import demo as show

    try:
        asyncio.run(show.main())
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


if __name__ == "__main__":
    app()
