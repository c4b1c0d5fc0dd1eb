"""Tailing over HTTP: resuming, slow readers, and streams that end (A64)."""

from __future__ import annotations

import json
from typing import Any

from twisted.internet.defer import succeed

from cortextx.web.api_tail import ALIVE_SECONDS, FOLLOW_PAUSE
from cortextx.web.flow import PIECE_BYTES
from tests.web.case import HOST_B, Client, Stuffed, WebCase


class Event:
    """One event as a browser's EventSource would read it."""

    def __init__(self, block: bytes) -> None:
        self.kind, self.data, self.id = "", None, None
        for line in block.decode().split("\n"):
            name, _, value = line.partition(": ")
            if name == "event":
                self.kind = value
            elif name == "data":
                self.data = json.loads(value)
            elif name == "id":
                self.id = int(value)


class TailCase(WebCase):
    table = {"api_tails": 3, "api_tails_per_token": 2}

    def setUp(self) -> None:
        super().setUp()
        self.issue()

    def tail(self, params: Any = (), **more: Any) -> Client:
        return self.begin("/api/v1/tail", params, **more)

    def events(self, client: Client) -> list[Event]:
        """The events that came so far."""
        answer = client.answer()
        self.assertEqual(answer.status, 200, answer.body)
        blocks = [block for block in answer.body.split(b"\n\n") if block]
        return [Event(block) for block in blocks if not block.startswith(b":")]

    def messages(self, client: Client) -> list[str]:
        return [event.data["message"] for event in self.events(client) if event.kind == "entry"]

    def go_on(self) -> None:
        """Let a stream look again."""
        self.clock.advance(FOLLOW_PAUSE)


class Following(TailCase):
    def test_how_far_it_came(self) -> None:
        """Once a tail has caught up it tells how far it looked, also where nothing matched, so
        that who wants only what there is can go."""
        self.push("one", "two")
        client = self.tail([("after", "0"), ("severity_min", "emerg")])
        self.assertEqual([(event.kind, event.id) for event in self.events(client)], [("", 2)])
        self.push("three")
        self.go_on()
        self.assertEqual([(event.kind, event.id) for event in self.events(client)], [("", 2)])

    def test_what_comes(self) -> None:
        """A tail sends what is stored from now on, each entry with its id."""
        self.push("before")
        client = self.tail()
        self.assertEqual(
            client.answer().headers["content-type"], "text/event-stream; charset=utf-8"
        )
        self.push("one", "two")
        self.go_on()
        self.push("three")
        self.go_on()
        self.assertEqual(self.messages(client), ["one", "two", "three"])
        # Before anything came, it was told how far the store had come.
        self.assertEqual([event.id for event in self.events(client)], [1, 2, 3, 4])
        self.assertEqual(self.events(client)[0].data, None)

    def test_the_last_ones_first(self) -> None:
        """`last` sends that many entries that are there already, and then what comes."""
        self.push("one", "two", "three")
        client = self.tail({"last": 2})
        self.push("four")
        self.go_on()
        self.assertEqual(self.messages(client), ["two", "three", "four"])

    def test_filters(self) -> None:
        """A tail can be narrowed as a search can."""
        self.issue("db1", HOST_B)
        client = self.tail({"host": "db1", "text": "two"})
        self.push("two")
        self.push("one", "two", host_id=HOST_B)
        self.go_on()
        self.assertEqual([event.data["host"] for event in self.events(client)], ["db1"])

    def test_a_wrong_filter_is_a_problem(self) -> None:
        """What cannot be tailed is refused with a status, before a stream begins."""
        self.refused(404, "/tail", {"host": "nobody"})
        self.refused(400, "/tail", {"after": "-1"})
        self.refused(400, "/tail", headers={"Last-Event-ID": "x"})

    def test_too_many(self) -> None:
        """Tails are bounded in number, and one that ends makes room for another."""
        clients = [self.tail(role=role) for role in ("viewer", "viewer", "admin")]
        problem = self.refused(503, "/tail", role="operator")
        self.assertEqual(problem["code"], "too_many_tails")
        clients[0].lost()
        self.assertEqual(self.tail(role="operator").answer().status, 200)

    def test_too_many_of_one_token(self) -> None:
        """One token cannot take all the tails that there may be."""
        clients = [self.tail(), self.tail()]
        refused = self.ask("/tail")
        self.assertEqual((refused.status, refused.headers["retry-after"]), (429, "2"))
        clients[0].lost()
        self.assertEqual(self.tail().answer().status, 200)


