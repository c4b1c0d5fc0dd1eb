"""The agent put together, with a buffer in memory, a scripted connection and a Clock."""

from __future__ import annotations

import errno
import json
import os
from types import SimpleNamespace
from typing import Any

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock
from twisted.logger import globalLogPublisher
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from cortextx.errors import ConfigError, StoreError, StoreFull
from cortextx.fleet.agent.buffer import Batch, Numbering
from cortextx.fleet.agent.buffer_lane import BufferStatus
from cortextx.fleet.agent.buffer_state import LOSSES_KEY, Loss
from cortextx.fleet.agent.changing import TRIAL_SECONDS
from cortextx.fleet.agent.identity import IdentityFiles
from cortextx.fleet.agent.policy import SourceGroup
from cortextx.fleet.agent.probes.registry import ProbeState
from cortextx.fleet.agent.probes.verdicts import ProbeRefused, ProbeResult
from cortextx.fleet.agent.service import AgentService
from cortextx.fleet.agent.settings import AgentSettings, AgentTable, SourceTable
from cortextx.fleet.agent.sources.identity import Checkpoint
from cortextx.fleet.agent.sources.report import SourceReport
from cortextx.fleet.contract import Code, MetricSample
from cortextx.interfaces.fleet import ILogSource
from tests.fleet.test_link import BODY, CONFIG, FRESH, TOKEN, message, refusal, welcome

CHECKPOINT = Checkpoint(
    home="/srv/a.log", path="/srv/a.log", dev=1, ino=2, offset=7, part=0, head_size=0,
    head_hash="", before_size=0, before_hash="", size=9, mtime_ns=0,
).encode()  # fmt: skip


class MemoryBuffer:
    """What the service uses of a BufferWriter, answering at once."""

    def __init__(self) -> None:
        self.status = BufferStatus(next_seq=1)
        self.on_durable: Any = None
        self.entries: list[bytes] = []
        self.acked = 0
        self.lost: list[Loss] = []
        self.kept: dict[str, bytes] = {}
        self.log: list[str] = []
        self.pressure = "ok"
        self.kept_apart: list[str] = []
        self.reading: Exception | None = None
        self.refusing: Exception | None = None

    def oldest(self) -> Deferred[bytes | None]:
        waiting = self.entries[self.acked :]
        return succeed(waiting[0] if waiting else None)

    def apart(self) -> Deferred[list[str]]:
        return succeed(self.kept_apart)

    @property
    def last(self) -> int:
        return len(self.entries)

    @property
    def depth(self) -> int:
        return self.last - self.acked

    @property
    def size(self) -> int:
        return sum(map(len, self.entries))

    def start(self) -> Deferred[Any]:
        self.log.append("start")
        return succeed(SimpleNamespace(notes=("a torn end was cut",)))

    def stop(self) -> Deferred[None]:
        self.log.append("stop")
        return succeed(None)

    def reopen(self) -> Deferred[None]:
        self.log.append("reopen")
        self.status = BufferStatus(next_seq=1)
        return succeed(None)

    def put(self, bodies: Any, checkpoints: Any, *, can_wait: bool = True) -> Deferred[int]:
        if self.refusing is not None:
            return fail(Failure(self.refusing))
        self.entries += bodies
        self.kept.update(checkpoints)
        if LOSSES_KEY in checkpoints:
            self.status, self.lost = BufferStatus(next_seq=1), []
        if bodies and self.on_durable is not None:
            self.on_durable(self.last)
        return succeed(self.last)

    def read(self, first: int, most: int, size: int) -> Deferred[Batch]:
        if self.reading is not None:
            return fail(Failure(self.reading))
        return succeed(Batch(first, self.entries[first - 1 : first - 1 + most]))

    def adopt(self, accepted: int) -> Deferred[Numbering]:
        self.acked = max(self.acked, accepted)
        return succeed(Numbering(self.acked, self.last, False))

    def truncate(self, acked: int) -> Deferred[None]:
        self.acked = acked
        return succeed(None)

    def checkpoints(self) -> Deferred[dict[str, bytes]]:
        return succeed(dict(self.kept))

    def losses(self) -> Deferred[list[Loss]]:
        return succeed(list(self.lost))


