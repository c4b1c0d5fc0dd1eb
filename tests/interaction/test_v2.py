"""v2 frames: what may be sent, what is refused, and whom the refusal concerns."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core import exchange as x
from cortextx.core.framing import LineFramer
from cortextx.errors import LocalProtocolError
from cortextx.interaction import data, v2
from cortextx.interaction.correlation import Correlation
from cortextx.interaction.faults import (
    MAX_FRAME_BYTES,
    FramingFault,
    IllegalFrame,
    ShapeFault,
)
from tests.interaction.examples import CHAIN, DATA, frame, frames, line, wire

SAMPLE = frame(data.Message("assistant", "hi"))
SAMPLE_LINE = (
    b'{"abi":"cortexfs.interaction/v2","correlation":{"connection_id":"con",'
    b'"attachment_id":"att","request_id":"req","run_id":"run","command_id":null},'
    b'"session_seq":7,"event":{"side":"slave","kind":"event","capabilities":[],"mode":null,'
    b'"session":null,"origin":null,"durable":true,'
    b'"data":{"type":"message","role":"assistant","text":"hi"}}}\n'
)


def spoilt(what: data.Data, **event: Any) -> bytes:
    """The line of a frame with other members in `event`."""
    value = wire(what)
    return line(value | {"event": value["event"] | event})


class CodecTests(SynchronousTestCase):
    def test_a_frame_has_the_contracts_members_in_its_order(self) -> None:
        self.assertEqual(v2.encode(SAMPLE), SAMPLE_LINE)
        self.assertEqual(v2.decode(SAMPLE_LINE), SAMPLE)

    def test_every_kind_comes_back_as_it_was(self) -> None:
        for what in DATA:
            self.assertEqual(v2.decode(v2.encode(frame(what))), frame(what))

    @settings(max_examples=150, deadline=None)
    @given(frames())
    def test_any_frame_comes_back_as_it_was(self, sent: v2.Frame) -> None:
        line = v2.encode(sent)
        self.assertEqual(line.count(b"\n"), 1)
        self.assertEqual(v2.decode(line, sent.side), sent)

    @settings(max_examples=40, deadline=None)
    @given(st.lists(frames(), min_size=1, max_size=4), st.integers(1, 700))
    def test_a_stream_is_the_same_whole_in_pieces_and_byte_by_byte(
        self, sent: list[v2.Frame], piece: int
    ) -> None:
        stream = b"".join(map(v2.encode, sent))
        for step in (len(stream), piece, 1):
            framer = LineFramer(MAX_FRAME_BYTES)
            got = [
                v2.parse(text)
                for at in range(0, len(stream), step)
                for text in framer.feed(stream[at : at + step])
            ]
            framer.close()
            self.assertEqual(got, sent)

    def test_members_that_are_not_declared_are_ignored(self) -> None:
        value = wire(data.Message("assistant", "hi"))
        value["x"] = value["event"]["x"] = value["correlation"]["x"] = {"a": [1, None]}
        self.assertEqual(v2.decode(line(value)), SAMPLE)

    def test_a_newline_between_the_tokens_of_kept_text_is_not_sent(self) -> None:
        command = x.Invoke("n", Raw(b'{\n "a": "b\\n"\n}'))
        encoded = v2.encode(frame(data.Command(command)))
        self.assertEqual(encoded.count(b"\n"), 1)
        self.assertIn(b'"payload":{"a":"b\\n"}', encoded)

    def test_a_frame_of_exactly_256_kib_is_sent_and_one_more_byte_is_not(self) -> None:
        room = MAX_FRAME_BYTES - len(SAMPLE_LINE) + 2
        fits = v2.encode(frame(data.Message("assistant", "x" * room)))
        self.assertEqual(len(fits), MAX_FRAME_BYTES)
        v2.decode(fits)
        longer = frame(data.Message("assistant", "x" * (room + 1)))
        self.assertRaises(LocalProtocolError, v2.encode, longer)

    def test_an_addressed_tail_is_the_frame_for_that_attachment(self) -> None:
        tail = v2.tail(SAMPLE)
        for ids in [("c2", "a2"), ('q"', "é")]:
            correlation = Correlation(*ids, "req", "run")
            other = msgspec.structs.replace(SAMPLE, correlation=correlation)
            self.assertEqual(v2.addressed(tail, *ids), v2.encode(other))


class SideTests(SynchronousTestCase):
    def test_who_sends_what_is_two_sets_that_share_status(self) -> None:
        """I3: and error, which any depth may carry, is the slave's alone."""
        self.assertEqual(v2.SENDS["master"] & v2.SENDS["slave"], {"status"})
        self.assertEqual(len(v2.SENDS["master"] | v2.SENDS["slave"]), 17)
        for what in DATA:
            side, kind = data.KINDS[type(what)]
            other = "slave" if side == "master" else "master"
            if kind == "status" and not frame(what).event.durable:
                v2.decode(spoilt(what, side=other))
            else:
                self.assertRaises(ShapeFault, v2.decode, spoilt(what, side=other))

    def test_a_frame_of_the_other_side_is_refused_and_attributed(self) -> None:
        self.assertEqual(v2.decode(SAMPLE_LINE, "slave"), SAMPLE)
        fault = self.assertRaises(ShapeFault, v2.decode, SAMPLE_LINE, "master")
        self.assertEqual(fault.correlation, SAMPLE.correlation)