class Resuming(TailCase):
    def test_after(self) -> None:
        """A tail behind an id sends all that came after it, without doubling or loss."""
        self.push(*(str(number) for number in range(1, 501)))
        client = self.tail({"after": 100})
        self.assertEqual(self.messages(client), [str(number) for number in range(101, 501)])

    def test_last_event_id(self) -> None:
        """A browser that reconnects goes on behind its last event, whatever its query says."""
        self.push("one", "two", "three")
        client = self.tail({"last": 3, "after": 0}, headers={"Last-Event-ID": "2"})
        self.assertEqual(self.messages(client), ["three"])

    def test_a_filter_moves_on_too(self) -> None:
        """Now and then the client is told how far the tail has looked in vain, so that a
        later one need not look there again."""
        client = self.tail({"text": "rare"})
        self.push("common")
        self.go_on()
        self.clock.advance(ALIVE_SECONDS)
        [event] = self.events(client)
        self.assertEqual((event.kind, event.data, event.id), ("", None, 1))

    def test_a_restored_store(self) -> None:
        """A position beyond the newest entry is told to be lost, and the tail goes on (F26)."""
        self.push("one")
        client = self.tail({"after": 1000})
        self.push("two")
        self.go_on()
        gap, entry = self.events(client)
        self.assertEqual(gap.kind, "gap")
        self.assertEqual(gap.data, {"after": 1000, "to": 1, "reason": "store_restored"})
        self.assertEqual(entry.data["message"], "two")

    def test_what_was_dropped_meanwhile(self) -> None:
        """Who comes back after entries were dropped for their age is told which; who asks
        for all that there is gets that."""
        self.push(*(str(number) for number in range(1, 11)))
        tail = self.store.tail

        def without(which: Any, after: int, limit: int) -> Any:
            return tail(which, max(after, 6), limit)

        self.patch(self.store, "tail", without)
        self.patch(self.store, "oldest", lambda: succeed(7))
        gap, *entries = self.events(self.tail({"after": 3}))
        self.assertEqual(gap.data, {"after": 3, "to": 6, "reason": "expired"})
        self.assertEqual([entry.id for entry in entries], [7, 8, 9, 10])
        kinds = [event.kind for event in self.events(self.tail({"after": 0}))]
        self.assertEqual(kinds, ["entry"] * 4)


class SlowReaders(TailCase):
    def test_a_reader_that_does_not_read_is_waited_for(self) -> None:
        """While a client takes nothing, nothing more is read from the store for it, and
        ingest goes on; when it reads again it gets all of it."""
        client = self.tail()
        client.transport.producer.pauseProducing()
        looks: list[int] = []
        tail = self.store.tail

        def counted(which: Any, after: int, limit: int) -> Any:
            looks.append(after)
            return tail(which, after, limit)

        self.patch(self.store, "tail", counted)
        for number in range(5):
            self.push(str(number))
            self.go_on()
        self.assertLessEqual(len(looks), 1)
        client.transport.producer.resumeProducing()
        self.go_on()
        self.assertEqual(self.messages(client), [str(number) for number in range(5)])

    def test_a_gap_is_told(self) -> None:
        """A client that had caught up and then falls too far behind is moved on, and told
        exactly what it missed (A64)."""
        client = self.tail({"max_lag": 10})
        client.transport.producer.pauseProducing()
        self.push("first")
        self.go_on()
        self.push(*(["missed"] * 300))
        client.transport.producer.resumeProducing()
        self.go_on()
        self.push("last")
        self.go_on()
        events = self.events(client)
        [gap] = [event for event in events if event.kind == "gap"]
        sent = [event.id for event in events if event.kind == "entry"]
        missed = range(gap.data["after"] + 1, gap.data["to"] + 1)
        self.assertEqual(gap.data["reason"], "slow_reader")
        self.assertEqual(sorted([*sent, *missed]), list(range(1, 303)))
        self.assertEqual(gap.id, gap.data["to"])
        self.assertEqual(events[-1].data["message"], "last")

    def test_a_reader_of_old_entries_is_not_moved_on(self) -> None:
        """Who resumes far behind gets everything, however far it is."""
        self.push(*(["old"] * 500))
        client = self.tail({"after": 0, "max_lag": 10})
        self.assertEqual(len(self.messages(client)), 500)

    def test_who_takes_nothing_is_cut_off(self) -> None:
        """A client that takes nothing for minutes is dropped, and its place is free."""
        client = self.tail()
        client.transport.producer.pauseProducing()
        self.push("x")
        self.go_on()
        self.clock.advance(301)
        self.assertTrue(client.transport.disconnecting)

    def test_nothing_is_held_for_who_does_not_read(self) -> None:
        """A tail that begins with many large entries and is not read gets one piece of them,
        and all in order when it is read: what `last` asks for is not gathered first."""
        self.push(*(str(number) + "x" * 40_000 for number in range(300)))
        client = Stuffed(self.site)
        self.addCleanup(client.lost)
        client.ask(
            "GET",
            "/api/v1/tail?last=250",
            {"Host": "127.0.0.1", "Authorization": f"Bearer {self.token()}"},
        )
        before = len(client.transport.value())
        self.assertLess(before, 3 * PIECE_BYTES)
        while client.read():
            pass
        numbers = [int(message.partition("x")[0]) for message in self.messages(client)]
        self.assertEqual(numbers, list(range(50, 300)))


class Ending(TailCase):
    def test_it_shows_that_it_lives(self) -> None:
        """An idle tail sends a comment every 15 s."""
        client = self.tail()
        before = len(client.transport.value())
        self.clock.advance(ALIVE_SECONDS)
        self.assertIn(b": alive\n\n", client.transport.value()[before:])

    def test_a_revoked_token_ends_it(self) -> None:
        """A tail ends within 15 s of its token, busy or not."""
        client = self.tail()
        self.good("/tokens/my-viewer", method="DELETE", role="admin")
        self.clock.advance(ALIVE_SECONDS)
        self.assertTrue(client.transport.disconnecting)

    def test_a_client_that_goes_leaves_nothing(self) -> None:
        """When the client goes, nothing waits for commits or time on its behalf."""
        client = self.tail()
        self.push("x")
        client.lost()
        self.go_on()
        self.assertEqual(len(self.fleet.writer._commit_waits), 0)
        self.assertEqual(
            [call for call in self.clock.getDelayedCalls() if call.getTime() > 100], []
        )
