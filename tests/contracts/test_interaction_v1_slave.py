"""interaction/v1 as the slave serves it; each class cites its section."""

from __future__ import annotations

from typing import Any

from msgspec import Raw
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core import exchange as x
from cortextx.interaction import v1
from tests.interaction.slave.hub import Hub, Master
from tests.interaction.slave.v1_client import V1Client, an_input, names

LS = x.RequestApproval("sh", Raw(b'{"cmd":"ls"}'))


class V1Case(SynchronousTestCase):
    def setUp(self) -> None:
        self.hub = Hub()
        self.box = self.hub.box

    def client(self, request: v1.Request | dict[str, Any], **more: Any) -> V1Client:
        return V1Client(self.hub, request, **more)

    @property
    def run_id(self) -> str:
        """The run that was begun last."""
        return self.box.started()[-1]

    def emit(self, *events: Any) -> None:
        self.hub.spread(self.box.emit(self.run_id, *events))

    def say(self, text: str, run: str | None = None) -> None:
        self.emit(x.Message("-", run or self.run_id, "assistant", text))

    def ask(self, command: x.Command = LS, now: float = 0.0) -> None:
        self.hub.spread(self.box.ask(self.run_id, command, now=now))

    def end(self, status: str = "completed", why: str | None = None) -> None:
        self.hub.spread(self.box.end(self.run_id, status, why))

    def command_id(self, client: V1Client) -> str:
        return [e for e in client.events() if isinstance(e, x.CommandIssued)][-1].command_id


