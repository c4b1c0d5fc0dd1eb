"""A child process from start to end, on a reactor that the test plays."""

from __future__ import annotations

import os
import signal
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessDone, ProcessTerminated
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from cortextx.runtimes.launch import STATUS_FD
from cortextx.runtimes.processes import DRAIN_SECONDS, ChildProcess, Ended, Launch, may_run_as


class FakeSystem(Clock):
    """A reactor that spawns nothing, and the transport of what it was to spawn."""

    pid = 4711

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Any] = []
        self.fault: Exception | None = None

    def spawnProcess(self, protocol: Any, executable: str, args: Any, **more: Any) -> None:
        if self.fault is not None:
            raise self.fault
        self.args, self.env, self.fds = args, more["env"], more["childFDs"]
        self.protocol = protocol
        protocol.makeConnection(self)

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.asked.append((name, *arguments))


class ChildCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.system = FakeSystem()
        self.heard: list[tuple[str, bytes]] = []
        self.signals: list[tuple[int, int]] = []
        self.remains: Deferred[None] = Deferred()
        self.receipts: list[str] = []
        self.leads = True

    def output_came(self, data: bytes) -> None:
        self.heard.append(("output", data))

    def complaint_came(self, data: bytes) -> None:
        self.heard.append(("complaint", data))

    def end_remains(self, receipts: Any) -> Deferred[None]:
        self.receipts += receipts
        return self.remains

    def killpg(self, group: int, number: int) -> None:
        if not self.leads:
            raise ProcessLookupError
        self.signals.append((group, number))

    def child(self, **more: Any) -> ChildProcess:
        values: dict[str, Any] = {"command": ["a", "b"], "owner": os.geteuid(), "cwd": "/c"}
        launch = Launch(**(values | {"root": "/r", "receipt": "f00", "environment": {}} | more))
        return ChildProcess(self.system, launch, self, self.end_remains, self.killpg)

    def start(self) -> ChildProcess:
        child = self.child()
        child.start()
        return child

    def exit(self, child: ChildProcess, reason: Exception | None = None) -> None:
        child.processExited(Failure(reason or ProcessDone(0)))

    def close(self, child: ChildProcess, *descriptors: int) -> None:
        for descriptor in descriptors or (1, 2, STATUS_FD):
            child.childConnectionLost(descriptor)


class StartTests(ChildCase):
    def test_it_goes_through_the_launcher_with_three_descriptors_and_a_status(self) -> None:
        self.start()
        self.assertEqual(self.system.args[1:3], ["-I", "-S"])
        self.assertTrue(self.system.args[3].endswith("/runtimes/launch.py"))
        self.assertEqual(self.system.args[4:], ["-", "/c", "/r", "a", "b"])
        self.assertEqual(self.system.fds, {0: "w", 1: "r", 2: "r", 3: "r"})

    def test_its_environment_is_clean(self) -> None:
        child = self.child(environment={"A": "1", "LANG": "de", "CORTEXTX_RECEIPT": "forged"})
        child.start()
        self.assertEqual(set(self.system.env), {"PATH", "LANG", "A", "CORTEXTX_RECEIPT"})
        self.assertEqual(
            (self.system.env["LANG"], self.system.env["CORTEXTX_RECEIPT"]), ("de", "f00")
        )

    def test_s1_who_is_not_root_starts_nothing_for_others(self) -> None:
        self.patch(os, "geteuid", lambda: 1000)
        self.assertEqual([may_run_as(uid) for uid in (0, 1000, 1001)], [False, True, False])
        child = self.child(owner=1001)
        child.start()
        ended = self.successResultOf(child.ended)
        self.assertEqual(ended.refusal, "this slave cannot run as uid 1001")
        self.assertFalse(hasattr(self.system, "args") and isinstance(self.system.args, list))

    def test_s1_root_starts_as_the_owner(self) -> None:
        self.patch(os, "geteuid", lambda: 0)
        self.child(owner=1001).start()
        self.assertEqual(self.system.args[4], "1001")

    def test_a_system_that_refuses_is_told(self) -> None:
        self.system.fault = OSError(11, "no more processes")
        child = self.start()
        self.assertIn("no more processes", self.successResultOf(child.ended).refusal or "")
        child.write(b"x")
        child.end(1.0)
        child.close_input()


class EndTests(ChildCase):
    def test_it_has_ended_when_all_output_came_and_nothing_of_it_is_alive(self) -> None:
        child = self.start()
        self.exit(child)
        self.assertEqual(self.signals, [(4711, signal.SIGKILL)])
        self.assertEqual(self.receipts, ["f00"])
        child.childDataReceived(1, b"late")
        self.close(child)
        self.assertNoResult(child.ended)
        self.remains.callback(None)
        self.assertEqual(self.successResultOf(child.ended), Ended(code=0))
        self.assertEqual(self.heard, [("output", b"late")])
        self.assertEqual(self.system.getDelayedCalls(), [])

    def test_an_output_that_does_not_end_is_given_up(self) -> None:
        child = self.start()
        self.exit(child, ProcessTerminated(3))
        self.remains.callback(None)
        self.system.advance(DRAIN_SECONDS - 0.1)
        self.assertNoResult(child.ended)
        self.system.advance(0.1)
        self.assertEqual(self.successResultOf(child.ended), Ended(code=3))
        self.assertIn(("loseConnection",), self.system.asked)

    def test_output_that_is_held_back_is_waited_for(self) -> None:
        child = self.start()
        child.pause()
        self.exit(child)
        self.remains.callback(None)
        self.system.advance(100 * DRAIN_SECONDS)
        self.assertNoResult(child.ended)
        child.resume()
        self.close(child)
        self.successResultOf(child.ended)

    def test_words_on_the_status_descriptor_say_why_it_did_not_start(self) -> None:
        child = self.start()
        self.exit(child, ProcessTerminated(127))
        self.remains.callback(None)
        child.childDataReceived(STATUS_FD, b"cwd: gone")
        self.close(child)
        self.assertEqual(self.successResultOf(child.ended), Ended(refusal="cwd: gone"))

    def test_b23_it_is_asked_and_then_killed(self) -> None:
        child = self.start()
        child.end(0.7)
        child.end(0.7)
        self.assertEqual(self.signals, [(4711, signal.SIGTERM)])
        self.system.advance(0.7)
        self.assertEqual(self.signals[1:], [(4711, signal.SIGKILL)])

    def test_b23_a_grace_can_be_cut_short(self) -> None:
        child = self.start()
        child.end(5.0)
        child.end(0.0)
        self.assertEqual(self.signals[1:], [(4711, signal.SIGKILL)])

    def test_without_a_grace_it_is_killed(self) -> None:
        self.start().end(0.0)
        self.assertEqual(self.signals, [(4711, signal.SIGKILL)])

    def test_one_that_leads_no_group_yet_is_ended_itself(self) -> None:
        self.leads = False
        self.start().end(1.0)
        self.assertIn(("signalProcess", signal.SIGTERM), self.system.asked)

    def test_what_has_ended_is_signalled_no_more(self) -> None:
        child = self.start()
        child.end(0.7)
        self.exit(child, ProcessTerminated(signal=15))
        self.signals.clear()
        child.end(0.0)
        self.system.advance(5.0)
        self.assertEqual(self.signals, [])

    def test_its_input_fills_up_and_empties(self) -> None:
        child = self.start()
        [producer] = [asked[1] for asked in self.system.asked if asked[0] == "registerProducer"]
        producer.pauseProducing()
        self.assertTrue(child.input_is_full)
        producer.resumeProducing()
        self.assertFalse(child.input_is_full)
