"""`cortextx tail`: the newest entries, and with -f those that come, across restarts (A64)."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import click

from cortextx.app.cli.faults import NotReachable, Refused
from cortextx.app.cli.filters import filter_args, filter_options
from cortextx.app.cli.invocation import (
    Invocation,
    json_option,
    pass_invocation,
    remote_options,
)
from cortextx.app.cli.terminal import EntryPrinter

FIRST_WAIT = 0.2
"""Seconds before the first attempt to reach a server that went away; doubled each time."""
LONGEST_WAIT = 2.0
PAGE = 1000
"""Entries that one request asks for at most."""


@click.command(
    epilog="""\b
Examples:
  cortextx tail -n 20
  cortextx tail -f --host web1 --severity err
  cortextx tail -f --json | jq .message"""
)
@filter_options
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until ^C.")
@click.option(
    "-n", "--last", type=click.IntRange(0, PAGE), metavar="N",
    help="Begin with the N newest entries; 10 unless --after is given.",
)  # fmt: skip
@click.option(
    "--after", type=click.IntRange(0), metavar="CURSOR",
    help="Begin behind the entry with this id, and miss none.",
)  # fmt: skip
@remote_options
@json_option
@pass_invocation
def tail(
    invocation: Invocation,
    /,
    follow: bool,
    last: int | None,
    after: int | None,
    raw: bool,
    **filters: Any,
) -> None:
    """Show the newest log entries in the order in which they were stored.

    With -f it goes on, and if the server restarts, it goes on from the same
    place: nothing is missed or shown twice. With --json each entry is one JSON
    object on a line (NDJSON); its `id` is what --after takes.
    """
    if last is not None and after is not None:
        raise click.UsageError("--last and --after exclude one another")
    printer = EntryPrinter(invocation.json, raw)
    reader = Reader(invocation, filter_args(**filters), printer)
    if after is None:
        reader.begin(10 if last is None else last)
    else:
        reader.cursor = after
        if not follow:
            reader.catch_up()
    if follow:
        reader.follow()


class Reader:
    """Reads the tail from `cursor`, the highest entry id that was looked at."""

    def __init__(
        self, invocation: Invocation, filters: dict[str, Any], printer: EntryPrinter
    ) -> None:
        self._invocation = invocation
        self._filters = filters
        self._printer = printer
        self.cursor = 0

    def begin(self, last: int) -> None:
        """Show the `last` newest entries, and stand behind them."""
        with self._invocation.server() as server:
            self._show(server.stream("search.tail", **self._filters, last=last))

    def catch_up(self) -> None:
        """Show all that is stored behind the cursor."""
        with self._invocation.server() as server:
            while self._show(
                server.stream("search.tail", **self._filters, after=self.cursor, limit=PAGE)
            ):
                pass

    def follow(self) -> None:
        """Show what comes, for ever; a server that goes away is waited for."""
        while True:
            try:
                with self._invocation.server() as server:
                    self._show(
                        server.stream(
                            "search.tail", follow=True, **self._filters, after=self.cursor
                        )
                    )
            except Refused as refusal:
                if refusal.code not in ("unavailable", "busy"):
                    raise
            except NotReachable:
                pass
            self._wait()

    def _show(self, answers: Generator[dict[str, Any], None, dict[str, Any]]) -> bool:
        """Print the rows beyond the cursor; answers whether there were any."""
        before = self.cursor
        while True:
            try:
                row = next(answers)
            except StopIteration as stop:
                self.cursor = max(self.cursor, int(stop.value.get("cursor") or 0))
                self._printer.flush()
                return self.cursor > before
            if int(row["id"]) > self.cursor:
                self._printer.show(row)
                self.cursor = int(row["id"])
            self._printer.flush()

    def _wait(self) -> None:
        """Return when the server answers again."""
        click.echo("the server went away; waiting for it", err=True)
        wait = FIRST_WAIT
        while True:
            self._invocation.sleep(wait)
            wait = min(LONGEST_WAIT, wait * 2)
            try:
                with self._invocation.server() as server:
                    server.call("ping")
            except (NotReachable, Refused):
                continue
            click.echo("the server is back", err=True)
            return