class Requests(V1Case):
    """Requests."""

    def test_input_carries_its_stream_and_then_the_slave_closes(self) -> None:
        """One request, its events in order, and the end of the connection."""
        client = self.client(an_input("r1"))
        self.emit(x.Delta("-", self.run_id, "hel"))
        self.emit(x.ToolCall("-", self.run_id, "k", "ls", "requested"))
        self.say("hello")
        self.assertFalse(client.is_closed)
        self.end()
        run = self.run_id
        self.assertEqual(
            client.events(),
            [
                x.RunAccepted("r1", "default", run),
                x.RunStarted("r1", run, None),
                x.Delta("r1", run, "hel"),
                x.ToolCall("r1", run, "k", "ls", "requested"),
                x.Message("r1", run, "assistant", "hello"),
                x.RunDone("r1", run, "completed"),
            ],
        )
        self.assertTrue(client.is_closed)

    def test_the_own_words_are_not_said_again_I37(self) -> None:
        """An input's stream omits the user's message; a resume shows it."""
        client = self.client(an_input("r1", "hi"))
        self.end()
        self.assertEqual(names(client), ["accepted", "started", "done"])
        resumed = self.client(v1.Resume("r2", "default"))
        self.assertIn(x.Message("r2", self.run_id, "user", "hi"), resumed.events())

    def test_resume_replays_after_an_event_and_ends_at_rest_I26(self) -> None:
        """`after` is a session_seq; a session at rest has nothing to wait for."""
        self.client(an_input("r1"))
        self.say("one")
        self.end()
        for after, seqs in (
            (None, [1, 2, 3, 4, 5]),
            ("0", [1, 2, 3, 4, 5]),
            ("3", [4, 5]),
            ("5", []),
        ):
            resumed = self.client(v1.Resume("r2", "default", after))
            self.assertEqual(resumed.seqs(), seqs)
            self.assertTrue(resumed.is_closed)
            self.assertEqual({event.request_id for event in resumed.events()} or {"r2"}, {"r2"})

    def test_resume_follows_a_run_that_goes_on(self) -> None:
        """The stream goes from the log to what is live, and ends once nothing runs."""
        self.client(an_input("r1"))
        self.client(an_input("r2"))
        resumed = self.client(v1.Resume("r3", "default", "2"))
        self.say("one")
        self.end()
        self.assertFalse(resumed.is_closed)
        self.say("two")
        self.end()
        self.assertEqual(resumed.seqs(), [3, 4, 5, 6, 7, 8, 9, 10])
        self.assertTrue(resumed.is_closed)

    def test_resume_beyond_the_head_is_an_error_I9(self) -> None:
        """A cursor of another log is refused, as is what is no cursor."""
        for after, code in (
            ("1", "ERANGE"),
            ("x", "EINVAL"),
            ("-1", "EINVAL"),
            ("9" * 30, "EINVAL"),
        ):
            resumed = self.client(v1.Resume("r1", "default", after))
            self.assertEqual(names(resumed), [f"error {code}"], after)
            self.assertTrue(resumed.is_closed)

    def test_status(self) -> None:
        """Status is one event: idle, or active with what goes on."""
        client = self.client(v1.Status("r1", "default"))
        self.assertEqual(client.events(), [x.SessionStatus("r1", "default", "idle", None, 0)])
        self.assertTrue(client.is_closed)
        self.client(an_input("r2"))
        (status,) = self.client(v1.Status("r3", "default")).events()
        assert isinstance(status, x.SessionStatus)
        self.assertEqual((status.status, status.phase), ("active", "running"))

    def test_cancel_is_answered_by_the_runs_done_I8_I30(self) -> None:
        """The cancel's stream has the run's done, and so has the run's own."""
        client = self.client(an_input("r1"))
        cancel = self.client(v1.Cancel("c1", self.run_id))
        self.assertEqual(cancel.events(), [])
        self.end("cancelled")
        self.assertEqual(cancel.events(), [x.RunDone("c1", self.run_id, "cancelled")])
        self.assertEqual(client.events()[-1], x.RunDone("r1", self.run_id, "cancelled"))
        self.assertTrue(cancel.is_closed and client.is_closed)

    def test_cancel_of_a_run_that_is_over_replays_its_done_B22(self) -> None:
        """It is told how the run ended, and the run after it is not touched."""
        self.client(an_input("r1"))
        first = self.run_id
        self.end()
        self.client(an_input("r2"))
        cancel = self.client(v1.Cancel("c1", first))
        self.assertEqual(cancel.events(), [x.RunDone("c1", first, "completed")])
        self.assertTrue(cancel.is_closed)
        (status,) = self.client(v1.Status("r3", "default")).events()
        assert isinstance(status, x.SessionStatus)
        self.assertEqual(status.status, "active")

    def test_cancel_of_no_run(self) -> None:
        """ESRCH, and the end."""
        cancel = self.client(v1.Cancel("c1", "run-x"))
        self.assertEqual(names(cancel), ["error ESRCH"])
        self.assertTrue(cancel.is_closed)

    def test_command_result_is_taken_on_the_runs_own_connection(self) -> None:
        """The answer goes up where the command came down; elsewhere it is refused."""
        client = self.client(an_input("r1"))
        self.ask()
        command = self.command_id(client)
        other = self.client(v1.CommandResult("r1", "default", command, x.Accepted()))
        self.assertEqual(names(other), ["error EACCES"])
        self.assertTrue(other.is_closed)
        self.assertEqual(client.answer(command), [])
        resolved = [a for a in self.box.actions if type(a).__name__ == "Resolve"]
        self.assertEqual([a.result for a in resolved], [x.Accepted()])
        self.end()
        self.assertEqual(names(client), ["accepted", "started", "command", "done"])

    def test_a_result_must_match_request_session_and_command(self) -> None:
        """One that does not is an error that does not end the stream."""
        client = self.client(an_input("r1"))
        self.ask()
        command = self.command_id(client)
        client.answer(command, request_id="r2")
        client.answer(command, session="other")
        client.answer("cmd-x")
        client.say(b"{")
        client.say(v1.Status("r1", "default"))
        self.assertEqual(names(client)[3:], ["error EINVAL"] * 5)
        self.assertTrue(all(e.retryable for e in client.events() if isinstance(e, x.Failure)))
        client.answer(command)
        self.end()
        self.assertEqual(names(client)[-1], "done")

    def test_identifiers_of_256_bytes_are_served_I25(self) -> None:
        """The client sees its own words; v2 masters and files see a short name."""
        request_id, session = "ü" * 128, "s\t" * 128
        client = self.client(an_input(request_id, session=session))
        self.end()
        self.assertEqual(client.events()[0], x.RunAccepted(request_id, session, self.run_id))
        self.assertNotIn("üü".encode(), self.box.file)
        self.assertRegex(self.box.log[0].decode(), r'"request_id":"v1-[0-9a-f]{32}"')