class Line:
    """A connection of the test's: what was sent, and what closed it."""

    def __init__(self, hears: Any) -> None:
        self.hears = hears
        self.sent: list[dict[str, Any]] = []
        self.closed: tuple[int, str] | None = None

    def send(self, payload: bytes) -> None:
        self.sent.append(json.loads(payload))

    def close(self, code: int, reason: str) -> None:
        self.closed = (code, reason)
        self.hears.lost("closed")

    def answer(self, payload: bytes) -> None:
        self.hears.message(payload, False)


class Lines:
    """Makes them."""

    def __init__(self) -> None:
        self.made: list[Line] = []

    def connect(self, hears: Any) -> Line:
        self.made.append(Line(hears))
        return self.made[-1]


def told(files: Any = None, why: Any = None, faults: Any = None) -> SourceReport:
    """What a file source would report."""
    details = {"files": files, "why": why or {}, "faults": faults or {}}
    return SourceReport("files", "file", details=details)


@implementer(ILogSource)
class Source:
    """A source that only notes what is done with it."""

    def __init__(self, group: SourceGroup, put: Any, checkpoints: dict[str, bytes]) -> None:
        self.name = group.name
        self.group = group
        self.put = put
        self.checkpoints = checkpoints
        self.state = "new"
        self.told = told()
        self.stopping: Deferred[None] | None = None

    def report(self) -> SourceReport:
        return self.told

    def start(self) -> None:
        self.state = "running"

    def pause(self) -> None:
        self.state = "paused"

    def resume(self) -> None:
        self.state = "running"

    def stop(self) -> Deferred[None]:
        self.state = "stopped"
        return self.stopping or succeed(None)


class Probes:
    """A registry that runs what the test answers."""

    def __init__(self) -> None:
        self.offered = ["host.info"]
        self.asked: list[tuple[str, Any, float, Deferred[Any]]] = []
        self.at_once = 0
        self.was_reset: list[str] = []
        self.cancelled: list[str] = []

    def supported(self) -> list[str]:
        return list(self.offered)

    def states(self) -> list[ProbeState]:
        return [ProbeState("host.info", "x", True), ProbeState("cpu.top", "y", False, "disabled")]

    def allow_at_once(self, number: int) -> None:
        self.at_once = number

    def reset(self, name: str) -> None:
        self.was_reset.append(name)

    def run(self, name: str, args: Any, timeout: float) -> Deferred[Any]:
        done: Deferred[Any] = Deferred(lambda _: self.cancelled.append(name))
        self.asked.append((name, args, timeout, done))
        return done

    def stop(self) -> Deferred[None]:
        return succeed(None)


class Threadless(Clock):
    """A Clock whose threads are no threads."""

    def getThreadPool(self) -> Any:
        return self

    def callFromThread(self, work: Any, *details: Any) -> None:
        work(*details)

    def callInThreadWithCallback(self, done: Any, work: Any, *details: Any) -> None:
        try:
            found = work(*details)
        except Exception:
            done(False, Failure())
        else:
            done(True, found)


