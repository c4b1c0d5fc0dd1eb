"""The agent's link as a machine: the graph of §6 and the rulings on it, input by input."""

from __future__ import annotations

import json

import msgspec
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.backoff import FullJitter
from cortextx.fleet.agent.actions import (
    Adopt,
    Beat,
    Close,
    Configure,
    Connect,
    DeleteToken,
    PauseSources,
    ReadBatch,
    ResumeSources,
    RunProbe,
    Say,
    Send,
    SetAside,
    SetDeadline,
    StoreToken,
    Truncate,
)
from cortextx.fleet.agent.link import Link
from cortextx.fleet.contract import DEFAULT_AGENT_CONFIG, Capabilities, HelloParams, Platform

TOKEN = "t" * 43
OLD = "o" * 43
FRESH = "f" * 43
SESSION = "f3b6c4f7-7a3e-4f7f-9d4d-2f6f0d6fa9a1"
CONFIG = {**msgspec.to_builtins(DEFAULT_AGENT_CONFIG), "metrics_interval_secs": None}
BODY = b'"ts":"2026-05-16T19:42:50.123Z","severity":"info","message":"m","source":"file:/l"}'


def hello(acked: int = 0) -> HelloParams:
    return HelloParams(
        protocol_version=1,
        agent_version="0.1.0",
        hostname="devhost",
        host_id="2b9a0b3a-7e3c-4d2a-9c0e-9bbf5d3a1f01",
        platform=Platform(os="linux", arch="x86_64", kernel="6.6"),
        capabilities=Capabilities(
            supported_probes=[], sources=["file"], max_batch_entries=1000, compression=[]
        ),
        token=TOKEN,
        resume_from_seq=acked,
    )


def make(acked: int = 0, last: int = 0, chance: float = 0.5, previous: str | None = None) -> Link:
    draw = lambda: chance  # noqa: E731
    return Link(hello(acked), last, FullJitter(random=draw), draw, previous)


def message(**members: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **members}).encode()


def welcome(id: int, accepted: int = 0, token: str | None = None, **more: object) -> bytes:
    result = {
        "server_version": "1.0.0",
        "server_time": "2026-05-16T20:00:00Z",
        "accepted_seq": accepted,
        "session_id": SESSION,
        "config": CONFIG,
        **more,
    }
    if token is not None:
        result["rotated_token"] = token
    return message(id=id, result=result)


def refusal(id: int | None, code: int, **data: object) -> bytes:
    return message(id=id, error={"code": code, "message": "x", "data": data})


def only(kind: type, actions: list) -> list:
    return [action for action in actions if isinstance(action, kind)]


def sent(actions: list) -> list[dict]:
    return [json.loads(action.payload) for action in only(Send, actions)]


def quiet(actions: list) -> list:
    """The actions without those that only inform."""
    return [action for action in actions if not isinstance(action, Say | SetDeadline)]


def deadline(actions: list) -> float | None:
    return only(SetDeadline, actions)[-1].at


def authenticating(link: Link, now: float = 0.0) -> int:
    """Bring a fresh link to its hello; the hello's id."""
    link.started(now)
    return sent(link.connected(now))[0]["id"]


def activate(link: Link, acked: int = 0, last: int = 0, now: float = 0.0) -> list:
    """Bring a fresh link to active."""
    link.frame_received(welcome(authenticating(link, now), acked), now)
    return link.adopted(acked, last, now)


def push(link: Link, first: int, count: int, now: float = 0.0) -> tuple[dict, list]:
    """Answer the outstanding read; the push that is sent, and all actions."""
    actions = link.batch_read(first, [BODY] * count, now)
    return sent(actions)[0], actions