class Events(V1Case):
    """Events."""

    def test_a_failed_run_ends_with_an_error_that_is_not_retryable(self) -> None:
        """The stream of an input ends with done, or with such an error."""
        client = self.client(an_input("r1"))
        self.end("error", "it broke")
        self.assertEqual(
            client.events()[-1],
            x.Failure("r1", run=self.run_id, code="EIO", message="it broke", retryable=False),
        )
        self.assertTrue(client.is_closed)

    def test_every_durable_line_has_its_seq_I26(self) -> None:
        """Deltas have none."""
        client = self.client(an_input("r1"))
        self.emit(x.Delta("-", self.run_id, "d"))
        self.end()
        self.assertEqual(client.seqs(), [1, 3, None, 4])

    def test_forms_I6(self) -> None:
        """Both: an envelope and flat members; framed and flat: one of them."""
        for form, wanted in (
            ("both", {"abi", "payload", "type"}),
            ("framed", {"abi", "payload"}),
            ("flat", {"type"}),
        ):
            client = self.client(an_input(f"r-{form}"), form=form)
            self.end()
            for value in client.values():
                self.assertEqual(value.keys() & {"abi", "payload", "type"}, wanted)
            # `accepted` is none of the flat types: a flat client skips it.
            self.assertEqual(names(client)[-2:], ["started", "done"])

    def test_another_run_is_not_told(self) -> None:
        """A stream has the events of its request only."""
        client = self.client(an_input("r1"))
        master = Master(self.hub)
        master.attach()
        master.input("r2", "other")
        self.end()
        self.say("for r2")
        self.assertEqual(names(client), ["accepted", "started", "done"])

    def test_a_long_text_is_split_not_cut_I33_I40(self) -> None:
        """Each line keeps to the bound, and nothing of the text is lost."""
        text = "é" * 400_000
        client = self.client(an_input("r1"))
        self.say(text)
        self.end()
        self.assertTrue(all(len(line) <= 262_144 for line in client.lines))
        said = [e.text for e in client.events() if isinstance(e, x.Message)]
        self.assertEqual("".join(said), text)

    def test_a_big_command_keeps_to_the_bound_I6(self) -> None:
        """What is too long twice is sent in frames only."""
        client = self.client(an_input("r1"))
        self.ask(x.RequestApproval("t", Raw(b'{"a":"' + b"x" * 140_000 + b'"}')))
        line = client.values()[-1]
        self.assertEqual(line.keys() & {"abi", "type"}, {"abi"})
        self.assertEqual(names(client)[-1], "command")


class Idempotency(V1Case):
    """The same durability as v2 (I10, I21)."""

    def test_the_same_request_again_runs_nothing_B17(self) -> None:
        """While it runs the stream is told again and goes on; once over it is replayed."""
        first = self.client(an_input("r1"))
        again = self.client(an_input("r1"))
        self.say("x")
        self.end()
        late = self.client(an_input("r1"))
        for client in (first, again, late):
            self.assertEqual(names(client), ["accepted", "started", "message", "done"])
            self.assertEqual(client.seqs(), [1, 3, 4, 5])
            self.assertTrue(client.is_closed)
        self.assertEqual(len(self.box.started()), 1)

    def test_after_a_crash_it_is_the_same_B17_B25(self) -> None:
        """A new slave on the same log answers from it; a run without an end is interrupted."""
        self.client(an_input("r1"))
        self.hub = Hub(self.box.log)
        self.box = self.hub.box
        client = self.client(an_input("r1"))
        self.assertEqual(names(client)[:2], ["accepted", "started"])
        self.assertTrue(client.is_closed)
        self.assertEqual(self.box.started(), [])

    def test_other_content_under_the_same_id_is_EINVAL(self) -> None:
        """request_conflict is EINVAL in v1."""
        self.client(an_input("r1"))
        for other in (an_input("r1", "else"), an_input("r1", cwd="/tmp")):
            client = self.client(other)
            self.assertEqual(names(client), ["error EINVAL"])
            self.assertTrue(client.is_closed)

    def test_the_retrying_client_is_no_origin_I21(self) -> None:
        """It has neither deltas nor commands, and cannot answer."""
        first = self.client(an_input("r1"))
        again = self.client(an_input("r1"))
        self.emit(x.Delta("-", self.run_id, "d"))
        self.ask()
        command = self.command_id(first)
        again.answer(command)
        self.assertEqual(names(again), ["accepted", "started", "error EACCES"])
        first.answer(command)
        self.end()
        self.assertEqual(names(first), ["accepted", "started", "delta", "command", "done"])


