"""How fast does the server take logs, as a ratio to a bare SQLite loop?

    python -m bench.ingest [--entries N] [--agents N] [--window N] [--rounds N]
                           [--idle-agents N] [--tails N] [--scans N]
                           [--store-only] [--dir DIR]

Each round measures first the limit, then the real server, on the same disk:

- the limit: the same rows in the same schema with the same indexes, full-text index
  and synchronous level, made beforehand, one bulk insert a transaction of 1000;
- the server: `twistd cortex-server` in a process of its own, and a load process with
  agents that push pre-encoded frames of 1000 entries over the real protocol. Afterwards
  the file is looked at: every entry must be there, and accepted_seq must say so.

Prints one JSON object a round and a line for people at the end. The ratio is of
medians. `searchable` is the rate until the last entry is in the full-text index.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

from bench import limits

START_SECONDS = 30
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def main() -> int:
    options = _options()
    limit_rates: list[float] = []
    rounds: list[dict[str, Any]] = []
    for _ in range(options.rounds):
        limit_rates.append(_apart(_limit, options))
        measured = _apart(_store, options) if options.store_only else _server(options)
        measured["limit_entries_per_s"] = limit_rates[-1]
        rounds.append(measured)
        print(json.dumps({k: _short(v) for k, v in measured.items()}), flush=True)
    limit = statistics.median(limit_rates)
    middle = {
        key: statistics.median(one[key] for one in rounds)
        for key in rounds[0]
        if isinstance(rounds[0][key], int | float)
    }
    print(
        f"{'store' if options.store_only else 'server'} {middle['entries_per_s'] / 1e3:.1f} k/s"
        f" ({middle['searchable_per_s'] / 1e3:.1f} k/s searchable),"
        f" bare loop {limit / 1e3:.1f} k/s, ratio {middle['entries_per_s'] / limit:.2f}"
        f" ({middle['searchable_per_s'] / limit:.2f} searchable);"
        f" push to ack p50 {middle['p50_ms']:.0f} ms p99 {middle['p99_ms']:.0f} ms"
        + (
            ""
            if options.store_only
            else f"; server peak RSS {middle['peak_rss_kib'] / 1024:.0f} MiB;"
            f" {rounds[-1]['verified']} entries verified"
        )
    )
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure ingest against its limit.")
    parser.add_argument("--entries", type=int, default=400_000)
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--window", type=int, default=4, help="unanswered pushes of an agent")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle-agents", type=int, default=0, help="connected, sending nothing")
    parser.add_argument("--tails", type=int, default=0, help="`tail -f`s of errors beside it")
    parser.add_argument("--distinct", action="store_true", help="tails of a filter each")
    parser.add_argument("--scans", type=int, default=0, help="searches that no index helps")
    parser.add_argument("--store-only", action="store_true", help="no network, no server")
    parser.add_argument("--dir", default=None, help="where databases are made")
    return parser.parse_args()


def _apart(what: Any, options: argparse.Namespace) -> Any:
    """Run in a process of its own, so that no round inherits another's memory."""
    context = get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(what, (options,))


def _limit(options: argparse.Namespace) -> float:
    given = limits.batches(options.agents, options.entries)
    return limits.bare_loop(given, options.agents, options.dir)


def _store(options: argparse.Namespace) -> dict[str, Any]:
    return limits.store_alone(options.entries, options.agents, options.window, options.dir)


def _server(options: argparse.Namespace) -> dict[str, Any]:
    place = tempfile.mkdtemp(prefix="cx", dir=options.dir)
    state = os.path.join(place, "s")
    with open(os.path.join(place, "log"), "wb") as log:
        server = subprocess.Popen(
            [
                os.path.join(os.path.dirname(sys.executable), "twistd"),
                "-n",
                "--pidfile=",
                "cortex-server",
                "--state-dir",
                state,
                "--listen",
                "tcp:0:interface=127.0.0.1",
            ],
            stdout=log,
            stderr=log,
            # Eight hosts at full speed would otherwise be held back, each by its own quota.
            env={**os.environ, "CORTEXTX_SERVER_QUOTA_ENTRIES_PER_SEC": "0"},
        )
    try:
        address = _await_address(server, state, os.path.join(place, "log"))
        with _readers(options, state) as readers:
            measured = _load(options, server.pid, state, address)
        measured |= {key: sum(found) for key, found in readers.items()}
        measured |= _await_index(state, measured)
        measured["verified"] = _verify(state, options)
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
    shutil.rmtree(place)
    return measured


def _await_address(server: subprocess.Popen[bytes], state: str, log: str) -> str:
    path = os.path.join(state, "run", "cortex-server.address")
    for _ in range(START_SECONDS * 20):
        if os.path.exists(path):
            with open(path) as file:
                return file.read().strip()
        if server.poll() is not None:
            break
        time.sleep(0.05)
    with open(log) as file:
        raise SystemExit(f"the server did not start:\n{file.read()}")


