"""The probes of one session: slots, time-outs, ids, late answers (§4.6, §4.7, F27, F44)."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from twisted.trial.unittest import SynchronousTestCase

from cortextx.fleet import jsonrpc
from cortextx.fleet.contract import DEFAULT_AGENT_CONFIG, Code
from cortextx.fleet.server.actions import ProbeDone, SetDeadline, Warn
from cortextx.fleet.server.probes import (
    BUSY,
    CLOSING,
    GRACE,
    LOST,
    MAX_QUEUED,
    ProbeAnswer,
    ProbeCall,
    ProbeFailure,
    ProbeQueue,
    Todo,
)
from cortextx.fleet.server.tokens import Accepted
from tests.fleet.session_case import HOST, SESSION, WALL, SessionCase, hello, plain, text

CALL = ProbeCall("fs.disk_usage", b'{"path":"/"}', 5000)
OUTPUT = {"output": {"free": 1}, "exit_code": 0, "stderr": None, "duration_ms": 142}


def response(id: Any, result: Any = None, error: Any = None) -> jsonrpc.Response:
    body = {"error": error} if error is not None else {"result": result or OUTPUT}
    message = jsonrpc.parse(text({"jsonrpc": "2.0", "id": id} | body))
    assert isinstance(message, jsonrpc.Response)
    return message


def requests(todo: Todo | None) -> list[Any]:
    assert todo is not None
    return [json.loads(message) for message in todo[0]]


class QueueTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.queue = ProbeQueue(2)

    def ask(self, key: int, now: float = 0.0, call: ProbeCall = CALL) -> list[Any]:
        todo = self.queue.asked(key, call, now)
        self.assertEqual(todo[1], [])
        return requests(todo)

    def answer(self, id: Any, now: float = 0.0, **body: Any) -> Todo:
        todo = self.queue.answered(response(id, **body), now)
        assert todo is not None
        return todo

    def failure(self, id: Any, error: Any) -> ProbeFailure:
        [(_, outcome)] = self.answer(id, error=error)[1]
        assert isinstance(outcome, ProbeFailure)
        return outcome

    def test_a_probe_is_asked_as_the_contract_says(self) -> None:
        """The request has an id, the arguments as they were given, and the time-out (§4.6)."""
        [request] = self.ask(7)
        self.assertEqual(
            request,
            {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "probe.request",
                "params": {"probe": "fs.disk_usage", "args": {"path": "/"}, "timeout_ms": 5000},
            },
        )

    def test_an_answer_is_its_calls_by_its_id(self) -> None:
        """Answers may come out of order; the id alone tells whose they are (§7)."""
        self.ask(7)
        self.ask(8)
        self.assertEqual([key for key, _ in self.answer(2)[1]], [8])
        [(key, outcome)] = self.answer(1)[1]
        self.assertEqual((key, outcome), (7, ProbeAnswer(b'{"free": 1}', 142, 0, None)))
        self.assertEqual(self.queue.out, 0)

    def test_the_agents_errors_are_told(self) -> None:
        """An error's code and data are kept, its words are ours (§5)."""
        self.ask(1)
        self.assertEqual(
            self.failure(1, {"code": -32011, "message": "x\n", "data": {"exit_code": 3}}),
            ProbeFailure(-32011, "ProbeExecutionFailed", b'{"exit_code": 3}', by_agent=True),
        )
        self.ask(1)
        failure = self.failure(2, {"code": 5, "message": "evil"})
        self.assertEqual((failure.code, failure.reason, failure.data), (5, "error 5", None))

    def test_a_code_that_no_record_can_hold_is_named(self) -> None:
        """The failure is the server's own, and says what was wrong (F31)."""
        for number, code in enumerate((2**63, -(2**63) - 1, 10**30), 1):
            self.ask(1)
            failure = self.failure(number, {"code": code, "message": "x"})
            self.assertEqual((failure.code, failure.by_agent), (Code.INTERNAL_ERROR, False))
            self.assertIn(b"$.error.code", failure.data or b"")

    def test_an_answer_that_is_no_probe_output_is_a_failure(self) -> None:
        """What the schema does not allow is told as such and never kept (§4.4)."""
        for wrong in (
            {"output": 1},
            {"duration_ms": 1},
            OUTPUT | {"extra": 1},
            OUTPUT | {"duration_ms": -1},
            OUTPUT | {"exit_code": "0"},
            OUTPUT | {"exit_code": 2**63},
            OUTPUT | {"exit_code": -(2**63) - 1},
            OUTPUT | {"duration_ms": 2**64},
            [1],
            "text",
        ):
            [request] = self.ask(1)
            [(_, outcome)] = self.answer(request["id"], result=wrong)[1]
            assert isinstance(outcome, ProbeFailure)
            self.assertEqual(outcome.code, Code.INTERNAL_ERROR, wrong)

    def test_any_output_is_kept_as_it_came(self) -> None:
        """`output` may be any JSON: numbers keep their digits, NUL becomes U+FFFD (F16)."""
        for output, kept in (
            (b"null", b"null"),
            (b"123456789012345678901234567890", b"123456789012345678901234567890"),
            (b'"a\\u0000b"', b'"a\\ufffdb"'),
        ):
            [request] = self.ask(1)
            raw = b'{"jsonrpc":"2.0","id":%d,"result":{"output":%s,"duration_ms":1}}'
            message = jsonrpc.parse(raw % (request["id"], output))
            assert isinstance(message, jsonrpc.Response)
            todo = self.queue.answered(message, 0.0)
            assert todo is not None
            self.assertEqual(todo[1], [(1, ProbeAnswer(kept, 1))])

    def test_beyond_the_concurrency_a_probe_waits(self) -> None:
        """No more requests are out than probe_concurrency says; the next goes out when one
        is answered, with what is left of its time (F44)."""
        self.ask(1)
        self.ask(2)
        self.assertEqual(self.ask(3), [])
        self.assertEqual(self.queue.queued, 1)
        [request] = requests(self.answer(1, now=1.5))
        self.assertEqual((request["id"], request["params"]["timeout_ms"]), (3, 3500))

    def test_waiting_takes_of_the_time_out(self) -> None:
        """A probe that waited its whole time-out for a slot is never sent (F44)."""
        self.ask(1)
        self.ask(2)
        self.ask(3, now=0.5, call=ProbeCall("p", b"{}", 1000))
        self.assertEqual(self.queue.deadline, 1.5)
        self.assertEqual(self.queue.time_passed(1.4), ([], []))
        [(key, outcome)] = self.queue.time_passed(1.5)[1]
        assert isinstance(outcome, ProbeFailure)
        self.assertEqual((key, outcome.code), (3, Code.PROBE_TIMEOUT))
        self.assertEqual(json.loads(outcome.data or b""), {"probe": "p", "timeout_ms": 1000})
        self.assertEqual(requests(self.answer(1, now=1.5)), [])

    def test_an_agent_that_does_not_answer_is_given_up(self) -> None:
        """After the time-out and a grace the call is over, and its slot is free again."""
        for key in (1, 2, 3):
            self.ask(key, call=ProbeCall("p", b"{}", 1000 * key if key < 3 else 9000))
        self.assertEqual(self.queue.deadline, 1 + GRACE)
        messages, done = self.queue.time_passed(1 + GRACE)
        self.assertEqual([key for key, _ in done], [1])
        self.assertEqual(len(messages), 1)
        self.assertEqual(self.queue.out, 2)

    def test_a_late_answer_is_dropped(self) -> None:
        """It reaches nobody, neither its own call nor a later one (§4.7)."""
        self.ask(1)
        self.queue.time_passed(60.0)
        self.ask(2, now=60.0)
        self.assertEqual(self.answer(1), ([], []))
        self.assertEqual((self.queue.late, self.queue.out), (1, 1))
        self.assertEqual(self.answer(2, now=61.0)[1][0][0], 2)
        self.assertEqual(self.answer(2), ([], []))

    def test_ids_that_were_never_sent(self) -> None:
        """An answer to nothing is told apart from a late one."""
        self.ask(1)
        for id in (0, 2, 0.5, -1, "1", 10**30, None):
            message = response(id, error={"code": -1, "message": ""})
            self.assertIsNone(self.queue.answered(message, 0.0), id)
        self.ask(2)
        self.assertEqual(self.answer(1.5), ([], []))
        self.assertEqual(self.answer(1.0)[1][0][0], 1)

    def test_the_queue_is_bounded(self) -> None:
        """Who asks for too much is told so at once."""
        for key in range(MAX_QUEUED + 2):
            self.ask(key)
        self.assertEqual(self.queue.asked(99, CALL, 0.0), ([], [(99, BUSY)]))

    def test_a_raised_concurrency_uses_the_new_slots(self) -> None:
        """config.update's probe_concurrency holds at once, up and down (§4.8)."""
        for key in range(5):
            self.ask(key)
        self.assertEqual(len(requests(self.queue.allowed(4, 0.0))), 2)
        self.assertEqual(requests(self.queue.allowed(1, 0.0)), [])
        for id in (1, 2, 3):
            self.assertEqual(requests(self.answer(id)), [])
        self.assertEqual(len(requests(self.answer(4))), 1)

    def test_with_the_connection_all_is_lost(self) -> None:
        """Nothing is asked again after a reconnect (F27)."""
        for key in (1, 2, 3):
            self.ask(key)
        self.assertEqual(self.queue.lost(), [(1, LOST), (2, LOST), (3, LOST)])
        self.assertEqual((self.queue.lost(), self.queue.deadline), ([], None))

    @settings(max_examples=60, deadline=None)
    @given(st.data())
    def test_each_call_is_over_once(self, data: st.DataObject) -> None:
        """Whatever comes in whatever order: every call is over exactly once, and no more
        are out than allowed."""
        queue, now, keys, ids, over = ProbeQueue(2), 0.0, 0, 0, []
        for _ in range(data.draw(st.integers(1, 40))):
            match data.draw(st.sampled_from(["ask", "answer", "time"])):
                case "ask":
                    keys += 1
                    limit = data.draw(st.integers(1, 4000))
                    todo: Todo | None = queue.asked(keys, ProbeCall("p", b"{}", limit), now)
                case "answer":
                    todo = queue.answered(response(data.draw(st.integers(0, ids + 1))), now)
                case _:
                    now += data.draw(st.floats(0, 3))
                    todo = queue.time_passed(now)
            for request in requests(todo or ([], [])):
                ids += 1
                self.assertEqual(request["id"], ids)
                self.assertGreaterEqual(request["params"]["timeout_ms"], 1)
            over += [key for key, _ in (todo or ([], []))[1]]
            self.assertLessEqual(queue.out, 2)
        over += [key for key, _ in queue.lost()]
        self.assertEqual(sorted(over), list(range(1, keys + 1)))