class HalfClose(V1Case):
    """The write half (I35)."""

    def ended(self, client: V1Client) -> None:
        client.act(client.machine.input_ended())

    def test_the_stream_goes_on_and_commands_fail_closed_I35_I11(self) -> None:
        """A client that writes no more cannot answer; the run is told so and goes on."""
        client = self.client(an_input("r1"))
        self.ask()
        self.ended(client)
        resolved = [a for a in self.box.actions if type(a).__name__ == "Resolve"]
        self.assertEqual([a.result for a in resolved], [x.Rejected("origin_lost")])
        self.say("went on")
        self.end()
        self.assertEqual(names(client)[-2:], ["message", "done"])
        self.assertTrue(client.is_closed)

    def test_later_commands_fail_at_once(self) -> None:
        """There is nobody to ask."""
        client = self.client(an_input("r1"))
        self.ended(client)
        self.ask()
        resolved = [a for a in self.box.actions if type(a).__name__ == "Resolve"]
        self.assertEqual([a.result for a in resolved], [x.Rejected("origin_lost")])

    def test_a_client_that_goes_takes_nothing_with_it(self) -> None:
        """The run goes on, and its end is there for who asks again."""
        client = self.client(an_input("r1"))
        client.act(client.machine.peer_lost())
        self.say("alone")
        self.end()
        self.assertEqual(
            names(self.client(an_input("r1"))), ["accepted", "started", "message", "done"]
        )


class FlatLines(V1Case):
    """The flat lines of deployed peers."""

    def test_send_with_its_defaults(self) -> None:
        """Session `default`, scope private, an id of ours where there is none."""
        client = self.client({"op": "send", "input": "hi"}, form="flat")
        self.emit(x.Delta("-", self.run_id, "d"))
        self.emit(x.ToolCall("-", self.run_id, "k", "ls", "requested"))
        self.say("m")
        self.end()
        run = self.run_id
        self.assertEqual(
            [{k: v for k, v in value.items() if k != "session_seq"} for value in client.values()],
            [
                {"type": "accepted", "session": "default", "run": run},
                {"type": "start", "run": run, "model": None},
                {"type": "delta", "run": run, "text": "d"},
                {"type": "tool_call", "run": run, "tool_call_id": "k", "name": "ls"},
                {"type": "message", "run": run, "role": "assistant", "content": "m"},
                {"type": "done", "run": run, "status": "completed"},
            ],
        )

    def test_an_approval_is_asked_flat(self) -> None:
        """`approval_request` with the id to be answered under."""
        client = self.client({"op": "send", "id": "r1", "input": "hi"})
        self.ask()
        flat = client.values()[-1]
        wanted = {"type": "approval_request", "name": "sh", "args": {"cmd": "ls"}}
        self.assertEqual({k: flat[k] for k in wanted}, wanted)
        self.assertEqual(client.answer(flat["id"]), [])

    def test_ping(self) -> None:
        """A pong, and the end."""
        client = self.client({"op": "ping"})
        self.assertEqual(client.values(), [{"type": "pong"}])
        self.assertTrue(client.is_closed)

    def test_status_resume_and_cancel(self) -> None:
        """The flat forms do what the framed ones do."""
        self.client({"op": "send", "input": "hi"})
        (status,) = self.client({"op": "status"}).values()
        self.assertEqual((status["type"], status["status"]), ("status", "active"))
        cancel = self.client({"op": "cancel", "id": self.run_id})
        self.end("cancelled")
        self.assertEqual(cancel.values()[-1]["status"], "cancelled")
        resumed = self.client({"op": "resume", "session": "default", "after": "1"})
        self.assertEqual(
            [value["type"] for value in resumed.values()], ["message", "start", "status", "done"]
        )

    def test_a_bad_request_has_an_errno_and_one_line(self) -> None:
        """EINVAL for each way to be wrong; nothing is run."""
        for request in (
            {"op": "nope"},
            {"op": "send"},
            {"op": "send", "input": 1},
            {"op": "send", "input": "i", "session": "a/b"},
            {"op": "send", "input": "i", "cwd": "relative"},
            {"op": "send", "input": "i", "cwd": "/a/../b"},
            {"op": "send", "input": "i", "cwd": "/a\n"},
            {"op": "cancel"},
            {"no": "op"},
        ):
            client = self.client(request)
            (value,) = client.values()
            self.assertEqual((value["type"], value["code"]), ("error", "EINVAL"), request)
            self.assertIs(value["recoverable"], False)
        self.assertEqual(self.box.started(), [])

    def test_an_agent_may_be_named_I24(self) -> None:
        """The optional `agent` names who answers; one that there is not is ENOENT."""
        client = self.client({"op": "send", "input": "hi", "agent": "echo"})
        self.assertEqual(client.values()[0]["type"], "accepted")
        for request in (
            {"op": "send", "input": "hi", "agent": "none"},
            {"op": "status", "agent": "none"},
        ):
            (value,) = self.client(request).values()
            self.assertEqual((value["type"], value["code"]), ("error", "ENOENT"))