def _load(options: argparse.Namespace, pid: int, state: str, address: str) -> dict[str, Any]:
    tokens = _issue(state, [f"bench-{number}" for number in range(options.agents)])
    idle = _issue(state, [f"idle-{number}" for number in range(options.idle_agents)])
    order = {
        "address": address,
        "tokens": tokens,
        "entries": options.entries,
        "window": options.window,
        "idle": idle,
    }
    before = _memory(pid)["VmRSS"]
    load = subprocess.Popen(
        [sys.executable, "-m", "bench.load"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        assert load.stdin is not None and load.stdout is not None
        load.stdin.write(json.dumps(order) + "\n")
        load.stdin.flush()
        if load.stdout.readline() != "ready\n":
            raise SystemExit("the load process failed")
        connected = _memory(pid)["VmRSS"]
        cpu = _cpu(pid)
        began = time.perf_counter()
        load.stdin.write("go\n")
        load.stdin.flush()
        said = json.loads(load.stdout.readline())
    finally:
        load.stdin.close()
        load.kill()
        load.wait()
    clients = options.agents + options.idle_agents
    return {
        "began": began,
        "entries": said["entries"],
        "entries_per_s": said["entries"] / said["seconds"],
        "mib_per_s": said["bytes"] / said["seconds"] / 2**20,
        "p50_ms": said["p50_ms"],
        "p99_ms": said["p99_ms"],
        "max_ms": said["max_ms"],
        "refusals": said["refusals"],
        "server_cpu_seconds": _cpu(pid) - cpu,
        "load_cpu_seconds": said["cpu_seconds"],
        "peak_rss_kib": _memory(pid)["VmHWM"],
        "rss_per_agent_kib": (connected - before) / clients,
    }


@contextmanager
def _readers(options: argparse.Namespace, state: str) -> Iterator[dict[str, list[int]]]:
    """Tails and scans over the admin socket for as long as the load runs."""
    seen: dict[str, list[int]] = {"tailed": [], "scans": []}
    stop = threading.Event()

    def follow(number: int) -> dict[str, Any]:
        # Tails with one filter are served together; another source makes it another filter.
        more = {"sources": ["file:*", f"nothing-{number}"]} if options.distinct else {}
        return {"op": "search.tail", "args": {"severity": "err", "follow": True, **more}}

    # No tokens in it, so every message is looked at; and it is never found.
    scan = {"op": "search", "args": {"text": "#*#", "limit": 10}}

    def read(request: dict[str, Any], again: bool, into: list[int]) -> None:
        count = 0
        with socket.socket(socket.AF_UNIX) as admin:
            admin.settimeout(0.2)
            admin.connect(os.path.join(state, "run", "admin.sock"))
            admin.sendall(json.dumps(request).encode() + b"\n")
            while not stop.is_set():
                try:
                    data = admin.recv(262_144)
                except TimeoutError:
                    continue
                if not data:
                    break
                count += data.count(b"\n")
                if again and data.endswith(b"\n"):
                    admin.sendall(json.dumps(request).encode() + b"\n")
        into.append(count)

    threads = [
        threading.Thread(target=read, args=(follow(number), False, seen["tailed"]))
        for number in range(options.tails)
    ] + [
        threading.Thread(target=read, args=(scan, True, seen["scans"]))
        for _ in range(options.scans)
    ]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _issue(state: str, names: list[str]) -> list[str]:
    """One-time tokens, over the admin socket: a command each would take a while."""
    tokens: list[str] = []
    with socket.socket(socket.AF_UNIX) as admin:
        admin.connect(os.path.join(state, "run", "admin.sock"))
        answers = admin.makefile("rb")
        for name in names:
            request = {"op": "agent.issue", "args": {"name": name}}
            admin.sendall(json.dumps(request).encode() + b"\n")
            tokens.append(json.loads(answers.readline())["end"]["token"])
    return tokens


def _await_index(state: str, measured: dict[str, Any]) -> dict[str, Any]:
    """When every entry is in the full-text index, by looking at the catalogue."""
    connection = _open(state)
    behind = None
    while True:
        (rows,) = connection.execute("SELECT sum(last_id - indexed_to) FROM segments").fetchone()
        behind = rows if behind is None else behind
        if not rows:
            break
        time.sleep(0.005)
    connection.close()
    took = time.perf_counter() - measured.pop("began")
    return {"behind_at_last_ack": behind, "searchable_per_s": measured["entries"] / took}


def _verify(state: str, options: argparse.Namespace) -> int:
    """Count what is stored; it must be everything, once, as accepted_seq says."""
    connection = _open(state)
    each = options.entries // options.agents
    accepted = dict(
        connection.execute("SELECT key, accepted_seq FROM hosts WHERE name LIKE 'bench-%'")
    )
    stored: dict[int, int] = {}
    for (number,) in connection.execute("SELECT number FROM segments").fetchall():
        for host, rows in connection.execute(
            f"SELECT host, count(*) FROM logs_{number:06d} GROUP BY host"
        ):
            stored[host] = stored.get(host, 0) + rows
    connection.close()
    expected = dict.fromkeys(accepted, each)
    if not (len(accepted) == options.agents and accepted == stored == expected):
        raise SystemExit(f"not what was sent: accepted {accepted}, stored {stored}")
    return sum(stored.values())


def _open(state: str) -> sqlite3.Connection:
    path = os.path.join(state, "server", "store.db")
    return sqlite3.connect(f"file:{path}?mode=ro", uri=True)


def _memory(pid: int) -> dict[str, int]:
    """VmRSS and VmHWM of a process, KiB."""
    with open(f"/proc/{pid}/status") as file:
        lines = [line.split() for line in file]
    return {line[0][:-1]: int(line[1]) for line in lines if line[0] in ("VmRSS:", "VmHWM:")}


def _cpu(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _short(value: Any) -> Any:
    return round(value, 1) if isinstance(value, float) else value


if __name__ == "__main__":
    sys.exit(main())
