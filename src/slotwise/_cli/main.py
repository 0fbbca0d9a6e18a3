"""The ``slotwise`` command: which commands there are, their help, and how they fail.

`main` is where every error becomes one line. `run` and `purge` read their flags themselves
(``python -m slotwise`` goes straight to them); here they are listed and completed.
"""

from __future__ import annotations

import errno
import inspect
import logging
import math
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
import typer.core

from slotwise import __version__
from slotwise._cli import completion
from slotwise._cli import run as running
from slotwise._cli.backends import open_backend
from slotwise._cli.control_commands import Declined
from slotwise._cli.output import NOT_TEXT, complain, complain_of_usage
from slotwise._core.arguments import MOST_SLOTS
from slotwise.errors import SlotwiseError

FAILED, USAGE, INTERRUPTED, NOBODY_READS = 1, 2, 130, 141


def _examples(*lines: str) -> str:
    """Lines that the help shows as they are, under its flags."""
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines)))


_HELP = """Limits on how many run at once: on this machine, or in a fleet.

Without --url, and without SLOTWISE_URL in the environment, semaphores are those of
your processes on this machine (process://). --url redis://host:6379 names a fleet's.
"""

app = typer.Typer(
    name="slotwise",
    help=_HELP,
    epilog=_examples(
        "slotwise run backup --limit 1 -- ./backup.sh   hold a slot while a command runs",
        "slotwise ls                                    what there is, and how full",
        "slotwise show backup                           who holds, who waits",
        "slotwise top                                   the same, live",
        "slotwise doctor                                is everything fit for use",
        "slotwise run --help                            all about one command",
    ),
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _names(context: typer.Context, incomplete: str) -> list[str]:
    """The names of semaphores that a shell offers; it can't be told of errors."""
    try:
        names = open_backend(context.params.get("url")).names()
    except Exception:
        return []
    return [name for name in names if name.startswith(incomplete) and completion.offerable(name)]


class _Command(typer.core.TyperCommand):
    """A command whose usage shows NAME; newer versions of typer say {NAME}."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]


Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="process://, process:///folder or redis://... [$SLOTWISE_URL, else process://]",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The semaphore.", autocompletion=_names)]


# Numbers are read here: what typer says of wrong ones differs from version to version.


def _count(what: str, given: str) -> int:
    try:
        number = int(given)
    except ValueError:
        raise typer.BadParameter(f"{what} must be a whole number, not {given!r}") from None
    if number < 1:
        raise typer.BadParameter(f"{what} must be at least 1, not {given}")
    if number > MOST_SLOTS:
        raise typer.BadParameter(f"{what} must be at most {MOST_SLOTS}, not {given}")
    return number


def _pause(what: str, given: str) -> float:
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0.1 <= seconds < math.inf:
        raise typer.BadParameter(f"{what} must be a number of seconds, at least 0.1, not {given!r}")
    return seconds


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"slotwise {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


def _run(**given: Any) -> None:
    """Hold a slot of a semaphore while a command runs."""
    words = [given.pop("name")]
    for flag in running.FLAGS:
        value = given.pop(_parameter(flag))
        if flag.kind is None:
            words += [flag.name] if value else []
        elif value is not None:
            words += [flag.name, value]
    raise typer.Exit(running.main([*words, "--", *given.pop("command")]))


def _parameter(flag: running.Flag) -> str:
    return flag.name.removeprefix("--").replace("-", "_")


def _signature_of_run() -> inspect.Signature:
    """The flags of `run`, in the form in which typer reads them."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("name", keyword, annotation=Name)]
    for flag in running.FLAGS:
        option = typer.Option(flag.name, help=flag.words, metavar=flag.metavar or None)
        kind: Any = bool if flag.kind is None else str | None
        default = False if flag.kind is None else None
        parameters.append(
            inspect.Parameter(
                _parameter(flag), keyword, annotation=Annotated[kind, option], default=default
            )
        )
    command = Annotated[list[str], typer.Argument(metavar="CMD...")]
    parameters.append(inspect.Parameter("command", keyword, annotation=command))
    return inspect.Signature(parameters)


_run.__signature__ = _signature_of_run()  # type: ignore[attr-defined]
_run.__annotations__ = {p.name: p.annotation for p in _run.__signature__.parameters.values()}  # type: ignore[attr-defined]
app.command("run", epilog=f"\b\n{running.EXAMPLES}".replace("\n\n", "\n\n\b\n"))(_run)


@app.command(
    epilog=_examples(
        "slotwise ls",
        "slotwise ls --url redis://cache:6379",
        "slotwise ls --json | jq -r '.[] | select(.waiting > 0) | .name'",
    ),
)
def ls(url: Url = None, json: Json = False) -> None:
    """List the semaphores: value, slots held, waiting.

    On Redis those are listed that are held, waited for, or closed.
    """
    from slotwise._cli import inspect_commands

    raise typer.Exit(inspect_commands.ls(url, as_json=json))


@app.command(
    epilog=_examples(
        "slotwise show backup",
        "slotwise show backup --json | jq '.holders[].pid'",
    ),
)
def show(name: Name, url: Url = None, json: Json = False) -> None:
    """Show who holds a semaphore and who waits for it."""
    from slotwise._cli import inspect_commands

    inspect_commands.show(name, url, as_json=json)


@app.command(
    epilog=_examples(
        "slotwise top",
        "slotwise top --every 5 --url redis://cache:6379",
        "slotwise top --json         of one moment, for programs",
    ),
)
def top(
    url: Url = None,
    every: Annotated[
        str, typer.Option("--every", metavar="S", help="Seconds between two looks.")
    ] = "1",
    json: Json = False,
) -> None:
    """Watch the semaphores live, sorted as you like.

    Without a terminal, what two looks have seen is printed once.

    Keys: n name, v value, h held, w waiting, o oldest hold, s seen/s, 5 and 9 waits sort by
    that, and once more the other way round; q quits.

    'seen/s' and the waits are what looking from outside can tell, of the last minute: an
    acquisition that came and went between two looks was not seen, so that the rate is at
    least so high. A wait that began and ended between two looks counts as 0, and is
    shown as '<1 s'. The 200 fullest semaphores are looked at.
    """
    from slotwise._cli import top as watching

    watching.top(url, _pause("--every", every), as_json=json)


@app.command(
    epilog=_examples(
        "slotwise resize api 20      more: those who wait get them at once",
        "slotwise resize api 2       fewer: nobody is ended, nothing is granted until it fits",
    ),
)
def resize(
    name: Name,
    value: Annotated[str, typer.Argument(metavar="N", help="How many slots from now on.")],
    url: Url = None,
) -> None:
    """Change how many slots a semaphore has, while it is in use.

    Programs that were started with another limit go on, with this one.
    """
    from slotwise._cli import control_commands

    control_commands.resize(name, _count("N", value), url)


@app.command(
    epilog=_examples(
        "slotwise show backup                    lists the ids",
        "slotwise kick pef2e9eb1a04049f-1        asks, as there is no way back",
        "slotwise kick pef2e9eb1a04049f-1 --yes  in scripts",
    ),
)
def kick(
    acquisition_id: Annotated[
        str, typer.Argument(metavar="ACQUISITION_ID", help="As 'slotwise show' lists it.")
    ],
    url: Url = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
) -> None:
    """Take a holder's slots away; 'slotwise run' ends its command then.

    The next in line gets the slots at once, perhaps before the one that was kicked has
    noticed: fencing tokens are for that.
    """
    from slotwise._cli import control_commands

    control_commands.kick(acquisition_id, url, yes=yes)


@app.command(
    epilog=_examples(
        "slotwise close deploy --reason 'freeze until Monday'",
        "slotwise show deploy        who still holds",
        "slotwise open deploy        lets everybody in again",
        "slotwise close deploy --yes       in scripts",
    ),
)
def close(
    name: Name,
    url: Url = None,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="What those rejected are told.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
) -> None:
    """Close a semaphore for everybody, until 'slotwise open'.

    Waiters and newcomers are rejected: 'slotwise run' exits with 75 and tells the reason.
    Holders keep their slots. It stays closed when the last of them has left.
    """
    from slotwise._cli import control_commands

    control_commands.close(name, url, reason=reason, yes=yes)


@app.command(
    "open",
    cls=_Command,
    epilog=_examples("slotwise open deploy"),
)
def reopen(name: Name, url: Url = None) -> None:
    """Undo 'slotwise close'."""
    from slotwise._cli import control_commands

    control_commands.reopen(name, url)


@app.command(
    epilog=_examples(
        "slotwise doctor",
        "slotwise doctor --url redis://cache:6379",
        "slotwise doctor --json | jq '.[] | select(.state == \"failed\")'",
        "slotwise doctor --load-scripts --url redis://admin:...@cache   for users without +eval",
    ),
)
def doctor(
    url: Url = None,
    json: Json = False,
    load_scripts: Annotated[
        bool,
        typer.Option("--load-scripts", help="Load slotwise's scripts into the Redis server first."),
    ] = False,
) -> None:
    """Check that the folder or the server is fit for use.

    Whatever is wrong comes with what to do about it. The exit code is 1 if a check failed.
    """
    from slotwise._cli import doctor as examining

    raise typer.Exit(examining.doctor(url, as_json=json, load_scripts=load_scripts))


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def purge(context: typer.Context) -> None:
    """Delete old files, and directories that are empty or become so."""
    from slotwise._cli import purge as purging

    raise typer.Exit(purging.main(context.args))


@app.command(
    epilog=_examples(
        "slotwise demo               a picture that changes; Ctrl-C ends it",
        "slotwise demo | cat         the same as lines",
    ),
)
def demo() -> None:
    """Show a few semaphores under contention, live; no server needed.

    It takes ten seconds, touches nothing of yours, and ends with 'slotwise run' and
    'slotwise ls' as you would type them.
    """
    from slotwise._cli import demo as showing

    raise typer.Exit(showing.run())


for _registered in app.registered_commands:
    _registered.cls = _Command


def main(words: Sequence[str]) -> int:
    """Do what ``slotwise`` with these words does; gives the exit code."""
    words = list(words) or ["--help"]
    command = next((word for word in words if not word.startswith("-")), "")
    logging.getLogger("slotwise").addHandler(logging.NullHandler())
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    if completion.VARIABLE in os.environ:
        completion.install()
    try:
        code = app(args=words, prog_name="slotwise", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        return NOBODY_READS
    except SystemExit as ending:  # what click makes of a reader that is gone: `slotwise ls | head`
        if isinstance(ending.__context__, BrokenPipeError):
            return NOBODY_READS
        raise
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except _CLICKS as error:
        known = command if command in _commands() else ""
        complain_of_usage(known, error.format_message().rstrip("."))
        return USAGE
    except Declined as error:
        complain(command, error)
        return USAGE
    except UnicodeError:
        complain(command, NOT_TEXT)
        return FAILED
    except (SlotwiseError, ValueError, TypeError, ImportError) as error:
        complain(command, error)
        return FAILED
    except OSError as error:
        unheard = error.errno in (errno.EBADF, errno.ENOSPC) and error.filename is None
        lost = f"what it has to say can't be written to stdout: {error.strerror}"
        complain(command, lost if unheard else error)
        return FAILED
    except Exception as error:
        complain(command, f"this is a bug, please report it: {type(error).__name__}: {error}")
        return FAILED
    return code if isinstance(code, int) else 0


# typer brings its own click along, or uses the installed one: this is its base either way.
_CLICKS: Any = next(k for k in typer.BadParameter.__mro__ if k.__name__ == "ClickException")


def _commands() -> set[str]:
    return {c.name or c.callback.__name__ for c in app.registered_commands if c.callback}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
