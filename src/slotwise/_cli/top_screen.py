"""The screen of ``slotwise top``: what it shows, and what keys do to it.

The terminal itself, and when the next snapshot is taken, is in `top`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from slotwise._admin.backends import Claimants, Kind, claimants
from slotwise._admin.snapshot import Row, Watcher
from slotwise._admin.text import duration, units
from slotwise._admin.verbs import Change, Wanted, plan
from slotwise._cli.output import RIGHT, printable
from slotwise._core.adaptive import Change as Move
from slotwise._core.found_tiers import FoundTiers
from slotwise._core.semaphore import Semaphore
from slotwise._core.stats import Claimant, age
from slotwise.errors import SlotwiseError

if TYPE_CHECKING:
    from rich.console import Group


class _Column(NamedTuple):
    """A column of the list: its title, its cells, and the key that sorts by it."""

    title: str
    cell: Callable[[Row, float], str]
    key: str = ""
    sort_by: Callable[[Row], Any] = lambda row: row.title  # numbers with the largest first


_COLUMNS = (
    _Column("name", lambda row, _: f"{row.title}{_state(row)}", "n"),
    _Column(">value", lambda row, _: "" if row.rate else _value(row), "v", lambda row: -row.value),
    _Column(">held", lambda row, _: "" if row.rate else str(row.held), "h", lambda row: -row.held),
    _Column(">waiting", lambda row, _: str(row.waiting), "w", lambda row: -row.waiting),
    _Column(
        ">oldest hold",
        lambda row, _: duration(row.oldest_hold_seconds),
        "o",
        lambda row: -(row.oldest_hold_seconds or 0.0),
    ),
    _Column(
        ">seen/s",
        lambda row, _: _number(row.acquisitions_per_second, "{:.1f}".format),
        "s",
        lambda row: -(row.acquisitions_per_second or 0.0),
    ),
    _Column(
        ">wait p50",
        lambda row, every: _wait(row.wait_p50_seconds, every),
        "5",
        lambda row: -(row.wait_p50_seconds or 0.0),
    ),
    _Column(
        ">wait p95",
        lambda row, every: _wait(row.wait_p95_seconds, every),
        "9",
        lambda row: -(row.wait_p95_seconds or 0.0),
    ),
)
# If there is a rate.
_RATE_COLUMNS = (
    _Column(">rate", lambda row, _: row.rate or ""),
    _Column(">burst", lambda row, _: _value(row) if row.rate else ""),
    _Column(">left", lambda row, _: _number(row.level, units)),
    _Column(">full in", lambda row, _: duration(row.full_in_seconds)),
)
_SORTS = {column.key: column for column in _COLUMNS}
_KEYS = "sort: n v h w o s 5 9, again to reverse · ↑ ↓ Enter shows who · r resizes · q quits"
_KEYS_OF_ONE = "↑ ↓ choose a holder · k kicks it · r resizes · Escape goes back · q quits"
_KEYS_OF_ADAPTIVE = f"f freezes its value · t thaws it · {_KEYS_OF_ONE}"
_CHANGES = 3  # of an adaptive value, the latest

_SPECIAL = {"\x1b[A": "up", "\x1b[B": "down", "\x1bOA": "up", "\x1bOB": "down", "\x1b": "escape"}
_SPECIAL |= {"\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\x04": "q"}


def keys_in(typed: str) -> Iterator[str]:
    """The keys in what a terminal sent: characters, or the names of other keys."""
    for key in re.findall(r"\x1b[\[O][A-D]|.", typed, re.DOTALL):
        yield _SPECIAL.get(key, key)


class Screen:
    """All rows, or who holds and waits for one of them; and perhaps a question."""

    def __init__(self, source: Watcher, every: float) -> None:
        self._source = source
        self._every = every
        self._rows: list[Row] = []
        self._sorted_by, self._reverse = "n", False
        self._row = 0  # the chosen one
        self._opened: Row | None = None  # the one whose holders are shown
        self._found = Claimants([], [])
        self._moves: list[Move] | None = None  # of the opened one, if it is adaptive
        self._holder = 0
        self._typed: str | None = None  # a number of slots that is being typed
        self._change: Change | None = None  # what is asked about
        self._said = ""
        self._trouble = ""

    def look(self) -> None:
        """Take another snapshot; an error is shown, and the next one may succeed."""
        try:
            self._rows = self._source.rows()
            if self._opened is not None:
                # When a semaphore has ended, there may be tiers of its name.
                limit = self._source.backend.find(self._opened.name, _kind(self._opened))
                self._found = claimants(limit)
                self._moves = self._moves_of(limit)
            self._trouble = "; ".join(str(each) for each in self._source.errors)
        except SlotwiseError as error:
            self._trouble = f"{error}; trying again"

    def _moves_of(self, limit: Semaphore | FoundTiers) -> list[Move] | None:
        """How the chosen value has moved; None if it is fixed."""
        if not isinstance(limit, FoundTiers):
            try:
                return limit.changes_sync()
            except TypeError:
                return None
        row = self._chosen
        adaptive = [spec.name for spec in limit.specs if spec.rules]
        if row is None or row.tier not in adaptive:
            return None
        return limit.paths.changes_sync(row.tier, row.key)

    # -------------------------------------------------------------------- keys

    def press(self, key: str) -> bool:
        """Do what a key is for; return False to quit."""
        self._said = ""
        if self._typed is not None:
            self._type(key)
        elif self._change is not None:
            self._answer(key)
        elif key == "q":
            return False
        elif key == "r":
            self._typed = "" if self._chosen is not None else None
        elif self._opened is None:
            self._press_in_list(key)
        else:
            self._press_in_one(key)
        return True

    def _press_in_list(self, key: str) -> None:
        if key == self._sorted_by:
            self._reverse = not self._reverse
        elif key in _SORTS:
            self._sorted_by, self._reverse = key, False
        elif key in ("up", "down"):
            self._row = _moved(self._row, key, len(self._rows))
        elif key == "enter" and self._chosen is not None:
            self._opened, self._holder = self._chosen, 0
            self.look()

    def _press_in_one(self, key: str) -> None:
        holders = self._found.holders
        assert self._opened is not None
        if key in ("escape", "backspace"):
            self._opened = None
        elif key in ("up", "down"):
            self._holder = _moved(self._holder, key, len(holders))
        elif key in ("f", "t") and self._moves is not None:
            self._plan("freeze" if key == "f" else "thaw")
        elif key == "k" and self._holder < len(holders):
            chosen, row = holders[self._holder].acquisition_id, self._opened
            self._ask(Wanted(verb="kick", id=chosen, name=row.name, kind=_kind(row)))

    def _type(self, key: str) -> None:
        assert self._typed is not None
        if key.isdecimal() and key.isascii() and len(self._typed) < 15:
            self._typed += key
        elif key == "backspace":
            self._typed = self._typed[:-1]
        elif key == "enter" and self._typed and self._chosen is not None:
            self._plan("resize", int(self._typed))
            self._typed = None
        elif key in ("escape", "enter", "q"):
            self._typed = None

    def _plan(self, verb: str, value: int | None = None) -> None:
        row = self._chosen
        if row is not None:
            self._ask(
                Wanted(
                    verb=verb,
                    name=row.name,
                    kind=_kind(row),
                    tier=row.tier,
                    key=row.key,
                    value=value,
                )
            )

    def _ask(self, wanted: Wanted) -> None:
        try:
            self._change = plan(self._source.backend, wanted)
        except (SlotwiseError, ValueError, TypeError) as error:
            self._said = str(error)

    def _answer(self, key: str) -> None:
        change, self._change = self._change, None
        self._said = "nothing was done"
        if key == "y" and change is not None:
            try:
                self._said = change.make()
            except (SlotwiseError, ValueError, TypeError) as error:
                self._said = str(error)
            self.look()

    @property
    def _ordered(self) -> list[Row]:
        return sorted(self._rows, key=_SORTS[self._sorted_by].sort_by, reverse=self._reverse)

    @property
    def _chosen(self) -> Row | None:
        if self._opened is not None:
            return self._opened
        ordered = self._ordered
        return ordered[min(self._row, len(ordered) - 1)] if ordered else None

    # ----------------------------------------------------------------- drawing

    def picture(self, height: int) -> Group:
        """Return what the screen shows, in ``height`` lines."""
        from rich.console import Group
        from rich.text import Text

        where = self._source.backend.location
        room = max(height - 6, 1)
        body, keys = self._list(room) if self._opened is None else self._one(room)
        last = self._question or self._said or self._trouble or keys
        style = "bold" if self._question or self._said else "red" if self._trouble else "dim"
        head = f"slotwise top  {datetime.now():%H:%M:%S}  {where}"
        return Group(Text(head), body, Text(printable(last), style=style))

    @property
    def _question(self) -> str:
        if self._typed is not None:
            title = "" if self._chosen is None else self._chosen.title
            return f"slots of {title!r}: {self._typed}_   (Enter, or Escape)"
        return "" if self._change is None else f"{self._change.question} y/n"

    def _list(self, room: int) -> tuple[Any, str]:
        ordered = self._ordered
        self._row = min(self._row, max(len(ordered) - 1, 0))
        arrow = "▲" if (self._sorted_by == "n") != self._reverse else "▼"
        by = _SORTS[self._sorted_by].title
        titles = [f"{each} {arrow}" if each == by else each for each in columns(self._rows)]
        lines = table(ordered, self._rows, self._every)
        picture, more = _window(titles, lines, [*map(_style, ordered)], self._row, room)
        return picture, f"{_KEYS}{more}"

    def _one(self, room: int) -> tuple[Any, str]:
        holders, waiters = self._found.holders, self._found.waiters
        self._holder = min(self._holder, max(len(holders) - 1, 0))
        lines = [_claimant(_slot(each), each) for each in holders]
        lines += [_claimant(f"{place}.", each) for place, each in enumerate(waiters, 1)]
        opened = "" if self._opened is None else self._opened.title
        titles = [printable(opened), ">for", ">left", "label", "who", "keys", "lacks", "id"]
        room = max(room - (0 if self._moves is None else _CHANGES), 1)
        chosen = self._holder if holders else None
        picture, more = _window(titles, lines, [""] * len(lines), chosen, room)
        if self._moves is None:
            return picture, f"{_KEYS_OF_ONE}{more}"
        from rich.console import Group
        from rich.text import Text

        moves = [_change(each) for each in self._moves[: -_CHANGES - 1 : -1]]
        told = [Text(printable(line)) for line in moves or ["adaptive, and no change yet"]]
        return Group(picture, *told), f"{_KEYS_OF_ADAPTIVE}{more}"


def _window(
    titles: Sequence[str],
    lines: Sequence[Sequence[str]],
    styles: list[str],
    chosen: int | None,
    room: int,
) -> tuple[Any, str]:
    """Return a table of the lines that fit, among them the chosen one, and how many more are."""
    first = max((chosen or 0) - room + 1, 0)
    if chosen is not None and lines:
        styles[chosen] = f"{styles[chosen]} reverse".strip()
    shown = [[printable(cell) for cell in line] for line in lines[first : first + room]]
    more = f" · {len(lines) - room} more" if len(lines) > room else ""
    return _rich_table(titles, shown, styles[first : first + room], expand=True), more


def _rich_table(
    columns: Sequence[str],
    cells: Sequence[Sequence[str]],
    styles: Sequence[str] = (),
    **more: Any,
) -> Any:
    """Return a table of rich; ``styles`` are those of the first rows."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, **more)
    for title in columns:
        right = title.startswith(RIGHT)
        table.add_column(title.removeprefix(RIGHT), justify="right" if right else "left")
    for at, row in enumerate(cells):
        style = styles[at] if at < len(styles) else None
        table.add_row(*(Text(cell) for cell in row), style=style)
    return table