class RuleTests(SynchronousTestCase):
    def test_durable_and_seq_go_together_and_only_where_they_may(self) -> None:
        """Accepted, started and done always; event, slave status and error perhaps."""
        for what in DATA:
            side, kind = data.KINDS[type(what)]
            value = wire(what)
            for durable, seq in [(False, None), (True, 1), (True, None), (False, 1), (True, 0)]:
                text = line(
                    value | {"session_seq": seq, "event": value["event"] | {"durable": durable}}
                )
                legal = (durable, seq) == (False, None) and kind not in v2.ALWAYS_DURABLE
                if side == "slave" and kind in ("accepted", "started", "done", "event", "status"):
                    legal = legal or (durable, seq) == (True, 1)
                if kind == "error":
                    legal = legal or (durable, seq) == (True, 1)
                if kind == "ack":
                    legal = (durable, seq) == (False, 1)
                if legal:
                    self.assertEqual(v2.decode(text).session_seq, seq)
                else:
                    self.assertRaises(ShapeFault, v2.decode, text)

    def test_members_stand_exactly_where_they_belong(self) -> None:
        """I3: session, mode, origin and capabilities, on no other kind, missing on none."""
        member_kinds = {
            "session": ("default", {"attach", "attached"}),
            "mode": ("interact", {"attach", "attached"}),
            "origin": ({"transport": "web"}, {"input"}),
            "capabilities": (["input"], {"hello", "welcome", "attach", "attached"}),
        }
        for what in DATA:
            kind = data.KINDS[type(what)][1]
            for member, (given_value, kinds) in member_kinds.items():
                wrong = None if kind in kinds else given_value
                if wrong is None and member == "capabilities":
                    wrong = []
                self.assertRaises(ShapeFault, v2.decode, spoilt(what, **{member: wrong}))

    def test_a_mode_wants_its_capability_and_an_observer_does_not_act(self) -> None:
        """I4."""
        what = data.Attach("a", "private")
        for mode, capabilities, legal in [
            ("observe", ["observe"], True),
            ("observe", ["observe", "status", "replay"], True),
            ("observe", ["replay"], False),
            ("observe", ["observe", "input"], False),
            ("observe", ["observe", "cancel"], False),
            ("observe", ["observe", "command_result"], False),
            ("observe", ["observe", "invoke"], False),
            ("interact", ["input"], True),
            ("interact", ["observe"], False),
            ("interact", ["input", "input"], False),
        ]:
            text = spoilt(what, mode=mode, capabilities=capabilities)
            if legal:
                self.assertEqual(v2.decode(text).event.mode, mode)
            else:
                self.assertRaises(ShapeFault, v2.decode, text)

    def test_a_frame_of_ours_that_breaks_a_rule_is_not_built(self) -> None:
        ours = self.assertRaises(IllegalFrame, data.build, data.Accepted(), CHAIN, session_seq=1)
        self.assertIsInstance(ours, LocalProtocolError)
        for seq in (None, 0, -1, 2**64):
            self.assertRaises(
                IllegalFrame, data.build, data.Accepted(), CHAIN.prefix(4), session_seq=seq
            )


