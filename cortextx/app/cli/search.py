"""`cortextx search`: find entries by words and filters, page by page."""

from __future__ import annotations

from typing import Any

import click

from cortextx.app.cli.filters import filter_args, filter_options
from cortextx.app.cli.invocation import (
    Invocation,
    json_option,
    pass_invocation,
    remote_options,
)
from cortextx.app.cli.terminal import EntryPrinter

PAGE = 1000
"""Entries that one request asks for at most."""


@click.command(
    epilog="""\b
Examples:
  cortextx search error --since 1h
  cortextx search "connection refused" --host web1 --severity warning
  cortextx search --json -n 0 --oldest-first --since 2026-01-01 > all.ndjson"""
)
@filter_options
@click.option(
    "-n", "--limit", type=click.IntRange(0), default=100, show_default=True, metavar="N",
    help="At most N entries; 0 for all.",
)  # fmt: skip
@click.option("--oldest-first", is_flag=True, help="Oldest first; else the newest come first.")
@click.option("--cursor", metavar="CURSOR", help="Go on where an earlier search said.")
@remote_options
@json_option
@pass_invocation
def search(
    invocation: Invocation,
    /,
    limit: int,
    oldest_first: bool,
    cursor: str | None,
    raw: bool,
    **filters: Any,
) -> None:
    """Find log entries in which every word of TEXT occurs.

    Words in one argument are searched as a phrase; whatever characters stand in
    them is searched for. With --json each entry is one JSON object on a line
    (NDJSON). If there is more than N, stderr says how to go on.
    """
    order = "oldest_first" if oldest_first else "newest_first"
    args = filter_args(**filters)
    printer = EntryPrinter(invocation.json, raw)
    left, count_found = limit, 0
    with invocation.server() as server:
        while True:
            count = min(PAGE, left) if limit else PAGE
            answers = server.stream("search", **args, limit=count, cursor=cursor, order=order)
            while True:
                try:
                    printer.show(next(answers))
                    count_found += 1
                except StopIteration as stop:
                    cursor = stop.value.get("cursor")
                    break
            left -= count
            if cursor is None or (limit and left <= 0):
                break
    printer.flush()
    if not count_found and cursor is None:
        click.echo("nothing found", err=True)
    if cursor is not None:
        click.echo(f"there is more: go on with --cursor {cursor}", err=True)