def _kind(row: Row) -> Kind:
    return "semaphore" if row.tier is None else "tiers"


def _moved(at: int, key: str, count: int) -> int:
    return max(min(at + (1 if key == "down" else -1), count - 1), 0)


def _style(row: Row) -> str:
    """Red if it is full, yellow if somebody waits although it isn't."""
    taken = row.held if row.level is None else row.value - row.level
    return "red" if row.value and taken >= row.value else "yellow" if row.waiting else ""


def _slot(holder: Claimant) -> str:
    return "holds" if holder.slot_number is None else f"holds #{holder.slot_number}"


def _change(change: Move) -> str:
    ago = duration(max(time.time() - change.at, 0.0))
    return f"{change.old} → {change.new} {ago} ago: {change.reason}"


def _claimant(state: str, each: Claimant) -> list[str]:
    who = ":".join(str(part) for part in (each.host, each.pid) if part is not None)
    keys = " ".join(f"{tier}={key}" for tier, key in each.keys.items())
    lasted = duration(age(each.since))
    label = "unreadable" if each.unreadable else each.label or ""
    holds, lasts = state.startswith("holds"), age(each.since)
    is_timed = holds and each.ttl is not None and lasts is not None
    left = duration(max(each.ttl - lasts, 0.0)) if is_timed else ""  # type: ignore[operator]
    return [state, lasted, left, label, who, keys, each.lacks or "", each.acquisition_id]