class Handshake(SynchronousTestCase):
    def test_the_hello_comes_first_and_alone(self) -> None:
        """The first message is agent.hello with the acked seq (§3, F36), then silence."""
        link = make(acked=7, last=40)
        self.assertEqual(quiet(link.started(0.0)), [Connect()])
        [first] = sent(link.connected(0.0))
        self.assertEqual(first["method"], "agent.hello")
        self.assertEqual(first["params"]["resume_from_seq"], 7)
        self.assertEqual(first["params"]["token"], TOKEN)
        self.assertEqual(quiet(link.entries_available(50, 1.0)), [])
        self.assertEqual(link.state, "authenticating")

    def test_nothing_is_sent_before_token_and_buffer_are_safe(self) -> None:
        """Behind the hello nothing goes out until its result is stored (F42, §3.5)."""
        link = make(last=3)
        id = authenticating(link)
        got = link.frame_received(welcome(id, 0, FRESH), 0.0)
        self.assertEqual(quiet(got), [StoreToken(FRESH, TOKEN), Adopt(0)])
        self.assertEqual(link.state, "storing")
        probe = {"probe": "x", "args": {}, "timeout_ms": 5}
        asked = message(id=9, method="probe.request", params=probe)
        self.assertEqual(sent(link.frame_received(asked, 0.1)), [])
        self.assertEqual(quiet(link.adopted(0, 3, 0.2)), [])
        got = link.token_stored(0.3)
        self.assertEqual(link.state, "active")
        self.assertEqual([action.probe for action in only(RunProbe, got)], ["x"])
        self.assertTrue(only(ReadBatch, got))

    def test_what_comes_while_the_token_is_stored_is_sent(self) -> None:
        """Entries that the buffer tells of after its own answer, while the new token is on its
        way to the disk, go out once that is done; they do not wait for another entry (F42)."""
        link = make(last=0)
        link.frame_received(welcome(authenticating(link), 0, FRESH), 0.0)
        link.adopted(0, 0, 0.1)
        self.assertEqual(quiet(link.entries_available(2, 0.2)), [])
        got = link.token_stored(0.3)
        self.assertEqual((link.state, link.last), ("active", 2))
        self.assertEqual(only(ReadBatch, got)[0].first, 1)

    def test_a_stored_token_is_the_next_hellos(self) -> None:
        """The rotated token is used once it is durable, not before (§3.5, F7)."""
        link = make()
        id = authenticating(link)
        link.frame_received(welcome(id, 0, FRESH), 0.0)
        link.peer_lost("reset", 0.1)
        self.assertEqual(quiet(link.time_passed(50.0)), [], "the token is not safe yet")
        self.assertEqual(quiet(link.adopted(0, 0, 50.0)), [])
        self.assertEqual(quiet(link.token_stored(51.0)), [Connect()])
        self.assertEqual(sent(link.connected(51.0))[0]["params"]["token"], FRESH)

    def test_a_token_that_cannot_be_stored_is_tried_again(self) -> None:
        """A full disk at rotation does not brick the host: it waits and stores again."""
        link = make()
        link.frame_received(welcome(authenticating(link), 0, FRESH), 0.0)
        link.adopted(0, 0, 0.0)
        got = link.token_not_stored("no space", 1.0)
        self.assertEqual(only(Say, got)[0].level, "critical")
        self.assertEqual(quiet(link.time_passed(6.0)), [StoreToken(FRESH, TOKEN)])
        link.token_stored(6.1)
        self.assertEqual(link.state, "active")

    def test_a_stop_tries_to_store_the_token_once_more(self) -> None:
        """An agent that stops while its token waits for the disk tries again, and says what is
        lost if that fails too, without the token (F23)."""
        for connected in (True, False):
            for stored in (True, False):
                link = make()
                link.frame_received(welcome(authenticating(link), 0, FRESH), 0.0)
                link.adopted(0, 0, 0.0)
                link.token_not_stored("no space", 1.0)
                if not connected:
                    link.peer_lost("reset", 1.5)
                got = link.stop_requested(2.0, 5.0)
                self.assertEqual(only(StoreToken, got), [StoreToken(FRESH, TOKEN)])
                self.assertEqual((link.state, link.is_storing), ("stopped", True))
                got = link.token_stored(3.0) if stored else link.token_not_stored("no space", 3.0)
                self.assertFalse(link.is_storing)
                said = only(Say, got)
                self.assertEqual([say.level for say in said], [] if stored else ["critical"])
                self.assertTrue(all("issued again" in say.text for say in said))
                self.assertNotIn(FRESH, repr(got))

    def test_a_stop_while_the_token_is_being_stored_waits_for_it(self) -> None:
        """It is not asked for twice, and a failure then is told as the end of it."""
        link = make()
        link.frame_received(welcome(authenticating(link), 0, FRESH), 0.0)
        self.assertEqual(only(StoreToken, link.stop_requested(1.0, 5.0)), [])
        self.assertTrue(link.is_storing)
        self.assertIn("issued again", only(Say, link.token_not_stored("no space", 2.0))[0].text)
        self.assertFalse(link.is_storing)

    def test_unknown_members_are_tolerated_and_named(self) -> None:
        """Members that a newer server adds are logged and left out (F42)."""
        link = make()
        config = {**CONFIG, "novel": 1, "log_sources": [{"kind": "file"}, {"kind": "kmsg"}]}
        got = link.frame_received(welcome(authenticating(link), 0, extra=1, config=config), 0.0)
        self.assertIn("extra", only(Say, got)[0].text)
        self.assertIn("config.novel", only(Say, got)[0].text)
        [applied] = only(Configure, link.adopted(0, 0, 0.0))
        self.assertEqual([source.kind for source in applied.config.log_sources], ["file"])

    def test_a59_a_bad_configuration_costs_no_connection(self) -> None:
        """Numbers out of range leave the defaults in force and the link up (A58, A59)."""
        link = make()
        config = {**CONFIG, "heartbeat_interval_secs": 0}
        link.frame_received(welcome(authenticating(link), 0, config=config), 0.0)
        got = link.adopted(0, 0, 0.0)
        self.assertEqual(link.state, "active")
        self.assertEqual(only(Configure, got), [])

    def test_a56_fatal_answers_end_in_the_waiting_room(self) -> None:
        """-32001, -32003 and -32005 pause the sources, keep the token, and wait (F34, A56)."""
        for code in (-32001, -32003, -32005):
            link = make()
            got = link.frame_received(refusal(authenticating(link), code), 0.0)
            self.assertEqual(link.state, "fatal_auth")
            self.assertEqual(only(DeleteToken, got), [])
            self.assertEqual(only(PauseSources, got), [PauseSources()])
            self.assertEqual(only(Say, got)[0].level, "critical")
            self.assertEqual(quiet(link.peer_lost("4001", 0.0)), [])
            self.assertEqual(quiet(link.time_passed(1e6)), [])

    def test_retry_makes_one_attempt(self) -> None:
        """From the waiting room one request makes one attempt, with the token of now (F34)."""
        link = make()
        link.frame_received(refusal(authenticating(link), -32001), 0.0)
        self.assertEqual(quiet(link.retry_requested(1.0)), [], "the old connection still closes")
        self.assertEqual(quiet(link.peer_lost("closed", 1.5)), [Connect()])
        id = sent(link.connected(2.0))[0]["id"]
        link.frame_received(refusal(id, -32001), 2.0)
        link.peer_lost("closed", 2.0)
        self.assertEqual(quiet(link.time_passed(1e6)), [])
        self.assertEqual(quiet(link.retry_requested(1e6, FRESH)), [Connect()])
        [again] = sent(link.connected(1e6))
        self.assertEqual(again["params"]["token"], FRESH)
        link.frame_received(welcome(again["id"]), 1e6)
        self.assertEqual(len(only(ResumeSources, link.adopted(0, 0, 1e6))), 1)

    def try_previous(self) -> tuple[Link, int]:
        """A link whose token is not known to the server, at the hello with the one before."""
        link = make(previous=OLD)
        got = link.frame_received(refusal(authenticating(link), -32001), 0.0)
        self.assertEqual((link.state, only(PauseSources, got)), ("reconnecting", []))
        link.peer_lost("4001", 0.1)
        self.assertEqual(quiet(link.time_passed(1.0)), [Connect()])
        [again] = sent(link.connected(1.0))
        self.assertEqual(again["params"]["token"], OLD)
        return link, again["id"]

    def test_a56_a_restored_server_gets_the_token_before(self) -> None:
        """-32001 leads to one attempt with the token that was replaced; if it is good, the two
        change places on the disk before anything is sent (A56)."""
        link, id = self.try_previous()
        got = link.frame_received(welcome(id), 1.0)
        self.assertEqual(quiet(got), [StoreToken(OLD, TOKEN), Adopt(0)])
        link.adopted(0, 0, 1.0)
        self.assertEqual(link.state, "storing")
        link.token_stored(1.1)
        self.assertEqual(link.state, "active")
        link.peer_lost("reset", 2.0)
        link.time_passed(100.0)
        [again] = sent(link.connected(100.0))
        self.assertEqual(again["params"]["token"], OLD)
        link.frame_received(refusal(again["id"], -32001), 100.0)
        link.peer_lost("4001", 100.0)
        link.time_passed(200.0)
        self.assertEqual(sent(link.connected(200.0))[0]["params"]["token"], TOKEN)

    def test_a_rotation_by_a_restored_server_replaces_the_token_that_it_knew(self) -> None:
        """The token kept beside the fresh one is the one that this server has a grace for."""
        link, id = self.try_previous()
        got = link.frame_received(welcome(id, 0, FRESH), 1.0)
        self.assertEqual(quiet(got), [StoreToken(FRESH, OLD), Adopt(0)])

    def test_a_swap_that_cannot_be_stored_holds_nothing_up(self) -> None:
        """Both tokens are on the disk in any case: the link goes on with the good one."""
        link, id = self.try_previous()
        link.frame_received(welcome(id), 1.0)
        link.adopted(0, 0, 1.0)
        self.assertEqual(only(Say, link.token_not_stored("EROFS", 1.1))[0].level, "warn")
        self.assertEqual(link.state, "active")

    def test_both_tokens_refused_is_fatal(self) -> None:
        """The second refusal is the waiting room, with the verdict on the token that is kept;
        a retry begins with that one (F34)."""
        for code, told in ((-32001, -32001), (-32005, -32001), (-32003, -32003)):
            link, id = self.try_previous()
            got = link.frame_received(refusal(id, code), 1.0)
            self.assertEqual(link.state, "fatal_auth")
            self.assertEqual(only(DeleteToken, got) + only(StoreToken, got), [])
            self.assertIn(str(told), only(Say, got)[0].text)
            link.peer_lost("4001", 1.0)
            link.retry_requested(2.0, TOKEN, OLD)
            self.assertEqual(sent(link.connected(2.0))[0]["params"]["token"], TOKEN)

    def test_only_an_unknown_token_leads_to_the_one_before(self) -> None:
        """-32002, -32003 and -32005 are verdicts that the token before does not change."""
        for code, state in ((-32002, "revoked"), (-32003, "fatal_auth"), (-32005, "fatal_auth")):
            link = make(previous=OLD)
            link.frame_received(refusal(authenticating(link), code), 0.0)
            self.assertEqual(link.state, state)

    def test_the_attempt_with_the_token_before_lasts_until_its_verdict(self) -> None:
        """A connection lost before the answer, or a busy server, does not use it up."""
        link, _ = self.try_previous()
        link.peer_lost("reset", 1.5)
        link.time_passed(100.0)
        [again] = sent(link.connected(100.0))
        self.assertEqual(again["params"]["token"], OLD)
        link.frame_received(refusal(again["id"], -32020), 100.0)
        link.peer_lost("closed", 100.0)
        link.time_passed(300.0)
        self.assertEqual(sent(link.connected(300.0))[0]["params"]["token"], OLD)

    def test_a_revoked_host_has_no_token_before(self) -> None:
        """What an operator gives it then is all there is (F8)."""
        link, id = self.try_previous()
        self.assertEqual(quiet(link.frame_received(refusal(id, -32002), 1.0))[0], DeleteToken())
        link.peer_lost("4002", 1.0)
        link.retry_requested(2.0, FRESH)
        link.frame_received(refusal(sent(link.connected(2.0))[0]["id"], -32001), 2.0)
        self.assertEqual(link.state, "fatal_auth")

    def test_revoked_at_hello_deletes_the_token_and_stops(self) -> None:
        """-32002 deletes the token; only a new one starts anything again (§3.7, F42)."""
        link = make()
        got = link.frame_received(refusal(authenticating(link), -32002), 0.0)
        self.assertEqual(quiet(got)[0], DeleteToken())
        self.assertEqual(link.state, "revoked")
        link.peer_lost("4002", 0.0)
        self.assertEqual(quiet(link.retry_requested(9.0, TOKEN)), [])
        self.assertEqual(quiet(link.retry_requested(9.0, FRESH)), [Connect()])

    def test_other_hello_errors_back_off_fully(self) -> None:
        """Any other refusal reconnects at the maximum backoff, or as asked (F34, A52)."""
        for code, data, wait in ((-32603, {}, 30.0), (-32020, {"retry_after_ms": 45000}, 45.0)):
            link = make()
            link.frame_received(refusal(authenticating(link), code, **data), 0.0)
            self.assertEqual(link.state, "reconnecting")
            self.assertEqual(deadline(link.peer_lost("4001", 0.0)), wait)

    def test_a_silent_server_is_left(self) -> None:
        """Neither an upgrade nor an answer to the hello is waited for for ever."""
        link = make()
        link.started(0.0)
        self.assertEqual(len(only(Close, link.time_passed(30.0))), 1)
        self.assertEqual(quiet(link.time_passed(99.0)), [], "the old attempt is not over")
        self.assertEqual(quiet(link.peer_lost("aborted", 99.0)), [Connect()])
        link.connected(99.0)
        self.assertEqual(len(only(Close, link.time_passed(114.0))), 1)

    def test_a52_the_first_retry_is_jittered_and_60_s_reset_it(self) -> None:
        """delay = rand(0, min(60, 2**attempt)) from the first retry on (§6, A52)."""
        link = make()
        link.started(0.0)
        for expected in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0):
            self.assertEqual(deadline(link.peer_lost("refused", 0.0)), expected)
            self.assertEqual(quiet(link.time_passed(expected)), [Connect()])
        id = sent(link.connected(100.0))[0]["id"]
        link.frame_received(welcome(id), 100.0)
        link.adopted(0, 0, 100.0)
        self.assertEqual(deadline(link.peer_lost("reset", 160.0)), 160.5)

    def test_a_stale_adoption_is_not_this_connections(self) -> None:
        """What the buffer answers for a connection that has gone moves nothing."""
        link = make()
        link.frame_received(welcome(authenticating(link), 5), 0.0)
        link.peer_lost("reset", 0.0)
        link.time_passed(0.5)
        id = sent(link.connected(0.5))[0]["id"]
        link.frame_received(welcome(id, 9), 0.6)
        self.assertEqual(quiet(link.adopted(5, 5, 0.7)), [])
        self.assertEqual(link.state, "storing")
        link.adopted(9, 9, 0.8)
        self.assertEqual((link.state, link.acked), ("active", 9))

    def test_no_secret_is_said(self) -> None:
        """Tokens are in no repr and in no word to the operator (F23)."""
        link = make()
        got = link.started(0.0) + link.connected(0.0)
        got += link.frame_received(welcome(1, 0, FRESH), 0.0) + link.peer_lost("x", 0.0)
        self.assertNotIn(FRESH, repr(got))
        self.assertNotIn(TOKEN, repr(got))


