"""file.tail: the last lines of a log file that the agent may read (S2)."""

from __future__ import annotations

import os
from typing import Any

from cortextx.fleet.agent.probes.catalogue import TailArgs
from cortextx.fleet.agent.probes.place import Place
from cortextx.fleet.agent.probes.verdicts import ProbeFault
from cortextx.fleet.agent.sources.globs import Grounds, NotAllowed

BLOCK = 65_536
MAX_LINE = 8192
"""Characters of a line that are shown."""


def tail(args: TailArgs, place: Place) -> dict[str, Any]:
    """The last lines, oldest first, as far as they fit into half of the answer's bound.

    A link is followed only to where the agent may read; only regular files are read.
    """
    grounds = Grounds(place.roots, place.excluded)
    real = os.path.realpath(args.path)
    if not grounds.covers(real):
        raise ProbeFault(f"{args.path} is outside of the directories that probes may read")
    try:
        descriptor = grounds.open(real)
    except NotAllowed as fault:
        raise ProbeFault(str(fault)) from None
    with open(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        data, start = b"", size
        room = place.output_bytes // 2
        while start > 0 and data.count(b"\n") <= args.lines and len(data) < room:
            begin = max(0, start - BLOCK)
            file.seek(begin)
            data = file.read(start - begin) + data
            start = begin
    lines = data.split(b"\n")
    if lines and not lines[-1]:
        lines.pop()
    if start > 0 and len(lines) <= args.lines:
        # The first one is not whole.
        lines = lines[1:]
    shown = [line.decode(errors="replace") for line in lines[-args.lines :]]
    return {
        "path": args.path,
        "size_bytes": size,
        "lines": [line if len(line) <= MAX_LINE else line[:MAX_LINE] + "…" for line in shown],
    }