def _columns(rows: Sequence[Row]) -> tuple[_Column, ...]:
    has_rates = any(row.rate is not None for row in rows)
    return (*_COLUMNS, *(_RATE_COLUMNS if has_rates else ()))


def columns(rows: Sequence[Row]) -> list[str]:
    return [column.title for column in _columns(rows)]


def table(shown: Sequence[Row], rows: Sequence[Row], every: float) -> list[list[str]]:
    """Return the cells of some of the rows."""
    return [[column.cell(row, every) for column in _columns(rows)] for row in shown]


def _number(number: float | None, text_of: Callable[[float], str]) -> str:
    return "" if number is None else text_of(number)


def _state(row: Row) -> str:
    """Return what is shown after its title: whether it is closed, paused or frozen."""
    if row.closed:
        return " (closed)"
    if row.paused_for_seconds > 0:
        return f" (paused for {duration(row.paused_for_seconds)})"
    return " (frozen)" if row.frozen else ""


def _value(row: Row) -> str:
    """The value, and where it came from if it has moved within the last minute."""
    value = str(row.value) if row.value else "-"
    if row.value_before is None:
        return value
    return f"{row.value_before or '-'}→{value}"


def _wait(seconds: float | None, every: float) -> str:
    return f"<{every:g} s" if seconds == 0 else duration(seconds)
