"""Session keys and request ids are deployed hosts' (C2, C4), and origins fit the ABI (C1)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from twisted.trial.unittest import SynchronousTestCase

from cortextx.channel import values
from cortextx.channel.origins import CUT, WHOLE, identifier, origin_of
from cortextx.channel.route import (
    BadRoute,
    Naming,
    RouteKey,
    event_id,
    event_text,
    family,
    fnv1a64,
    is_channel,
    is_conversation,
)
from cortextx.core.exchange import MAX_METADATA_BYTES, Origin
from tests.channel import rows

TARGET = values.MessageTarget("telegram.primary", "42")
TYPING = values.SeenTyping(values.EventContext(TARGET), True)


class NameTests(SynchronousTestCase):
    def test_a_channel_is_1_to_64_of_its_letters(self) -> None:
        for text in ("a", "telegram.primary", "a" * 64, "0-_.", ".."):
            self.assertTrue(is_channel(text), text)
        for text in ("", "a" * 65, "Telegram", "a b", "a/b", "канал", "a\n"):
            self.assertFalse(is_channel(text), repr(text))

    def test_a_conversation_is_bounded(self) -> None:
        self.assertTrue(is_conversation("é" * 128))
        for text in ("", "é" * 128 + "a", "a\0b"):
            self.assertFalse(is_conversation(text))

    def test_the_family_ends_at_the_first_dot(self) -> None:
        self.assertEqual(family("telegram.primary.eu"), "telegram")
        self.assertEqual(family("irc"), "irc")

    def test_names_of_agents_and_prefixes_are_judged(self) -> None:
        for agent, prefix in [("a", ".."), ("a" * 128, "p" * 64), ("x.y", "IM_1.x")]:
            self.assertEqual(Naming(agent, prefix).prefix, prefix)
        for agent in ("", ".", "..", "index", "a/b", "a" * 129, "a\n"):
            fault = self.assertRaises(BadRoute, Naming, agent)
            self.assertEqual(fault.field, "agent")
        for prefix in ("", "p" * 65, "a/b", "é", "a\n"):
            fault = self.assertRaises(BadRoute, Naming, "agent", prefix)
            self.assertEqual(fault.field, "prefix")


class KeyTests(SynchronousTestCase):
    def test_the_hash_is_fnv_1a(self) -> None:
        """Two published values, and the offset for nothing."""
        self.assertEqual(fnv1a64(b""), 0xCBF29CE484222325)
        self.assertEqual(fnv1a64(b"a"), 0xAF63DC4C8601EC8C)
        self.assertEqual(fnv1a64(b"foobar"), 0x85944171F73967E8)

    @settings(max_examples=60, deadline=None)
    @given(st.binary(max_size=40), st.binary(max_size=40))
    def test_hashing_goes_on_from_what_came_before(self, first: bytes, second: bytes) -> None:
        self.assertEqual(fnv1a64(second, fnv1a64(first)), fnv1a64(first + second))

    def test_isolation_keeps_senders_apart_and_else_they_share(self) -> None:
        shared, isolated = Naming("agent"), Naming("agent", isolated=True)
        self.assertEqual(shared.key_for(TARGET, "u1"), shared.key_for(TARGET, "u2"))
        mine, other = isolated.key_for(TARGET, "u1"), isolated.key_for(TARGET, "u2")
        self.assertNotEqual(isolated.session(mine), isolated.session(other))

    def test_nobody_has_no_session_of_their_own(self) -> None:
        """What belongs to no one is in no one's private session."""
        fault = self.assertRaises(BadRoute, Naming("agent", isolated=True).key_for_event, TYPING)
        self.assertEqual(fault.field, "sender")
        self.assertEqual(Naming("agent").key_for_event(TYPING), RouteKey("telegram.primary", "42"))

    def test_two_places_may_have_one_name_so_the_key_is_kept(self) -> None:
        """C2: a NUL in a part is enough for a collision, and the keys still differ."""
        one, two = RouteKey("a", "b\0c"), RouteKey("a", "b", "c")
        self.assertEqual(Naming("agent").session(one), Naming("agent").session(two))
        self.assertNotEqual(one, two)

    def test_a_message_that_comes_twice_is_one_request(self) -> None:
        """B43: whatever else is said about it, the id is the place's and the message's."""
        naming = Naming("agent")
        sender = values.Participant("u1")
        first = values.InboundMessage("m1", TARGET, sender, values.Body("hi"), 1)
        again = replace(first, body=values.Body("edited"), timestamp_ms=2)
        ids = [
            naming.request_id(naming.key_for_message(message), message.id)
            for message in (first, again, replace(first, id="m2"))
        ]
        self.assertEqual(ids[0], ids[1])
        self.assertNotEqual(ids[0], ids[2])