class Agents(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Threadless()
        self.files = IdentityFiles(self.mktemp(), "/nonexistent")
        self.files.enrol("ws://127.0.0.1:1/ws/agent", TOKEN)
        self.buffer = MemoryBuffer()
        self.lines = Lines()
        self.sources: list[Source] = []
        self.probes = Probes()
        self.agent = self.make()
        self.successResultOf(Deferred.fromCoroutine(self.agent.start()))

    def make(self) -> AgentService:
        def source(*details: Any) -> Source:
            self.sources.append(Source(*details))
            return self.sources[-1]

        self.wall = 1_700_000_000.0
        return AgentService(
            self.clock,
            AgentSettings(
                agent=AgentTable(allow_sources=("file:/var/log/**",)),
                sources=(SourceTable(kind="file", path="/srv/*.log"),),
            ),
            self.files,
            self.files.load(),
            self.buffer,  # type: ignore[arg-type]
            self.lines,
            source,
            version="0.1.0",
            random=lambda: 0.5,
            wall=lambda: self.wall,
            probes=self.probes,  # type: ignore[arg-type]
            sampler=lambda: [MetricSample(name="load1", value=0.5)],
        )

    @property
    def line(self) -> Line:
        return self.lines.made[-1]

    def status(self) -> dict[str, Any]:
        return self.successResultOf(Deferred.fromCoroutine(self.agent.status()))

    def welcome(self, **more: Any) -> None:
        self.line.hears.opened()
        hello = self.line.sent[-1]
        config = {**CONFIG, "log_sources": [{"kind": "file", "path": "/var/log/**/*.log"}]}
        self.line.answer(welcome(hello["id"], **{"config": config, **more}))

    def test_from_source_to_ack(self) -> None:
        """What a source puts is pushed, acknowledged and dropped (§7)."""
        self.welcome()
        self.sources[-1].put([BODY, BODY], {})
        self.clock.advance(0.2)
        push = self.line.sent[-1]
        self.assertEqual([entry["seq"] for entry in push["params"]["entries"]], [1, 2])
        self.line.answer(message(id=push["id"], result={"up_to_seq": 2}))
        self.assertEqual(self.buffer.acked, 2)
        found = self.status()
        self.assertEqual((found["state"], found["acked_seq"]), ("active", 2))
        self.assertEqual((found["backlog_entries"], found["last_error"]), (0, None))

    def test_local_sources_run_before_the_server_says_more(self) -> None:
        """Local sources start at once; the server's join and are remembered (F18)."""
        self.assertEqual([source.group.paths for source in self.sources], [("/srv/*.log",)])
        self.buffer.kept["file:x"] = b"1"
        self.welcome()
        both = ("/srv/*.log", "/var/log/**/*.log")
        self.assertEqual([s.state for s in self.sources], ["stopped", "running"])
        self.assertEqual(self.sources[1].group.paths, both)
        self.assertEqual(self.sources[1].checkpoints["file:x"], b"1")
        again = self.make()
        self.successResultOf(Deferred.fromCoroutine(again.start()))
        self.assertEqual(self.sources[-1].group.paths, both)

    def test_the_status_tells_what_is_not_read(self) -> None:
        """A status has each source's number of files, or why there are none, and the files
        that cannot be read, first, with the reason."""
        [row] = self.status()["sources"]
        self.assertEqual((row["files"], row["why"]), (None, None))
        self.sources[0].told = told({"/srv/*.log": 0}, {"/srv/*.log": "no file matches"}, {})
        [row] = self.status()["sources"]
        self.assertEqual((row["files"], row["why"]), (0, "no file matches"))
        self.buffer.kept["file:x"] = CHECKPOINT
        self.sources[0].told = told({"/srv/*.log": 2}, {}, {"/srv/b.log": "denied"})
        found = self.status()
        self.assertEqual((found["sources"][0]["files"], found["sources"][0]["why"]), (2, None))
        files = [(row["path"], row["offset"], row["why"]) for row in found["files"]]
        self.assertEqual(files, [("/srv/b.log", None, "denied"), ("/srv/a.log", 7, None)])

    def test_the_last_error_ends_with_the_trouble(self) -> None:
        """`last_error` is gone once the link is active again; waits are told in tenths of a
        second, and the buffer's bytes by their name."""
        self.welcome()
        self.buffer.reading = StoreError("EIO")
        self.sources[-1].put([BODY], {})
        self.clock.advance(0.2)
        self.clock.advance(1.23456)
        found = self.status()
        self.assertIn("EIO", found["last_error"])
        self.assertEqual(found["next_attempt_in"], 28.8)
        self.assertEqual(found["buffer_bytes"], self.buffer.size)
        self.buffer.reading = None
        self.clock.advance(30)
        self.welcome()
        found = self.status()
        self.assertEqual((found["state"], found["last_error"]), ("active", None))

    def test_a_source_stops_before_it_starts_anew(self) -> None:
        """Two sources never read the same files at the same time."""
        stopping = self.sources[0].stopping = Deferred()
        self.welcome()
        self.assertEqual(len(self.sources), 1)
        stopping.callback(None)
        self.assertEqual(len(self.sources), 2)

    def test_refused_sources_are_reported(self) -> None:
        """What the policy refuses travels as one custom:cortextx entry, once (F18)."""
        config = {**CONFIG, "log_sources": [{"kind": "file", "path": "/etc/shadow"}]}
        self.welcome(config=config)
        [entry] = [json.loads(b"{" + body) for body in self.buffer.entries]
        self.assertEqual(entry["source"], "custom:cortextx")
        self.assertIn("/etc/shadow", entry["message"])
        self.assertEqual([left["name"] for left in self.status()["sources_left_out"]],
                         ["/etc/shadow"])  # fmt: skip
        self.line.hears.lost("reset")
        self.clock.advance(1)
        self.welcome(config=config)
        self.assertEqual(len(self.buffer.entries), 1)

    def test_losses_are_reported_once(self) -> None:
        """What the buffer lost is told with its seqs, in one with the mark that it was (F37)."""
        self.buffer.lost = [Loss(3, 10, 19, 10, "evicted")]
        self.buffer.status = BufferStatus(next_seq=1, losses=1)
        self.clock.advance(1)
        [entry] = [json.loads(b"{" + body) for body in self.buffer.entries]
        self.assertEqual(entry["metadata"]["cortextx"]["lost"]["first"], 10)
        self.assertEqual(self.buffer.kept[LOSSES_KEY], b"3")
        self.clock.advance(5)
        self.assertEqual(len(self.buffer.entries), 1)

    def test_pressure_rests_the_sources(self) -> None:
        """Above the soft bound the sources rest until there is room (F19)."""
        self.buffer.pressure = "soft"
        self.clock.advance(1)
        self.assertEqual(self.sources[0].state, "paused")
        self.assertEqual(self.status()["sources_paused_by"], ["buffer"])
        self.buffer.pressure = "ok"
        self.clock.advance(1)
        self.assertEqual(self.sources[0].state, "running")

    def test_a_fatal_refusal_rests_them_too(self) -> None:
        """In the waiting room sources rest, whatever the buffer says, until a retry works (F34)."""
        self.line.hears.opened()
        self.line.answer(refusal(self.line.sent[0]["id"], -32001))
        self.assertEqual(self.sources[0].state, "paused")
        self.clock.advance(5)
        self.assertEqual(self.sources[0].state, "paused")
        self.assertEqual(self.status()["auth"], "refused")
        self.files.store_token(FRESH)
        self.agent.retry()
        self.welcome()
        self.assertEqual(self.line.sent[0]["params"]["token"], FRESH)
        self.assertEqual(self.sources[-1].state, "running")

    def test_another_enrolment_needs_a_restart(self) -> None:
        """A retry takes a new token, but is refused for a new host id or server (F34)."""
        self.files.enrol("ws://127.0.0.1:2/ws/agent", FRESH)
        error = self.assertRaises(ConfigError, self.agent.retry)
        self.assertIn("restart", str(error))

    def test_a_rotated_token_is_on_disk_before_anything_else(self) -> None:
        """The token file holds the fresh token when the link goes active (§3.5)."""
        self.welcome(token=FRESH)
        self.assertEqual(self.files.load_token(), FRESH)
        self.assertEqual(self.status()["state"], "active")

    def test_a_token_that_cannot_be_written(self) -> None:
        """Nothing is sent until the token is stored, and that is tried again."""
        directory = self.files.directory
        os.rename(directory, directory + ".away")
        self.welcome(token=FRESH)
        self.assertEqual(self.status()["state"], "storing")
        os.rename(directory + ".away", directory)
        self.clock.advance(5)
        self.assertEqual(self.status()["state"], "active")

    def test_a_stop_waits_for_the_token(self) -> None:
        """A token that could not be stored is stored by the stop, if the disk takes it then."""
        directory = self.files.directory
        os.rename(directory, directory + ".away")
        self.welcome(token=FRESH)
        os.rename(directory + ".away", directory)
        self.successResultOf(Deferred.fromCoroutine(self.agent.stop()))
        self.assertEqual(self.files.load_token(), FRESH)

    def test_a_one_time_token_is_not_spent_without_room(self) -> None:
        """No hello goes out with a token that may be a one-time one while what the server
        answers could not be stored; one that was given by a rotation is not held back."""
        for rotated in (False, True):
            self.files.enrol("ws://127.0.0.1:1/ws/agent", TOKEN)
            if rotated:
                self.files.store_token(FRESH, TOKEN)
            os.unlink(self.files.path("token.spare"))
            self.files.reserve = self.no_room  # type: ignore[method-assign]
            made = len(self.lines.made)
            agent = self.make()
            self.successResultOf(Deferred.fromCoroutine(agent.start()))
            self.assertEqual(len(self.lines.made), made + rotated)
            found = self.successResultOf(Deferred.fromCoroutine(agent.status()))
            self.assertEqual("no room" in (found["last_error"] or ""), not rotated)
            del self.files.reserve
            self.clock.advance(1)
            self.assertEqual(len(self.lines.made), made + 1)

    def no_room(self) -> None:
        raise OSError(errno.ENOSPC, "no space")

    def test_a_restored_server_gets_the_token_before(self) -> None:
        """The two tokens change places on the disk and the link is active by itself (A56)."""
        self.welcome(token=FRESH)
        self.line.hears.lost("reset")
        self.clock.advance(1)
        self.line.hears.opened()
        self.line.answer(refusal(self.line.sent[-1]["id"], -32001))
        self.clock.advance(2)
        self.assertEqual(self.line.sent, [])
        self.welcome()
        self.assertEqual(self.line.sent[0]["params"]["token"], TOKEN)
        self.assertEqual(self.status()["state"], "active")
        self.assertEqual((self.files.load_token(), self.files.load_previous()), (TOKEN, FRESH))

    def test_a_full_disk_is_told_once_a_minute_and_in_the_status(self) -> None:
        """While puts find no room the status says so, and the log a line, without a
        traceback; both end with it."""
        self.welcome()
        self.buffer.status = BufferStatus(next_seq=1, full="no space", losses=1)
        self.buffer.refusing = StoreFull("no space")
        said: list[Any] = []
        globalLogPublisher.addObserver(said.append)
        self.addCleanup(globalLogPublisher.removeObserver, said.append)
        for _ in range(70):
            self.clock.advance(1)
        told = [event for event in said if event.get("why") == "no space"]
        self.assertEqual(len(told), 2)
        self.assertEqual(self.flushLoggedErrors(), [])
        found = self.status()
        self.assertEqual((found["buffer_pressure"], found["buffer_fault"]), ("hard", "no space"))
        self.buffer.refusing = None
        self.buffer.status = BufferStatus(next_seq=1)
        found = self.status()
        self.assertEqual((found["buffer_pressure"], found["buffer_fault"]), ("ok", None))

    def test_heartbeats_tell_the_buffer(self) -> None:
        """A heartbeat carries wall time, depth and bytes (§4.2)."""
        self.welcome()
        self.clock.advance(15)
        beat = self.line.sent[-1]
        self.assertEqual(beat["method"], "agent.heartbeat")
        self.assertNotIn("id", beat)
        self.assertEqual(beat["params"]["ts"], "2023-11-14T22:13:20Z")
        self.assertEqual(beat["params"]["queue_depth"], 0)

    def test_an_unreadable_buffer_reconnects(self) -> None:
        """A read that fails closes the connection and is said."""
        self.welcome()
        self.buffer.reading = StoreError("EIO")
        self.sources[-1].put([BODY], {})
        self.clock.advance(0.2)
        self.assertEqual(self.status()["state"], "reconnecting")
        self.assertIn("EIO", self.status()["last_error"])

    def test_a_broken_buffer_is_opened_anew(self) -> None:
        """After a failed sync the buffer is reopened, not given up."""
        self.buffer.status = BufferStatus(broken="EIO")
        self.clock.advance(1)
        self.assertIn("reopen", self.buffer.log)

    def test_stopping_goes_with_the_data(self) -> None:
        """Sources, then the link's last answers, then the buffer; final_seq says how far (F42)."""
        self.welcome()
        self.sources[-1].put([BODY], {})
        stopped = Deferred.fromCoroutine(self.agent.stop())
        self.assertEqual(self.sources[-1].state, "stopped")
        self.assertNoResult(stopped)
        push = self.line.sent[-1]
        self.line.answer(message(id=push["id"], result={"up_to_seq": 1}))
        self.successResultOf(stopped)
        self.assertEqual(self.line.closed, (1000, "final_seq=1"))
        self.assertEqual(self.buffer.log[-1], "stop")
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_stopping_does_not_wait_for_ever(self) -> None:
        """A server that never answers holds nobody up."""
        self.welcome()
        self.sources[-1].put([BODY], {})
        stopped = Deferred.fromCoroutine(self.agent.stop())
        self.clock.advance(2)
        self.successResultOf(stopped)
        self.assertEqual(self.line.closed, (1000, "final_seq=0"))

    def test_no_token_in_the_status(self) -> None:
        """The status holds no secret (F23)."""
        self.welcome(token=FRESH)
        self.assertNotIn(FRESH, repr(self.status()))

    def own(self) -> list[dict[str, Any]]:
        """The entries of the agent's own source."""
        found = [json.loads(b"{" + body) for body in self.buffer.entries]
        return [entry for entry in found if entry["source"] == "custom:cortextx"]

    def update(self, **changed: Any) -> None:
        """A config.update of now."""
        config = {**CONFIG, "log_sources": [{"kind": "file", "path": "/var/log/**/*.log"}]}
        params = {"config": {**config, **changed}}
        self.line.answer(message(method="config.update", params=params))

    def test_a58_a_configuration_whose_source_fails_is_rolled_back(self) -> None:
        """The sources and the link follow the last good one again, a start keeps to it, and
        the server is told which failed and why."""
        self.welcome()
        good = self.sources[-1].group.paths
        self.update(log_sources=[{"kind": "file", "path": "/var/log/x"}], heartbeat_interval_secs=5)
        self.assertEqual(self.status()["config"]["state"], "trying")
        self.assertIn("/var/log/x", self.sources[-1].group.paths)
        self.sources[-1].told = SourceReport("files", "file", "failed", "it broke")
        self.clock.advance(1)
        self.assertEqual(self.sources[-1].group.paths, good)
        config = self.status()["config"]
        self.assertEqual(
            (config["state"], config["reason"]), ("rolled_back", "file files: it broke")
        )
        self.assertIn("configuration was taken back", " ".join(self.status()["health_why"]))
        [entry] = self.own()
        told = entry["metadata"]["cortextx"]["config"]
        self.assertEqual((told["failed"], told["desired"]), (config["failed"],) * 2)
        self.assertEqual(told["effective"], config["effective"])
        again = self.make()
        self.successResultOf(Deferred.fromCoroutine(again.start()))
        self.assertEqual(self.sources[-1].group.paths, good)

    def test_a58_a_configuration_that_does_well_is_kept(self) -> None:
        """A start without the server begins with it, and the server is told."""
        self.welcome()
        self.update(log_sources=[])
        for _ in range(int(TRIAL_SECONDS) + 2):
            self.clock.advance(1)
            self.line.hears.pinged()
        self.assertEqual(self.status()["config"]["state"], "applied")
        self.assertEqual(
            [e["metadata"]["cortextx"]["config"]["state"] for e in self.own()], ["applied"]
        )
        again = self.make()
        self.successResultOf(Deferred.fromCoroutine(again.start()))
        self.assertEqual(self.sources[-1].group.paths, ("/srv/*.log",))

    def test_a59_an_update_out_of_range_is_told_and_changes_nothing(self) -> None:
        """The reason reaches the server; sources, numbers and link stay."""
        self.welcome()
        made = len(self.sources)
        self.update(flush_interval_ms=1)
        [entry] = self.own()
        self.assertIn("flush_interval_ms", entry["metadata"]["cortextx"]["config"]["reason"])
        self.assertEqual((len(self.sources), self.status()["state"]), (made, "active"))

    def test_a_probe_from_request_to_answer(self) -> None:
        """It runs with its arguments and time-out; its result, or its refusal, is the answer
        (§4.6, F44), and probe_concurrency is the server's (F27)."""
        self.welcome()
        self.assertEqual(self.probes.at_once, CONFIG["probe_concurrency"])
        params = {"probe": "host.info", "args": {"a": 1}, "timeout_ms": 500}
        for id in ("one", 2):
            self.line.answer(message(id=id, method="probe.request", params=params))
        (name, args, timeout, first), (*_, second) = self.probes.asked
        self.assertEqual((name, args, timeout), ("host.info", {"a": 1}, 0.5))
        second.callback(ProbeResult(b'{"x":[1]}', 3))
        answer = self.line.sent[-1]
        self.assertEqual((answer["id"], answer["result"]["output"]), (2, {"x": [1]}))
        first.errback(ProbeRefused(Code.INVALID_PARAMS, "no", {"field": "$.args.a"}))
        answer = self.line.sent[-1]
        self.assertEqual((answer["id"], answer["error"]["code"]), ("one", -32602))
        self.assertEqual(answer["error"]["data"]["field"], "$.args.a")

    def test_f27_a_probe_ends_with_its_connection(self) -> None:
        """Its process is ended, nothing is answered, and nothing is run again."""
        self.welcome()
        params = {"probe": "host.info", "args": {}, "timeout_ms": 5000}
        self.line.answer(message(id=1, method="probe.request", params=params))
        self.line.hears.lost("reset")
        self.assertEqual(self.probes.cancelled, ["host.info"])
        self.clock.advance(1)
        self.welcome()
        self.assertEqual(len(self.probes.asked), 1)

    def test_the_hello_tells_what_can_be_done_now(self) -> None:
        """A probe that was disabled meanwhile is not offered any more (§8, A61)."""
        self.line.hears.opened()
        can = self.line.sent[0]["params"]["capabilities"]
        self.assertEqual(can["supported_probes"], ["host.info"])
        self.assertEqual(can["sources"], ["custom", "docker", "file", "journald"])
        self.probes.offered = []
        self.line.hears.lost("reset")
        self.clock.advance(1)
        self.line.hears.opened()
        self.assertEqual(self.line.sent[0]["params"]["capabilities"]["supported_probes"], [])
        self.agent.reset_probe("cpu.top")
        self.assertEqual(self.probes.was_reset, ["cpu.top"])

    def test_samples_are_pushed(self) -> None:
        """The host's and the agent's own, evictions among them (F19, F24)."""
        self.welcome(config={**CONFIG, "metrics_interval_secs": 20, "log_sources": []})
        self.buffer.status = BufferStatus(next_seq=1, evicted=7)
        self.clock.advance(10)
        [push] = [frame for frame in self.line.sent if frame["method"] == "metrics.push"]
        values = {one["name"]: one["value"] for one in push["params"]["samples"]}
        self.assertEqual((values["load1"], values["buffer_evicted_entries"]), (0.5, 7))
        self.line.answer(message(id=push["id"], result={"accepted": 5, "dropped": 1}))
        found = self.status()
        self.assertEqual((found["samples_accepted"], found["samples_dropped"]), (5, 1))

    def test_a37_health_is_red_until_acknowledged(self) -> None:
        """Damaged parts keep it red, a broken link yellow; else it is green."""
        found = self.status()
        self.assertEqual((found["health"], len(found["health_why"])), ("yellow", 1))
        self.welcome()
        found = self.status()
        self.assertEqual((found["health"], found["health_why"]), ("green", []))
        self.sources[-1].told = SourceReport("files", "file", "failed", "it broke")
        found = self.status()
        self.assertEqual(found["health"], "yellow")
        self.assertEqual(found["health_why"], ["source file files has failed: it broke"])
        self.buffer.kept_apart = ["quarantine-1"]
        found = self.status()
        self.assertEqual((found["health"], found["unacknowledged"]), ("red", ["quarantine-1"]))

    def test_a43_the_status_tells_the_backlog(self) -> None:
        """How much waits, and since when."""
        self.sources[0].put([BODY, BODY], {})
        found = self.status()
        self.assertEqual((found["backlog_entries"], found["connected"]), (2, False))
        self.assertEqual(found["oldest_unsent"], "2026-05-16T19:42:50.123Z")

    def test_a44_order_and_age_refuse_nothing(self) -> None:
        """Entries go out as they were put, whatever their times are."""
        self.welcome()
        times = ("2026-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "2099-01-01T00:00:00Z")
        bodies = [BODY.replace(b"2026-05-16T19:42:50.123Z", at.encode()) for at in times]
        self.sources[-1].put(bodies, {})
        self.clock.advance(0.2)
        entries = self.line.sent[-1]["params"]["entries"]
        self.assertEqual([(one["seq"], one["ts"]) for one in entries], list(enumerate(times, 1)))

    def test_a46_a_clock_that_jumps(self) -> None:
        """Neither numbers nor heartbeats care for the wall clock; a beat tells what it is."""
        self.welcome()
        for wall in (0.0, 4_000_000_000.0):
            self.wall = wall
            before = len(self.line.sent)
            for _ in range(30):
                self.clock.advance(1)
                self.line.hears.pinged()
            beats = [f for f in self.line.sent[before:] if f["method"] == "agent.heartbeat"]
            self.assertIn(len(beats), (1, 2))
        self.assertEqual(self.status()["state"], "active")

    def test_a55_a_clone_is_noticed(self) -> None:
        """Who keeps losing its place to another agent with its identity says so."""
        for number in range(3):
            self.assertFalse(self.status()["probable_clone"], number)
            self.welcome()
            self.line.hears.lost("the server closed the connection (1000 superseded)")
            self.clock.advance(1)
        self.assertTrue(self.status()["probable_clone"])
        self.clock.advance(700)
        self.assertFalse(self.status()["probable_clone"])
