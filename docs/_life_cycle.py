"""The directive `life-cycle`: the ledger's table of states and verbs, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective
from tests.ledger.invariants import LIFE_CYCLE

if TYPE_CHECKING:
    from sphinx.application import Sphinx


class LifeCycle(SphinxDirective):
    """Drawn from the code, so that it cannot be wrong."""

    def run(self) -> list[nodes.Node]:
        table = nodes.table()
        group = nodes.tgroup(cols=3)
        table += group
        for width in (1, 1, 3):
            group += nodes.colspec(colwidth=width)
        head, body = nodes.thead(), nodes.tbody()
        head += _row("a claim that is", "after", "is")
        for (state, verb), outcomes in LIFE_CYCLE.items():
            body += _row(state, verb, ", or ".join(outcomes))
        group += head
        group += body
        return [table]


def _row(*cells: str) -> nodes.row:
    row = nodes.row()
    for cell in cells:
        entry = nodes.entry()
        entry += nodes.paragraph(text=cell)
        row += entry
    return row


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("life-cycle", LifeCycle)
    return {"parallel_read_safe": True}
