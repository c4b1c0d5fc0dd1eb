"""Sessions: what the journal and the slave carry, against the machine's own limits and Redis.

    python -m bench.session [--only NAME …] [--rounds N] [--directory DIR]

- journal: durable events/s of 1, 10 and 100 sessions, against a loop that makes the very
  same writes and fdatasyncs (`ratio`), and against one that groups as much as is in
  flight (`ideal`);
- redis: a run that talks as fast as it can, through the real slave, with its 10 attached
  masters, against a Redis stream with as long values: XADD, pipelines of 100, appendfsync
  always, 10 clients in XREAD; both over Unix sockets on the same disk. The clock stops
  when every reader has everything;
- fanout: one session's events to 100 connections, as fast as it goes, and then at an
  even rate: from the return of fdatasync to when the last of the readers has it;
- deltas: from the child's write to the origin's read, alone and while another
  attachment replays the long log;
- replay: the long log to one attachment;
- recovery: from a start on the long log to `attached`, and how long others wait meanwhile;
- memory: the slave's RSS with many long sessions, some of them attached.

Ratios are of runs that alternate. Prints a JSON object and a line for people each.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

from bench.session_house import (
    TEXT,
    House,
    add_all,
    connected,
    filled_pipelines,
    message_bytes,
    write_log,
)
from bench.session_journal import measure_journal

MIB = 1024 * 1024
AROUND = 4
"""Facts of a run beside what it says: a claim, the user's words, a start, an end."""
VALUE_BYTES = message_bytes()
"""What a fact of a message takes in a log, and a value in Redis' stream."""


def asked(kind: str, count: int, rate: float = 0.0, size: int = len(TEXT)) -> str:
    """The input for the child."""
    return json.dumps({"kind": kind, "count": count, "rate": rate, "size": size})


def percentile(values: Sequence[float], share: float) -> float:
    """A value that `share` of all are not above; in milliseconds."""
    found = sorted(values)
    return 1000 * found[min(len(found) - 1, int(len(found) * share))]


def cpu_seconds(process: Any) -> float:
    """What a process used so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def measure_redis(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Ten readers of a stream, ours against Redis."""
    rounds = []
    for _ in range(options.rounds):
        with House(options.directory) as house:
            of_redis = _redis_round(house, options)
        with House(options.directory) as house:
            of_slave = _slave_round(house, options)
        rounds.append({"ours": of_slave, "redis": of_redis})
    ratio = statistics.median(one["ours"]["per_s"] / one["redis"]["per_s"] for one in rounds)
    ours, theirs = _median(rounds, "ours", "per_s"), _median(rounds, "redis", "per_s")
    cpu = _median(rounds, "ours", "cpu")
    return (
        {"rounds": rounds, "ratio": ratio},
        f"{ours:,.0f} events/s to {options.masters} masters, Redis {theirs:,.0f}, ratio"
        f" {ratio:.2f}; the slave took {1e6 * cpu / options.events:.0f} us of CPU an event",
    )


def _median(rounds: Sequence[dict[str, dict[str, float]]], who: str, what: str) -> float:
    return statistics.median(one[who][what] for one in rounds)


def _redis_round(house: House, options: argparse.Namespace) -> dict[str, float]:
    path = house.start_redis()
    pipelines = filled_pipelines(options.events, VALUE_BYTES, 100)
    readers = house.readers(
        kind="redis", socket=path, readers=options.masters, until=options.events,
        size=VALUE_BYTES, seconds=options.seconds,
    )  # fmt: skip
    readers.begin()
    begun = time.monotonic()
    add_all(path, pipelines)
    added = time.monotonic() - begun
    found = readers.found()
    return {
        "per_s": options.events / (found["ended"] - begun),
        "added_per_s": options.events / added,
        "readers_cpu": found["cpu"],
    }


def _slave_round(
    house: House, options: argparse.Namespace, masters: int | None = None
) -> dict[str, float]:
    slave = house.start_slave()
    count = masters or options.masters
    readers = house.readers(
        kind="slave", socket=house.socket, readers=count, until=options.events + AROUND,
        agent="bench", session="talk", input=asked("message", options.events),
        seconds=options.seconds,
    )  # fmt: skip
    before = cpu_seconds(slave)
    readers.begin()
    found = readers.found()
    took = found["ended"] - found["begun"]
    return {
        "per_s": options.events / took,
        "delivered_per_s": found["facts"] / took,
        "mb_per_s": found["bytes"] / took / 1e6,
        "cpu": cpu_seconds(slave) - before,
        "readers_cpu": found["cpu"],
    }