class FaultTests(SynchronousTestCase):
    def test_what_is_no_line_of_json_is_a_framing_fault(self) -> None:
        """I22: the connection ends, nothing is answered to."""
        text = SAMPLE_LINE[:-1]
        for wrong in [
            b"",
            b"\n",
            text,
            text + b"\r",
            SAMPLE_LINE + b"\n",
            SAMPLE_LINE * 2,
            text + b"x\n",
            text[:-1] + b"\n",
            b"\xef\xbb\xbf" + SAMPLE_LINE,
            SAMPLE_LINE.replace(b'"hi"', b'"\xff"'),
            SAMPLE_LINE.replace(b'"hi"', b"[" * 20_000 + b"]" * 20_000),
            b"null\n",
            b"[]\n",
            b'{"a":' * 50_000 + b"\n",
        ]:
            fault = self.assertRaises(FramingFault, v2.decode, wrong)
            self.assertFalse(fault.too_long)

    def test_a_line_beyond_the_bound_says_so(self) -> None:
        line = SAMPLE_LINE[:-1] + b" " * (MAX_FRAME_BYTES - len(SAMPLE_LINE)) + b"\n"
        self.assertEqual(v2.decode(line), SAMPLE)
        fault = self.assertRaises(FramingFault, v2.decode, line[:-1] + b" \n")
        self.assertTrue(fault.too_long)
        self.assertRaises(FramingFault, v2.decode, line[:-1] + b" ")

    def test_a_fault_of_shape_concerns_the_ids_that_are_sure(self) -> None:
        """I23: no id behind a bad one, and none that the kind does not have."""
        base = wire(data.Attach("a", "private"))
        for correlation, expected in [
            ({"connection_id": "c", "attachment_id": "a", "request_id": "r"}, ("c", "a")),
            ({"connection_id": "c", "attachment_id": "a", "command_id": 5}, ("c", "a")),
            ({"connection_id": "c"}, ("c",)),
            ({"connection_id": "c", "attachment_id": "a" * 129}, ("c",)),
            ({"connection_id": "c", "attachment_id": ["a"]}, ("c",)),
            ({"connection_id": ""}, None),
            ({"attachment_id": "a"}, None),
            ("c", None),
            (None, None),
        ]:
            fault = self.assertRaises(
                ShapeFault, v2.decode, line(base | {"correlation": correlation})
            )
            self.assertEqual(fault.correlation, expected and Correlation(*expected))

    def test_an_unknown_kind_is_answered_to_all_its_ids(self) -> None:
        for kind in ("frobnicate", None, 5):
            fault = self.assertRaises(
                ShapeFault, v2.decode, spoilt(data.CommandResult(x.Accepted()), kind=kind)
            )
            self.assertEqual(fault.correlation, CHAIN)

    def test_another_abi_is_answered_to_nobody(self) -> None:
        for abi in ("cortexfs.interaction/v3", None, 5):
            fault = self.assertRaises(ShapeFault, v2.decode, line(wire(data.Ack()) | {"abi": abi}))
            self.assertIsNone(fault.correlation)

    def test_one_users_odd_text_concerns_only_that_request(self) -> None:
        """B35: a lone surrogate or 1e400 is refused, but by its grammar it is JSON."""
        text = v2.encode(frame(data.Input("hello"))).replace(b'"tty1"', b"%s")
        text = text.replace(b'"hello"', b"%s")
        for endpoint, words in [
            (b'"tty1"', b'"\\ud800"'),
            (b'"\\udfff x"', b'"hello"'),
            (b'"tty1"', b"1e400"),
            (b'"tty1"', b"[" * 126 + b"]" * 126),
        ]:
            fault = self.assertRaises(ShapeFault, v2.decode, text % (endpoint, words))
            self.assertEqual(fault.correlation, Correlation("con", "att", "req"))

    def test_a_fault_says_what_was_expected_and_never_the_peers_words(self) -> None:
        secret = "s3cr3t" * 3
        for wrong in [
            spoilt(data.Attach("a", "private"), mode=secret),
            spoilt(data.Attach("a", "private"), session=secret + "\x00"),
            spoilt(data.Input("t"), origin={"transport": "x", "thread": secret * 10}),
            line(wire(data.Ack()) | {"abi": secret}),
        ]:
            fault = self.assertRaises(ShapeFault, v2.decode, wrong)
            self.assertNotIn("s3cr3t", str(fault))

    def test_127_levels_are_the_most_anywhere(self) -> None:
        text = SAMPLE_LINE.replace(b'"hi"', b"%s")
        deep = text % (b"[" * 124 + b"]" * 124)
        self.assertEqual(v2.decode(deep).kind, "event")
        fault = self.assertRaises(ShapeFault, v2.decode, text % (b"[" * 125 + b"]" * 125))
        self.assertEqual(fault.correlation, SAMPLE.correlation)

    @settings(max_examples=150, deadline=None)
    @given(frames(), st.integers(0, 10_000), st.binary(max_size=3))
    def test_a_damaged_line_is_a_frame_or_a_fault_and_nothing_else(
        self, sent: v2.Frame, place: int, junk: bytes
    ) -> None:
        damaged = bytearray(v2.encode(sent))
        place %= len(damaged)
        damaged[place : place + 1] = junk
        try:
            got = v2.decode(bytes(damaged))
            v2.decode(v2.encode(got))
            data.read(got)
        except (FramingFault, ShapeFault) as fault:
            if isinstance(fault, ShapeFault):
                answer = data.fault_frame(fault)
                if answer is not None:
                    v2.decode(v2.encode(answer))
