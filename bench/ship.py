"""How fast does a log file get from a host to the server, against rsyslog with RELP?

    python -m bench.ship [--lines N] [--rounds N] [--dir DIR]

In every round both carry the same file of real-looking lines, one after the other, on
the same disk: put in place by a rename, at which moment the clock starts.

- ours: `twistd cortex-agent` and `twistd cortex-server`, as they come, the host's quota
  off; the clock stops when the server has acknowledged the last line (it is synced to
  disk on both ends and a search finds it) and, as `searchable`, when the full-text index
  holds it too;
- rsyslog: imfile, a disk-assisted queue, omrelp with a window of 10,000; imrelp and
  omfile on the other end; the clock stops when the last line is in the receiver's file.
  Neither end syncs: what is acknowledged is in memory.

Afterwards both are counted: every line once. Prints one JSON object a round and a line
for people. What does not move for a minute ends the run, and everything that it started
ends with it, on SIGTERM too; but for rsyslog's receiver, which at times comes to rest a
little short of the end: it gets `TRIES` a round, and what it took to finish is counted.
Its queues are told to wait rather than discard where they are full.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from cortextx.app.cli.client import server_client

BIN = os.path.dirname(sys.executable)
WAIT_SECONDS = 60
"""How long something may take, or a count stand still, until the run is given up."""
TRIES = 3
"""How often rsyslog may try to carry one file."""
POLL = 0.02
SETTLED_SECONDS = 7.0
"""How long after its last line the agent's memory is measured again."""
_APPS = ("sshd", "nginx", "postgres", "kernel", "cron", "systemd", "dockerd", "api")
_VERBS = ("accepted", "rejected", "opened", "closed", "started", "finished", "retried")
_LEVELS = ("",) * 12 + ("warning: ", "error: ")


class Stalled(SystemExit):
    """A count stood still for too long; unless somebody tries again, the run ends."""