def measure_fanout(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """One session to a hundred connections."""
    fast = argparse.Namespace(**{**vars(options), "events": max(1000, options.events // 5)})
    with House(options.directory) as house:
        flood = _slave_round(house, fast, options.fanout)
    count = int(options.rate * options.paced_seconds)
    with House(options.directory) as house:
        house.start_slave(notes=True)
        readers = house.readers(
            kind="slave", socket=house.socket, readers=options.fanout, until=count + AROUND,
            agent="bench", session="talk", input=asked("message", count, options.rate),
            seconds=options.seconds, stamps=True,
        )  # fmt: skip
        readers.begin()
        last = readers.found()["last"]
        synced = house.synced()
    seqs = [seq for seq, _ in synced]
    waits = [
        at - synced[place][1]
        for seq, at in last
        if (place := bisect_left(seqs, seq)) < len(seqs) and seq > AROUND
    ]
    p50, p99 = percentile(waits, 0.5), percentile(waits, 0.99)
    return (
        {"flood": flood, "rate": options.rate, "p50_ms": p50, "p99_ms": p99, "waits": len(waits)},
        f"{flood['delivered_per_s']:,.0f} events/s delivered to {options.fanout} masters"
        f" ({flood['mb_per_s']:.0f} MB/s); at {options.rate:g} events/s from fdatasync to the"
        f" last of them p50 {p50:.1f}, p99 {p99:.1f} ms",
    )


def _delta_delays(
    house: House, options: argparse.Namespace, session: str
) -> list[tuple[float, float]]:
    """When deltas were read, and how long after they were said."""
    count = int(options.delta_rate * options.paced_seconds)
    readers = house.readers(
        kind="slave", socket=house.socket, readers=1, until=AROUND, agent="bench",
        session=session, input=asked("delta", count, options.delta_rate, 24), deltas=True,
        seconds=options.seconds,
    )  # fmt: skip
    readers.begin()
    delays: list[tuple[float, float]] = readers.found()["delays"]
    return delays


def _replayed(house: House, options: argparse.Namespace, session: str = "long") -> Any:
    return house.readers(
        kind="slave", socket=house.socket, readers=1, until=options.long, agent="bench",
        session=session, seconds=options.seconds,
    )  # fmt: skip


def measure_deltas(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Deltas, alone and beside a replay of the long log."""
    with House(options.directory) as house:
        write_log(house.log("long"), options.long)
        house.start_slave()
        replay = _replayed(house, options)  # recovered before anything is measured
        alone = [delay for _, delay in _delta_delays(house, options, "alone")]
        replay.begin()
        disturbed = _delta_delays(house, options, "beside")
        found = replay.found()
    beside = [delay for at, delay in disturbed if at < found["ended"]]
    if not beside:
        raise SystemExit("the replay was over before the first delta")
    took = found["ended"] - found["begun"]
    values = {
        "alone_p50_ms": percentile(alone, 0.5), "alone_p99_ms": percentile(alone, 0.99),
        "p50_ms": percentile(beside, 0.5), "p99_ms": percentile(beside, 0.99),
        "deltas": len(beside), "replay_seconds": took,
    }  # fmt: skip
    return (
        values,
        f"deltas p50 {values['p50_ms']:.1f}, p99 {values['p99_ms']:.1f} ms beside a replay of"
        f" {options.long:,} events ({took:.1f} s); alone {values['alone_p50_ms']:.1f} and"
        f" {values['alone_p99_ms']:.1f} ms",
    )


def measure_replay(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """The long log to one attachment, from the file."""
    with House(options.directory) as house:
        size = write_log(house.log("long"), options.long)
        slave = house.start_slave()
        rates = []
        for _ in range(options.rounds):
            replay = _replayed(house, options)
            before = cpu_seconds(slave)
            replay.begin()
            found = replay.found()
            took = found["ended"] - found["begun"]
            rates.append((found["bytes"] / took / 1e6, options.long / took))
            cpu = cpu_seconds(slave) - before
    mb, events = (statistics.median(column) for column in zip(*rates, strict=True))
    return (
        {"mb_per_s": mb, "per_s": events, "log_bytes": size, "cpu": cpu},
        f"replay of {options.long:,} events: {mb:.0f} MB/s of frames, {events:,.0f} events/s,"
        f" {1e6 * cpu / options.long:.1f} us of CPU an event",
    )


def measure_recovery(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """From a start on the long log to `attached`; a ping each 10 ms meanwhile."""
    with House(options.directory) as house:
        size = write_log(house.log("long"), options.long)
        slave = house.start_slave()
        before = slave.memory_info().rss
        begun = time.monotonic()
        with connected(house.socket) as sock:
            hello = _frame("hello", None, {"versions": [ABI]}, capabilities=CAN)
            place = {"agent": "bench", "scope": "private"}
            attach = _frame("attach", "a", place, capabilities=CAN, mode="observe", session="long")
            sock.sendall(hello + attach)
            sock.setblocking(False)
            got, waits = b"", []
            while b'"kind":"attached"' not in got:
                waits.append(_pinged(house.socket))
                time.sleep(0.01)
                try:
                    got += sock.recv(65536)
                except BlockingIOError:
                    continue
                if b'"kind":"error"' in got or time.monotonic() - begun > options.seconds:
                    raise SystemExit(f"not attached: {got.decode()}")
        took = time.monotonic() - begun
        grown = slave.memory_info().rss - before
    return (
        {
            "seconds": took, "log_bytes": size, "rss_grown": grown,
            "ping_p99_ms": percentile(waits, 0.99), "ping_max_ms": percentile(waits, 1.0),
        },
        f"recovery of {options.long:,} events ({size / 1e6:.0f} MB) in {took:.1f} s,"
        f" {options.long / took:,.0f} events/s, {grown / MIB:.0f} MiB; a ping meanwhile p99"
        f" {percentile(waits, 0.99):.0f} ms, at worst {percentile(waits, 1.0):.0f} ms",
    )  # fmt: skip


def _pinged(path: str) -> float:
    begun = time.monotonic()
    with connected(path) as sock:
        sock.sendall(b'{"op":"ping"}\n')
        while sock.recv(4096):
            pass
    return time.monotonic() - begun


ABI = "cortexfs.interaction/v2"
CAN = ["observe", "replay"]


def _frame(kind: str, attachment: str | None, content: dict[str, Any], **event: Any) -> bytes:
    names = ("request_id", "run_id", "command_id")
    ids = {"connection_id": "c", "attachment_id": attachment, **dict.fromkeys(names)}
    body = {"side": "master", "kind": kind, "durable": False, "data": content, **event}
    frame = {"abi": ABI, "correlation": ids, "session_seq": None, "event": body}
    return json.dumps(frame).encode() + b"\n"


def measure_memory(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Many long sessions, some attached, others attached once and unloaded since."""
    with House(options.directory, idle=1.0) as house:
        first = house.log("s0")
        write_log(first, options.session_events)
        for number in range(1, options.sessions):
            shutil.copyfile(first, house.log(f"s{number}"))
        slave = house.start_slave()
        empty = slave.memory_info().rss
        took = time.monotonic()
        with connected(house.socket) as sock:
            sock.sendall(_frame("hello", None, {"versions": [ABI]}, capabilities=CAN))
            _attach(sock, range(options.touched), 64, leave=True)
            touched = slave.memory_info().rss
            _attach(sock, range(options.attached), 64, leave=False)
            took = time.monotonic() - took
            attached = slave.memory_info().rss
            time.sleep(3.0)  # those that were left are unloaded
            rested = slave.memory_info().rss
    values = {
        "empty": empty, "touched": touched, "attached": attached, "rested": rested,
        "seconds": took, "sessions": options.sessions,
    }  # fmt: skip
    each = (rested - empty) / max(1, options.attached)
    return (
        values,
        f"{options.sessions:,} sessions of {options.session_events:,} events: RSS"
        f" {empty / MIB:.0f} MiB at first, {attached / MIB:.0f} with {options.attached} attached"
        f" (after {options.touched} others were attached and left), {rested / MIB:.0f} at rest:"
        f" {each / 1024:.0f} KiB an attached session",
    )


def _attach(sock: Any, numbers: Sequence[int], at_once: int, leave: bool) -> None:
    """Attach to sessions, some at a time, and wait for each; `leave` them then."""
    for begin in range(0, len(numbers), at_once):
        now = numbers[begin : begin + at_once]
        place = {"agent": "bench", "scope": "private"}
        for number in now:
            sock.sendall(
                _frame(
                    "attach", f"a{number}", place, capabilities=CAN, mode="observe",
                    session=f"s{number}",
                )
            )  # fmt: skip
        got = b""
        while got.count(b'"kind":"attached"') < len(now):
            got += sock.recv(65536)
            if b'"kind":"error"' in got:
                raise SystemExit(f"not attached: {got[-1000:].decode()}")
        for number in now if leave else ():
            sock.sendall(_frame("detach", f"a{number}", {}))


MEASURES: dict[str, Callable[[argparse.Namespace], tuple[dict[str, Any], str]]] = {
    "journal": measure_journal,
    "redis": measure_redis,
    "fanout": measure_fanout,
    "deltas": measure_deltas,
    "replay": measure_replay,
    "recovery": measure_recovery,
    "memory": measure_memory,
}


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description="Measure sessions.")
    add = parser.add_argument
    add("--only", nargs="*", choices=list(MEASURES), default=list(MEASURES))
    add("--rounds", type=int, default=3, help="of what is compared, and of the replay")
    add("--directory", default=None, help="where everything is made")
    add("--seconds", type=float, default=300.0, help="after which a measurement is given up")
    add("--events", type=int, default=50_000, help="of a run, and of the journals")
    add("--masters", type=int, default=10)
    add("--fanout", type=int, default=100, help="connections")
    add("--rate", type=float, default=50.0, help="events/s of the even fan-out")
    add("--delta-rate", type=float, default=200.0, help="deltas/s")
    add("--paced-seconds", type=float, default=6.0)
    add("--long", type=int, default=1_000_000, help="events of the long log")
    add("--sessions", type=int, default=1000)
    add("--session-events", type=int, default=10_000)
    add("--touched", type=int, default=128, help="sessions that are attached and left first")
    add("--attached", type=int, default=64)
    return parser.parse_args(arguments)


def main() -> int:
    options = parsed(sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if "redis" in options.only and shutil.which("redis-server") is None:
        print("redis-server is missing (package redis-server)", file=sys.stderr)
        return 2
    for name in options.only:
        values, line = MEASURES[name](options)
        print(json.dumps({name: values}), flush=True)
        print(f"{name}: {line}", flush=True)
    return 0


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main())