class Pushing(SynchronousTestCase):
    def test_a_full_batch_goes_at_once_a_part_waits_for_the_interval(self) -> None:
        """A full batch is read at once, less at most flush_interval_ms later (§4.1)."""
        link = make()
        activate(link)
        got = link.entries_available(3, 10.0)
        self.assertEqual(quiet(got), [])
        self.assertAlmostEqual(deadline(got), 10.2)
        [read] = only(ReadBatch, link.time_passed(10.2))
        self.assertEqual((read.first, read.max_entries), (1, 1000))
        push(link, 1, 3, 10.2)
        link.frame_received(message(id=2, result={"up_to_seq": 3}), 10.3)
        self.assertEqual(len(only(ReadBatch, link.entries_available(1003, 20.0))), 1)

    def test_a_push_is_the_contracts_frame(self) -> None:
        """Seqs are put before the buffered bodies, contiguous from seq_start (§4.4)."""
        link = make()
        activate(link, acked=4, last=6)
        frame, _ = push(link, 5, 2)
        self.assertEqual(frame["method"], "logs.push")
        self.assertEqual(frame["params"]["seq_start"], 5)
        self.assertEqual([entry["seq"] for entry in frame["params"]["entries"]], [5, 6])
        self.assertEqual(
            set(frame["params"]["entries"][0]), {"seq", "ts", "severity", "message", "source"}
        )

    def test_an_ack_truncates_and_goes_on(self) -> None:
        """The ack lets the buffer drop what is durable, and widens the window (§7, F36)."""
        link = make()
        activate(link, last=2500)
        frame, got = push(link, 1, 1000)
        self.assertEqual(only(ReadBatch, got), [], "the first push goes alone")
        got = link.frame_received(message(id=frame["id"], result={"up_to_seq": 1000}), 0.1)
        self.assertEqual(quiet(got)[0], Truncate(1000))
        _, got = push(link, 1001, 1000, 0.1)
        self.assertEqual(len(only(ReadBatch, got)), 1, "now two may be under way")

    def test_after_a_refusal_the_window_empties_and_starts_over(self) -> None:
        """Go-back-N: what was in flight is answered first, then all is sent from s (F33)."""
        link = make()
        activate(link, last=3000)
        first, _ = push(link, 1, 1000)
        link.frame_received(message(id=first["id"], result={"up_to_seq": 1000}), 0.1)
        second, _ = push(link, 1001, 1000, 0.1)
        third, _ = push(link, 2001, 1000, 0.1)
        got = link.frame_received(refusal(second["id"], -32020, retry_after_ms=250), 0.2)
        self.assertEqual(quiet(got), [])
        refused = refusal(third["id"], -32020, retry_after_ms=250, resend_from=1001)
        got = link.frame_received(refused, 0.3)
        self.assertEqual((quiet(got), deadline(got)), ([], 0.55))
        self.assertEqual(only(ReadBatch, link.time_passed(0.55))[0].first, 1001)

    def test_a_read_that_a_refusal_overtook_is_not_sent(self) -> None:
        """Entries read before the sender went back would look like a gap: dropped (F33)."""
        link = make()
        activate(link, last=3000)
        first, _ = push(link, 1, 1000)
        link.frame_received(message(id=first["id"], result={"up_to_seq": 1000}), 0.1)
        second, got = push(link, 1001, 1000, 0.1)
        self.assertEqual(only(ReadBatch, got)[0].first, 2001)
        link.frame_received(refusal(second["id"], -32020, retry_after_ms=0), 0.2)
        got = link.batch_read(2001, [BODY] * 1000, 0.3)
        self.assertEqual(sent(got), [])
        self.assertEqual(only(ReadBatch, got)[0].first, 1001)

    def test_quota_and_overflow_wait(self) -> None:
        """-32030 waits as asked, -32007 and a missing or absurd time a second (§5, F42, A59)."""
        for code, data, wait in (
            (-32030, {"retry_after_ms": 3000}, 3.0),
            (-32007, {}, 1.0),
            (-32020, {"retry_after_ms": "soon"}, 1.0),
            (-32020, {"retry_after_ms": 10**12}, 25.0),
        ):
            link = make()
            activate(link, last=10)
            frame, _ = push(link, 1, 10)
            link.ping_received(0.0)
            link.frame_received(refusal(frame["id"], code, **data), 0.0)
            self.assertEqual(only(ReadBatch, link.time_passed(wait - 0.01)), [])
            if wait < 25:
                self.assertEqual(len(only(ReadBatch, link.time_passed(wait))), 1)

    def test_a47_a_poison_entry_is_found_and_set_aside(self) -> None:
        """Halved until alone, set aside at the third refusal, and passed (F25, F35, A47)."""
        link = make()
        got = activate(link, last=100)
        pushes = 0
        aside: list[SetAside] = []
        stored: list[int] = []
        while (read := only(ReadBatch, got)) and pushes < 50:
            first = read[0].first
            count = min(read[0].max_entries, 100 - first + 1)
            frame, _ = push(link, first, count)
            pushes += 1
            seqs = [entry["seq"] for entry in frame["params"]["entries"]]
            if 37 in seqs:
                got = link.frame_received(refusal(frame["id"], -32602), 0.0)
            else:
                stored += seqs
                answer = message(id=frame["id"], result={"up_to_seq": seqs[-1]})
                got = link.frame_received(answer, 0.0)
            aside += only(SetAside, got)
        self.assertEqual([action.seq for action in aside], [37])
        self.assertEqual(stored, [seq for seq in range(1, 101) if seq != 37])
        self.assertLess(pushes, 20)
        self.assertEqual(link.acked, 100)

    def test_one_odd_refusal_poisons_nobody(self) -> None:
        """An entry that is taken at the second try is not set aside (F35)."""
        link = make()
        activate(link, last=1)
        for _ in range(2):
            frame, _ = push(link, 1, 1)
            got = link.frame_received(refusal(frame["id"], -32602), 0.0)
            self.assertEqual(only(SetAside, got), [])
        frame, _ = push(link, 1, 1)
        got = link.frame_received(message(id=frame["id"], result={"up_to_seq": 1}), 0.0)
        self.assertIn(Truncate(1), got)
        link.entries_available(3000, 1.0)
        _, got = push(link, 2, 1000, 1.0)
        self.assertEqual(len(only(ReadBatch, got)), 1, "the search is over: the window is open")

    def test_the_buffer_may_know_more_than_was_announced(self) -> None:
        """A read may find entries whose news is still on its way: their ack is no fault."""
        link = make()
        activate(link, last=3)
        frame, _ = push(link, 1, 5)
        got = link.frame_received(message(id=frame["id"], result={"up_to_seq": 5}), 0.0)
        self.assertEqual((link.state, quiet(got)), ("active", [Truncate(5)]))

    def test_too_many_entries_halve_without_suspicion(self) -> None:
        """-32008 lowers the batch size for this connection (§5)."""
        link = make()
        activate(link, last=2000)
        frame, _ = push(link, 1, 1000)
        got = link.frame_received(refusal(frame["id"], -32008), 0.0)
        self.assertEqual(only(ReadBatch, got)[0].max_entries, 500)
        frame, _ = push(link, 1, 500)
        got = link.frame_received(message(id=frame["id"], result={"up_to_seq": 500}), 0.0)
        self.assertEqual(only(ReadBatch, got)[0].max_entries, 500)

    def test_other_push_errors_reconnect_with_full_backoff(self) -> None:
        """-32603, -32004, and an error whose id is null close and back off fully (F35)."""
        for code, null in ((-32603, False), (-32004, False), (-32700, True), (-31999, False)):
            link = make()
            activate(link, last=10)
            frame, _ = push(link, 1, 10)
            got = link.frame_received(refusal(None if null else frame["id"], code), 100.0)
            self.assertEqual(len(only(Close, got)), 1)
            self.assertEqual(deadline(link.peer_lost("closed", 100.0)), 130.0)

    def test_an_impossible_ack_is_a_broken_server(self) -> None:
        """up_to_seq beyond what exists must not truncate anything (§7)."""
        link = make()
        activate(link, last=10)
        frame, _ = push(link, 1, 10)
        got = link.frame_received(message(id=frame["id"], result={"up_to_seq": 11}), 0.0)
        self.assertEqual(only(Truncate, got), [])
        self.assertEqual(link.state, "reconnecting")

    def test_a_short_ack_keeps_the_rest_owed(self) -> None:
        """An ack below the push's end is believed: the rest goes again, after a pause."""
        link = make()
        activate(link, last=10)
        frame, _ = push(link, 1, 10)
        got = link.frame_received(message(id=frame["id"], result={"up_to_seq": 4}), 0.0)
        self.assertEqual(only(Truncate, got), [Truncate(4)])
        self.assertEqual(only(ReadBatch, got), [])
        self.assertEqual(only(ReadBatch, link.time_passed(1.0))[0].first, 5)

    def test_what_was_evicted_is_passed_over(self) -> None:
        """A hole in the buffer is sent as a jump (F13); an empty answer is no loop."""
        link = make()
        activate(link, last=10)
        frame, _ = push(link, 6, 2)
        self.assertEqual(frame["params"]["seq_start"], 6)
        got = link.frame_received(message(id=frame["id"], result={"up_to_seq": 7}), 0.0)
        self.assertEqual(only(ReadBatch, got)[0].first, 8)
        got = link.batch_read(8, [], 0.0)
        self.assertEqual(quiet(got), [])
        self.assertEqual(quiet(link.time_passed(1.0)), [])

    def test_a_full_transport_holds_the_next_read(self) -> None:
        """While the transport is full nothing more is prepared."""
        link = make()
        activate(link)
        link.transport_full()
        self.assertEqual(quiet(link.entries_available(5000, 1.0)), [])
        self.assertEqual(len(only(ReadBatch, link.transport_ready(2.0))), 1)