SENDER = """
module(load="imfile")
module(load="omrelp")
global(workDirectory="{work}" maxMessageSize="64k")
template(name="line" type="string" string="<%PRI%>%TIMESTAMP% h %syslogtag% %msg%")
input(type="imfile" File="{path}" Tag="app:" Facility="local0" Severity="info" ruleset="send")
ruleset(name="send") {{
    action(type="omrelp" target="127.0.0.1" port="{port}" windowsize="10000"
           queue.type="LinkedList" queue.filename="spool" queue.maxdiskspace="4g"
           queue.size="100000" queue.saveonshutdown="on" queue.dequeuebatchsize="1024"
           queue.timeoutEnqueue="600000" action.resumeretrycount="-1")
}}
"""
RECEIVER = """
module(load="imrelp")
global(workDirectory="{work}" maxMessageSize="64k")
template(name="bare" type="string" string="%msg:2:$%\\n")
input(type="imrelp" address="127.0.0.1" port="{port}" ruleset="keep" flowControl="full")
ruleset(name="keep" queue.type="LinkedList" queue.size="100000" queue.dequeuebatchsize="1024"
        queue.timeoutEnqueue="600000") {{
    action(type="omfile" file="{out}" template="bare" ioBufferSize="64k"
           flushInterval="1" flushOnTXEnd="on")
}}
"""


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if shutil.which("rsyslogd", path=_search_path()) is None:
        print("rsyslogd is missing (packages rsyslog and rsyslog-relp)", file=sys.stderr)
        return 2
    rounds = []
    for number in range(options.rounds):
        place = tempfile.mkdtemp(prefix="cx", dir=options.dir)
        try:
            path = os.path.join(place, "lines")
            size = write_lines(path, options.lines, number)
            round_ = {"lines": options.lines, "bytes": size}
            round_["rsyslog"] = _rsyslog_at_last(place, path, options.lines, size)
            round_["ours"] = _ours(place, path, options.lines)
        finally:
            shutil.rmtree(place, ignore_errors=True)
        print(json.dumps(round_), flush=True)
        rounds.append(round_)
    ours = _medians([one["ours"] for one in rounds])
    theirs = _medians([one["rsyslog"] for one in rounds])
    ratio = statistics.median(
        one["ours"]["lines_per_s"] / one["rsyslog"]["lines_per_s"] for one in rounds
    )
    print(
        f"ours {ours['lines_per_s'] / 1e3:.1f} k/s (searchable {ours['searchable_per_s'] / 1e3:.1f}"
        f" k/s), rsyslog {theirs['lines_per_s'] / 1e3:.1f} k/s, ratio {ratio:.2f}; CPU seconds a"
        f" million lines: agent {ours['sender_cpu']:.1f}, server {ours['receiver_cpu']:.1f};"
        f" rsyslog {theirs['sender_cpu']:.1f} and {theirs['receiver_cpu']:.1f}; the agent's RSS"
        f" {ours['sender_rss_mb']:.0f} MB (before {ours['sender_idle_mb']:.0f}, peak"
        f" {ours['sender_peak_mb']:.0f}), rsyslog's {theirs['sender_rss_mb']:.0f}; rsyslog came"
        f" to rest too early {sum(int(one['rsyslog']['stalls']) for one in rounds)} times"
    )
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure shipping against rsyslog with RELP.")
    parser.add_argument("--lines", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", default=None, help="where everything is made")
    return parser.parse_args()


def lines(count: int, seed: int) -> Iterator[str]:
    """Lines as rsyslog itself writes them, about 150 characters each."""
    draw = random.Random(seed)
    for number in range(count):
        second, micros = divmod(number * 137, 1_000_000)
        minute, second = divmod(second, 60)
        hour, minute = divmod(minute, 60)
        app = draw.choice(_APPS)
        yield (
            f"2026-05-16T{hour % 24:02}:{minute:02}:{second:02}.{micros:06}+00:00 web-{seed}"
            f" {app}[{draw.randrange(300, 32768)}]: {draw.choice(_LEVELS)}{draw.choice(_VERBS)}"
            f" connection from 10.{draw.randrange(16)}.{draw.randrange(256)}.{draw.randrange(256)}"
            f" port {draw.randrange(1024, 65536)} for user{draw.randrange(5000)}"
            f" request {draw.getrandbits(48):012x} took {draw.random():.6f} s"
        )


def write_lines(path: str, count: int, seed: int) -> int:
    """Make the file; answers its size in bytes."""
    with open(path, "w") as file:
        for line in lines(count, seed):
            file.write(line + "\n")
    return os.path.getsize(path)


def _rsyslog_at_last(place: str, path: str, count: int, size: int) -> dict[str, Any]:
    """rsyslog's figures of the first try that it finishes; `stalls` says how many it did not."""
    for stalls in range(TRIES):
        try:
            found = _rsyslog(_folder(place, f"try{stalls}"), path, count, size)
        except Stalled as stall:
            print(stall, file=sys.stderr, flush=True)
            continue
        return {**found, "stalls": stalls}
    raise Stalled(f"rsyslog did not finish in {TRIES} tries")


def _rsyslog(place: str, path: str, count: int, size: int) -> dict[str, Any]:
    port = _free_port()
    out = os.path.join(place, "received")
    watched = os.path.join(place, "rs.log")
    texts = {
        "receiver": RECEIVER.format(work=_folder(place, "rs-in"), port=port, out=out),
        "sender": SENDER.format(work=_folder(place, "rs-out"), port=port, path=watched),
    }
    with _rsyslogd(place, "receiver", texts["receiver"]) as receiver:
        _wait(lambda: _accepts(port), "the receiver")
        with _rsyslogd(place, "sender", texts["sender"]) as sender:
            time.sleep(1.0)
            cpu = _cpu(sender), _cpu(receiver)
            shutil.copyfile(path, watched + ".new")
            began = time.perf_counter()
            os.rename(watched + ".new", watched)
            _arrive(lambda: os.path.getsize(out) if os.path.exists(out) else 0, size, "rsyslog")
            seconds = time.perf_counter() - began
            million = count / 1e6
            measured = {
                "lines_per_s": count / seconds,
                "sender_cpu": (_cpu(sender) - cpu[0]) / million,
                "receiver_cpu": (_cpu(receiver) - cpu[1]) / million,
                "sender_rss_mb": _memory(sender, "VmRSS"),
                "sender_peak_mb": _memory(sender, "VmHWM"),
            }
    with open(out, "rb") as received, open(path, "rb") as sent:
        # Its queues' workers may change the order.
        measured["whole"] = sorted(received) == sorted(sent)
    return measured


def _ours(place: str, path: str, count: int) -> dict[str, Any]:
    state = _folder(place, "s")
    watched = _folder(place, "logs")
    with open(os.path.join(state, "cortex-agent.toml"), "w") as file:
        file.write(
            "[agent]\nallow_sources = []\n"
            f'[[sources]]\nkind = "file"\npath = "{watched}/*.log"\nname = "bench"\n'
        )
    environ = {**os.environ, "CORTEXTX_SERVER_QUOTA_ENTRIES_PER_SEC": "0"}
    server_options = ["--listen", "tcp:0:interface=127.0.0.1"]
    with _twistd(place, "cortex-server", state, environ, *server_options) as server:
        issued = _command(state, "agent", "issue", "--host", "bench", "--json")
        invitation = json.loads(issued)["invitation"]
        _command(state, "agent", "enroll", "--invitation-file", "-", given=invitation)
        with (
            _twistd(place, "cortex-agent", state, os.environ) as agent,
            server_client(state) as client,
        ):

            def host() -> dict[str, Any]:
                return client.call("agent.list")[0][0]

            _wait(lambda: host()["connected"], "the agent")
            # It says first what it refuses to read and which configuration it runs.
            time.sleep(1.0)
            first = int(host()["accepted_seq"])
            cpu = _cpu(agent), _cpu(server)
            idle = _memory(agent, "VmRSS")
            shutil.copyfile(path, os.path.join(place, "new"))
            began = time.perf_counter()
            os.rename(os.path.join(place, "new"), f"{watched}/bench.log")
            _arrive(lambda: int(host()["accepted_seq"]), first + count, "ours")
            seconds = time.perf_counter() - began
            million = count / 1e6
            measured = {
                "lines_per_s": count / seconds,
                "sender_cpu": (_cpu(agent) - cpu[0]) / million,
                "receiver_cpu": (_cpu(server) - cpu[1]) / million,
                "sender_idle_mb": idle,
            }
            _wait(lambda: _indexed(state), "the index")
            measured["searchable_per_s"] = count / (time.perf_counter() - began)
            measured["receiver_cpu_indexed"] = (_cpu(server) - cpu[1]) / million
            time.sleep(SETTLED_SECONDS)
            measured["sender_rss_mb"] = _memory(agent, "VmRSS")
            measured["sender_peak_mb"] = _memory(agent, "VmHWM")
            measured["whole"] = _stored(client) == count
    return measured


def _indexed(state: str) -> bool:
    """Whether the full-text index holds all that is stored (F38), by the catalogue."""
    where = f"file:{state}/server/store.db?mode=ro"
    connection = sqlite3.connect(where, uri=True, timeout=10.0)
    try:
        (behind,) = connection.execute("SELECT sum(last_id - indexed_to) FROM segments").fetchone()
    finally:
        connection.close()
    return not behind


def _stored(client: Any) -> int:
    """The number of stored entries that came from a file."""
    found = cursor = 0
    while True:
        rows, end = client.call("search.tail", after=cursor, limit=1000)
        found += sum(row["source"].startswith("file:") for row in rows)
        before, cursor = cursor, int(end.get("cursor") or 0)
        if cursor <= before:
            return found


@contextmanager
def _twistd(place: str, plugin: str, state: str, environ: Any, *options: str) -> Iterator[int]:
    with open(os.path.join(place, f"{plugin}.out"), "wb") as out:
        child = subprocess.Popen(
            [os.path.join(BIN, "twistd"), "-n", "--pidfile=", plugin, "--state-dir", state,
             *options],
            stdout=out, stderr=out, env=environ,
        )  # fmt: skip
    try:
        _wait(lambda: os.path.exists(f"{state}/run/{plugin}.address"), plugin)
        yield child.pid
    finally:
        _end(child)


@contextmanager
def _rsyslogd(place: str, name: str, text: str) -> Iterator[int]:
    config = os.path.join(place, f"{name}.conf")
    with open(config, "w") as file:
        file.write(text)
    program = shutil.which("rsyslogd", path=_search_path())
    assert program is not None
    with open(os.path.join(place, f"{name}.out"), "wb") as out:
        child = subprocess.Popen(
            [program, "-n", "-f", config, "-i", os.path.join(place, f"{name}.pid")],
            stdout=out, stderr=out,
        )  # fmt: skip
    try:
        yield child.pid
    finally:
        _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    child.send_signal(signal.SIGTERM)
    try:
        child.wait(30)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _command(state: str, *words: str, given: str = "") -> str:
    command = [os.path.join(BIN, "cortextx"), "--state-dir", state, *words]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=True)
    return done.stdout


def _wait(ready: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not ready():
        if time.monotonic() > end:
            raise SystemExit(f"waited {WAIT_SECONDS} s for {what}")
        time.sleep(POLL)


def _arrive(counted: Callable[[], int], wanted: int, what: str) -> None:
    """Wait until a count has grown that far; it must not stand still for long."""
    last, end = -1, 0.0
    while (now := counted()) < wanted:
        if now != last:
            last, end = now, time.monotonic() + WAIT_SECONDS
        if time.monotonic() > end:
            raise Stalled(f"{what}: still {now} of {wanted} after {WAIT_SECONDS} s")
        time.sleep(POLL)


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _folder(place: str, name: str) -> str:
    path = os.path.join(place, name)
    os.makedirs(path, mode=0o700)
    return path


def _search_path() -> str:
    return f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


def _cpu(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    with open(f"/proc/{pid}/stat") as file:
        parts = file.read().rpartition(")")[2].split()
    return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


def _memory(pid: int, name: str) -> float:
    """A process's memory in MB (of a million bytes)."""
    with open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def _medians(rows: list[dict[str, Any]]) -> dict[str, float]:
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


if __name__ == "__main__":
    raise SystemExit(main())