class EventTests(SynchronousTestCase):
    def test_the_text_is_compact_with_metadata_by_name(self) -> None:
        """C4."""
        context = values.EventContext(TARGET, metadata={"b": "2", "a": "1"})
        event = replace(TYPING, context=context)
        self.assertEqual(
            event_text(event),
            b'{"type":"typing","context":{"target":{"channel":"telegram.primary",'
            b'"conversation":"42","thread":null,"reply_to":null},"participant":null,'
            b'"timestamp_ms":null,"metadata":{"a":"1","b":"2"}},"active":true}',
        )

    @settings(max_examples=60, deadline=None)
    @given(rows.incoming_event)
    def test_the_id_does_not_depend_on_the_order_of_metadata(
        self, event: values.IncomingEvent
    ) -> None:
        turned = dict(reversed(event.context.metadata.items()))
        other = replace(event, context=replace(event.context, metadata=turned))
        self.assertEqual(event_id(other), event_id(event))


class OriginTests(SynchronousTestCase):
    def test_an_origin_names_no_types_of_a_platform(self) -> None:
        target = values.MessageTarget("telegram.primary", "42", "t1", "m0")
        self.assertEqual(
            origin_of(target, values.Participant("u1", "U"), {"lang": "en"}),
            Origin("telegram", "telegram.primary", "u1", "42", "t1", {"lang": "en"}),
        )

    def test_a_long_id_becomes_a_digest_and_stands_in_the_metadata(self) -> None:
        """C1: 128 bytes are kept, 129 are not."""
        fits, long = "c" * 128, "é" * 65
        origin = origin_of(values.MessageTarget("matrix", fits, long))
        self.assertEqual(origin.conversation, fits)
        self.assertEqual(origin.thread, identifier(long))
        self.assertRegex(origin.thread or "", r"\Ah-[0-9a-f]{32}\Z")
        self.assertEqual(origin.metadata, {WHOLE + "thread": long})

    def test_the_digest_is_blake3(self) -> None:
        self.assertEqual(identifier(""), "h-af1349b9f5f9a1a6a0404dea36dcc949")

    def test_a_driver_cannot_write_marks_of_ours(self) -> None:
        origin = origin_of(TARGET, None, {WHOLE + "thread": "forged", CUT: "x", "k": "v"})
        self.assertEqual(origin.metadata, {"k": "v"})

    def test_what_does_not_fit_is_left_out_and_named(self) -> None:
        huge = "x" * MAX_METADATA_BYTES
        target = values.MessageTarget("matrix", "c", huge)
        origin = origin_of(target, None, {"big": huge, "small": "s"})
        self.assertEqual(origin.metadata, {"small": "s", CUT: f"{WHOLE}thread,big"})

    @settings(max_examples=60, deadline=None)
    @given(rows.target, st.none() | rows.participant, rows.metadata)
    def test_every_origin_is_one_that_v2_takes(
        self,
        target: values.MessageTarget,
        sender: values.Participant | None,
        metadata: dict[str, str],
    ) -> None:
        """I2 holds for every part, whatever a platform calls things."""
        self.assertTrue(origin_of(target, sender, metadata).strict)
