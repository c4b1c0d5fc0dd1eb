"""What the ingest benchmark compares with: a bare SQLite loop, and the store alone."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from typing import Any

import msgspec
from twisted.internet.defer import Deferred
from twisted.internet.task import react

from bench.workload import FRAME_ENTRIES, payload
from cortextx.fleet.contract import PushParams
from cortextx.interfaces.fleet import LogBatch
from cortextx.stores.sqlite_file import open_writer, segment_layout
from cortextx.stores.sqlite_rows import flatten, insert


class _Push(msgspec.Struct):
    params: PushParams


def batches(agents: int, total: int, after: int = 0) -> list[list[Any]]:
    """Decoded entries in the order in which a server would see them, a list a frame.

    Seqs begin behind `after`.
    """
    decode = msgspec.json.Decoder(_Push).decode
    last = after + total // agents
    return [
        decode(payload(1, agent, first, min(FRAME_ENTRIES, last - first + 1))).params.entries
        for first in range(after + 1, last + 1, FRAME_ENTRIES)
        for agent in range(agents)
    ]


def bare_loop(given: list[list[Any]], agents: int, directory: str) -> float:
    """Entries/s of one bulk insert per 1000 rows into the same schema, with full text.

    The rows are made beforehand; each transaction holds one INSERT and feeds the
    full-text index, at synchronous=FULL.
    """
    place = tempfile.mkdtemp(dir=directory)
    connection = open_writer(os.path.join(place, "raw.db"), 0)
    for statement in segment_layout(1, 1):
        connection.execute(statement)
    rows = []
    total = 0
    for number, batch in enumerate(given):
        rows.append(flatten(batch, total + 1, number % agents, 0)[0])
        total += len(batch)
    done = 0
    began = time.perf_counter()
    for batch, values in zip(given, rows, strict=True):
        connection.execute("BEGIN IMMEDIATE")
        insert(connection, "logs_000001", values)
        connection.execute(
            "INSERT INTO fts_000001 (rowid, message)"
            " SELECT id, message FROM logs_000001 WHERE id > ?",
            (done,),
        )
        connection.execute("COMMIT")
        done += len(batch)
    rate = total / (time.perf_counter() - began)
    connection.close()
    shutil.rmtree(place)
    return rate


def store_alone(total: int, agents: int, window: int, directory: str) -> dict[str, Any]:
    """Entries/s of SqliteStore alone, the reactor decoding frames beside it.

    Until everything is durable, and until everything is in the full-text index.
    """
    from cortextx.stores.sqlite import SqliteStore

    place = tempfile.mkdtemp(dir=directory)
    each = total // agents
    pushes = [
        (agent, first, payload(1, agent, first, min(FRAME_ENTRIES, each - first + 1)))
        for first in range(1, each + 1, FRAME_ENTRIES)
        for agent in range(agents)
    ]
    decode = msgspec.json.Decoder(_Push).decode
    answer: dict[str, Any] = {}

    async def run(reactor: Any) -> None:
        store = SqliteStore(reactor, os.path.join(place, "store.db"))
        await store.start()
        hosts = [f"00000000-0000-4000-8000-{agent:012d}" for agent in range(agents)]
        for agent, host in enumerate(hosts):
            await store.issue(f"bench-{agent}", host, b"%032d" % agent, 1, 1)
        waits: list[float] = []
        began = time.perf_counter()
        queue = iter(pushes)
        outstanding: list[tuple[float, LogBatch]] = []

        def more() -> None:
            while len(outstanding) < agents * window and (push := next(queue, None)):
                agent, first, data = push
                batch = LogBatch(hosts[agent], first, decode(data).params.entries, 1, len(data))
                outstanding.append((time.perf_counter(), batch))

        more()
        while outstanding:
            group, outstanding[:] = outstanding[:8], outstanding[8:]
            pending: Deferred[Any] = store.append([batch for _, batch in group])
            more()
            await pending
            now = time.perf_counter()
            waits.extend(now - at for at, _ in group)
        answer["entries_per_s"] = total / (time.perf_counter() - began)
        answer["behind_at_last_ack"] = store.backlog
        while store.backlog:
            wait: Deferred[None] = Deferred()
            reactor.callLater(0.01, wait.callback, None)
            await wait
        answer["searchable_per_s"] = total / (time.perf_counter() - began)
        waits.sort()
        answer["p50_ms"] = waits[len(waits) // 2] * 1000
        answer["p99_ms"] = waits[int(len(waits) * 0.99)] * 1000
        await store.stop()

    try:
        react(lambda reactor: Deferred.fromCoroutine(run(reactor)))
    except SystemExit as end:
        if end.code:
            raise
    shutil.rmtree(place)
    return answer