class SessionTests(SessionCase):
    """The queue within a session."""

    def ask(self, key: int, now: float = 100.0) -> list[Any]:
        return self.session.probe_asked(key, CALL, now)

    def test_the_deadline_is_the_probes(self) -> None:
        """A session's timer covers its probes beside its pings."""
        self.active()
        request, deadline = self.ask(1)
        self.assertEqual(plain([request])[0][0], "probe.request")
        self.assertEqual(deadline, SetDeadline(105.0 + GRACE))
        done, deadline = self.session.time_passed(105.0 + GRACE)
        assert isinstance(done, ProbeDone)
        self.assertEqual((done.key, deadline), (1, SetDeadline(120.0)))

    def test_an_answer_comes_back(self) -> None:
        """A response on the wire ends the call that has its id."""
        self.active()
        self.ask(1)
        done, _ = self.receive(text({"jsonrpc": "2.0", "id": 1, "result": OUTPUT}))
        self.assertEqual(done, ProbeDone(1, ProbeAnswer(b'{"free": 1}', 142, 0, None)))
        self.assertEqual(self.receive(text({"jsonrpc": "2.0", "id": 1, "result": OUTPUT})), [])

    def test_an_answer_to_nothing_is_logged(self) -> None:
        """It changes nothing, and nothing is answered to it."""
        self.active()
        [warning] = self.receive(text({"jsonrpc": "2.0", "id": 1, "result": OUTPUT}))
        self.assertIsInstance(warning, Warn)

    def test_only_an_active_session_is_asked(self) -> None:
        """Before the hello is accepted, while it drains, and when it is over: refused at once."""
        self.assertEqual(self.ask(1), [ProbeDone(1, CLOSING)])
        self.active()
        self.session.shut_down("ServerReload", 2, 100.0)
        self.assertEqual(self.ask(2), [ProbeDone(2, CLOSING)])
        self.session.peer_lost()
        self.assertEqual(self.ask(3), [ProbeDone(3, CLOSING)])

    def test_however_a_session_ends_its_probes_are_lost(self) -> None:
        """F27: nobody waits for what can no longer come."""
        for end in (
            lambda: self.session.peer_lost(),
            lambda: self.session.superseded(),
            lambda: self.session.revoked(),
            lambda: self.session.binary_received(),
            lambda: self.session.shut_down("Decommission", 0, 100.0),
        ):
            self.active()
            self.ask(4)
            done = [action for action in end() if isinstance(action, ProbeDone)]
            self.assertEqual(done, [ProbeDone(4, LOST)])

    def test_the_hosts_config_says_how_many(self) -> None:
        """probe_concurrency of the host's own config, and of its updates (§4.1, §4.8)."""
        one, two = (replace(DEFAULT_AGENT_CONFIG, probe_concurrency=n) for n in (1, 2))
        self.session = self.make()
        self.session.opened(99.0)
        self.receive(hello())
        answer = self.session.hello_judged(Accepted(HOST, 0, SESSION), 100.0, WALL, one)
        result = plain(answer[1:2])[0][1]
        self.assertEqual(result["config"]["probe_concurrency"], 1)
        self.ask(1)
        self.assertEqual(plain(self.ask(2)), [SetDeadline(105.0)])
        update, request, *_ = plain(self.session.configured(two, None, 100.0))
        self.assertEqual(update[0], "config.update")
        self.assertEqual(update[1]["config"]["probe_concurrency"], 2)
        self.assertEqual(request[0], "probe.request")