class Living(SynchronousTestCase):
    def test_heartbeats_come_within_the_interval(self) -> None:
        """Heartbeats go every heartbeat_interval at most, with jitter, and tell the lag (§4.2)."""
        link = make()
        got = activate(link)
        now = deadline(got)
        self.assertLess(now, 30.0)
        link.entries_available(3, now - 0.01)
        got = link.time_passed(now)
        self.assertEqual(only(Beat, got), [Beat(3)])

    def test_a53_no_ping_for_70_s(self) -> None:
        """A path without pings for 70 s is dead (F36); a ping starts the time anew."""
        link = make()
        activate(link)
        link.ping_received(20.0)
        self.assertEqual(only(Close, link.time_passed(89.0)), [])
        self.assertEqual(len(only(Close, link.time_passed(90.0))), 1)

    def test_no_answer_for_30_s(self) -> None:
        """A push that nobody answers ends the connection and makes the next one careful (F36)."""
        link = make()
        activate(link, last=5000)
        push(link, 1, 400)
        self.assertEqual(only(Close, link.time_passed(29.9)), [])
        self.assertEqual(len(only(Close, link.time_passed(30.0))), 1)
        link.peer_lost("gone", 30.1)
        link.time_passed(31.0)
        link.frame_received(welcome(sent(link.connected(31.0))[0]["id"]), 31.0)
        [read] = only(ReadBatch, link.adopted(0, 5000, 31.0))
        self.assertEqual(read.first, 1)
        self.assertLess(read.max_bytes, 40_000)

    def test_stale_reads_are_dropped(self) -> None:
        """A read of an earlier connection may carry old numbers: it is never sent (F2)."""
        link = make()
        activate(link, last=10)
        link.peer_lost("reset", 1.0)
        link.time_passed(2.0)
        link.frame_received(welcome(sent(link.connected(2.0))[0]["id"], 500), 2.0)
        self.assertEqual(quiet(link.batch_read(1, [BODY] * 10, 2.1)), [])
        [read] = only(ReadBatch, link.adopted(500, 510, 2.2, renumbered=True))
        self.assertEqual(read.first, 501)

    def test_a_restored_server_is_reported(self) -> None:
        """accepted_seq below what was acknowledged: go on from what is there, and say so (F26)."""
        link = make(acked=100, last=120)
        got = link.frame_received(welcome(authenticating(link), 40), 0.0)
        self.assertIn("restored", only(Say, got)[0].text)
        self.assertEqual(only(ReadBatch, link.adopted(100, 120, 0.0))[0].first, 101)

    def test_strange_messages_do_no_harm(self) -> None:
        """Unknown answers and notifications are said and ignored; a strange request is refused."""
        link = make()
        activate(link)
        for frame in (message(id=77, result={}), message(method="novel", params={})):
            got = link.frame_received(frame, 1.0)
            self.assertEqual((quiet(got), len(only(Say, got))), ([], 1))
        [answer] = sent(link.frame_received(message(id="a", method="novel", params={}), 1.0))
        self.assertEqual((answer["id"], answer["error"]["code"]), ("a", -32601))
        bad = message(id=5, method="probe.request", params={"probe": ""})
        self.assertEqual(sent(link.frame_received(bad, 1.0))[0]["error"]["code"], -32602)
        self.assertEqual(link.state, "active")

    def test_broken_frames_close(self) -> None:
        """Binary closes 1003 (F42), text that is not UTF-8 1007, what is no message 1002."""
        for feed, code in (
            (lambda link: link.binary_received(1.0), 1003),
            (lambda link: link.frame_received(b"\xff{}", 1.0), 1007),
            (lambda link: link.frame_received(b"[]", 1.0), 1002),
            (lambda link: link.frame_received(b"{", 1.0), 1002),
        ):
            link = make()
            activate(link)
            self.assertEqual(only(Close, feed(link))[0].code, code)
            self.assertEqual(quiet(link.frame_received(b"{", 1.0)), [], "dead is dead")

    def test_shutdown_drains_then_returns(self) -> None:
        """ServerReload: send what there is, close with final_seq, reconnect (§4.3, §11, F42)."""
        link = make()
        activate(link)
        link.entries_available(5, 1.0)
        params = {"reason": "ServerReload", "drain_seconds": 10}
        got = link.frame_received(message(method="agent.shutdown", params=params), 1.0)
        self.assertEqual(link.state, "draining")
        self.assertEqual(len(only(ReadBatch, got)), 1)
        frame, _ = push(link, 1, 5, 1.0)
        got = link.frame_received(message(id=frame["id"], result={"up_to_seq": 5}), 1.5)
        self.assertEqual(only(Close, got), [Close(1000, "final_seq=5")])
        self.assertEqual(link.state, "reconnecting")

    def test_a_drain_ends_in_time(self) -> None:
        """drain_seconds bounds the drain, answered or not (§4.3)."""
        link = make()
        activate(link, last=5)
        push(link, 1, 5)
        params = {"reason": "Decommission", "drain_seconds": 3}
        link.frame_received(message(method="agent.shutdown", params=params), 1.0)
        self.assertEqual(only(Close, link.time_passed(4.0)), [Close(1000, "final_seq=0")])

    def test_shutdown_revoked(self) -> None:
        """Revoked deletes the token, rests the sources and ends it (§4.3, F8)."""
        link = make()
        activate(link)
        params = {"reason": "Revoked", "drain_seconds": 0}
        got = link.frame_received(message(method="agent.shutdown", params=params), 1.0)
        self.assertEqual(quiet(got), [DeleteToken(), Close(1000, ""), PauseSources()])
        link.peer_lost("4002", 1.0)
        self.assertEqual((link.state, quiet(link.time_passed(1e6))), ("revoked", []))

    def test_stop_drains_briefly(self) -> None:
        """A stopping agent waits for its answers, says final_seq, and is done (F42)."""
        link = make()
        activate(link, last=5)
        frame, _ = push(link, 1, 5)
        self.assertEqual(only(Close, link.stop_requested(1.0, 2.0)), [])
        got = link.frame_received(message(id=frame["id"], result={"up_to_seq": 5}), 1.5)
        self.assertEqual(only(Close, got), [Close(1000, "final_seq=5")])
        self.assertEqual(link.state, "stopped")
        self.assertEqual(quiet(link.peer_lost("closed", 1.6)), [])
        self.assertFalse(link.is_connected)

    def test_stop_anywhere(self) -> None:
        """In every other state a stop is the end at once."""
        for bring in (
            lambda link: None,
            lambda link: link.started(0.0),
            lambda link: authenticating(link),
            lambda link: link.frame_received(welcome(authenticating(link)), 0.0),
            lambda link: link.frame_received(refusal(authenticating(link), -32001), 0.0),
            lambda link: (link.started(0.0), link.peer_lost("refused", 0.0)),
        ):
            link = make()
            bring(link)
            link.stop_requested(1.0, 2.0)
            self.assertEqual(link.state, "stopped")
            self.assertEqual(quiet(link.peer_lost("gone", 1.0)), [])
            self.assertEqual(quiet(link.time_passed(1e6)), [])

    def test_config_update_is_applied_now_or_at_its_moment(self) -> None:
        """The newest wins, one that waits is replaced, an invalid one changes nothing (F22)."""
        link = make()
        activate(link)

        def update(after: str | None, **changed: object) -> list:
            params = {"apply_after": after, "config": {**CONFIG, **changed}}
            return link.frame_received(message(method="config.update", params=params), 10.0)

        [done] = only(Configure, update(None, flush_interval_ms=500))
        self.assertEqual(done.config.flush_interval_ms, 500)
        self.assertEqual(only(Configure, update("2026-05-16T20:01:00Z", flush_interval_ms=600)), [])
        self.assertEqual(only(Configure, update("2026-05-16T20:00:50Z", flush_interval_ms=700)), [])
        self.assertEqual(only(Configure, update(None, flush_interval_ms=1)), [])
        [done] = only(Configure, link.time_passed(50.0))
        self.assertEqual(done.config.flush_interval_ms, 700)
        self.assertEqual(only(Configure, link.time_passed(60.0)), [])

    def test_a_buffer_that_cannot_be_read_closes(self) -> None:
        """Trouble in the buffer is a reason to come back later, not to spin."""
        link = make()
        activate(link, last=10)
        self.assertEqual(len(only(Close, link.read_failed("EIO", 1.0))), 1)
        link = make()
        link.frame_received(welcome(authenticating(link)), 0.0)
        self.assertEqual(len(only(Close, link.adopt_failed("EIO", 1.0))), 1)
