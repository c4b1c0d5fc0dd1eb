"""Channel frames: bounds, faults that say where, directions, and round trips."""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from twisted.trial.unittest import SynchronousTestCase

from cortextx.channel import effects, frames, values
from cortextx.channel.faults import FramingFault, IllegalValue, ShapeFault
from cortextx.channel.frames import MAX_FRAME_BYTES, decode, decode_line, encode
from cortextx.core import exchange
from cortextx.core.framing import LineFramer
from cortextx.errors import LocalProtocolError
from tests.channel.rows import FRAMES, any_frame

TARGET = values.MessageTarget("irc.primary", "#room")
START = b'{"abi":"cortexfs.channel.socket/v1","frame":{"type":"start","request_id":"r"}}\n'


def framed(body: bytes) -> bytes:
    """A line with this frame in it, without its newline."""
    return b'{"abi":"cortexfs.channel.socket/v1","frame":%s}' % body


def tag(kind: type[Any]) -> str:
    return str(kind.__struct_config__.tag)


class DirectionTests(SynchronousTestCase):
    def test_the_sets_are_the_contracts(self) -> None:
        either = "health_request health_response event error"
        for kinds, names in [
            (
                frames.FROM_DRIVER,
                f"hello inbound inbound_event command_result receipt health {either}",
            ),
            (frames.TO_DRIVER, f"start stop deliver outbound effect command {either}"),
            (frames.FROM_CONTROLLER, f"control_hello control_request {either}"),
            (frames.TO_CONTROLLER, f"control_response {either}"),
        ]:
            self.assertEqual({tag(kind) for kind in kinds}, set(names.split()))

    def test_every_frame_is_somebodys(self) -> None:
        union = (
            frames.FROM_DRIVER | frames.TO_DRIVER | frames.FROM_CONTROLLER | frames.TO_CONTROLLER
        )
        self.assertEqual(union, frames.ALL)
        self.assertEqual(set(FRAMES), frames.ALL)

    def test_a_frame_of_the_other_side_is_refused_and_can_be_answered(self) -> None:
        line = START[:-1]
        self.assertEqual(decode(line, frames.TO_DRIVER), frames.Start("r"))
        for kinds in (frames.FROM_DRIVER, frames.FROM_CONTROLLER, frames.TO_CONTROLLER):
            fault = self.assertRaises(ShapeFault, decode, line, kinds)
            self.assertEqual((fault.field, fault.request_id), ("$.frame.type", "r"))


class FaultTests(SynchronousTestCase):
    """A refusal says which member is at fault, and never what the peer wrote."""

    def test_the_member_at_fault_is_named(self) -> None:
        target = b'{"channel":"irc","conversation":"c"}'
        context = b'{"target":{"channel":"irc","conversation":"c","thread":""}}'
        for body, field in [
            (b'{"type":"start"}', "$.frame.request_id"),
            (b'{"type":"start","request_id":""}', "$.frame.request_id"),
            (b'{"type":"start","request_id":7}', "$.frame.request_id"),
            (b'{"type":"nope","request_id":"r"}', "$.frame.type"),
            (b'{"request_id":"r"}', "$.frame.type"),
            (b"null", "$.frame"),
            (
                b'{"type":"deliver","request_id":"r","message":{"target":%s,"body":{"text":""}}}'
                % target,
                "$.frame.message.body.text",
            ),
            (
                b'{"type":"deliver","request_id":"r","message":{"target":%s,"body":'
                b'{"text":"","attachments":[{"url":"u"},{"url":""}]}}}' % target,
                "$.frame.message.body.attachments[1].url",
            ),
            (
                b'{"type":"outbound","request_id":"r","message":{"target":'
                b'{"channel":"irc","conversation":"%s"},"body":{"text":"x"}}}' % (b"c" * 257),
                "$.frame.message.target.conversation",
            ),
            (
                b'{"type":"inbound_event","event_id":"e","event":'
                b'{"type":"typing","context":%s,"active":true}}' % context,
                "$.frame.event.context.target.thread",
            ),
            (
                b'{"type":"effect","request_id":"r","target":%s,"effect":'
                b'{"type":"pin","message_id":"\\u0000"}}' % target,
                "$.frame.effect.message_id",
            ),
            (
                b'{"type":"hello","request_id":"r","channel":"c","capabilities":{"send":1}}',
                "$.frame.capabilities.send",
            ),
            (
                b'{"type":"receipt","request_id":"r","receipt":{"channel":"c","message_id":"m",'
                b'"target":%s,"timestamp_ms":18446744073709551616}}' % target,
                "$.frame.receipt.timestamp_ms",
            ),
        ]:
            fault = self.assertRaises(ShapeFault, decode, framed(body))
            self.assertEqual(fault.field, field, body)

    def test_an_answer_names_the_request_or_the_event(self) -> None:
        for body, name in [
            (b'{"type":"effect","request_id":"r"}', "r"),
            (b'{"type":"inbound","event_id":"e"}', "e"),
            (b'{"type":"effect","request_id":"\\u0000"}', None),
            (b'{"type":"effect","request_id":5}', None),
            (b'["effect","r"]', None),
            (b"7", None),
        ]:
            fault = self.assertRaises(ShapeFault, decode, framed(body))
            self.assertEqual(fault.request_id, name, body)
            answer = frames.refusal(fault)
            self.assertEqual((answer.request_id, answer.code), (name, "EINVAL"))
            self.assertEqual(decode_line(encode(answer)), answer)

    def test_a_refusal_does_not_repeat_the_peer(self) -> None:
        secret = b"hunter2"
        for body in (
            b'{"type":"%s"}' % secret,
            b'{"type":"start","request_id":{"%s":1}}' % secret,
            b'{"type":"health","health":{"state":"%s"}}' % secret,
        ):
            fault = self.assertRaises(ShapeFault, decode, framed(body))
            self.assertNotIn(secret.decode(), frames.refusal(fault).message)

    def test_malformed_bytes_are_a_fault_of_framing(self) -> None:
        """I22: nothing is resynchronised."""
        for text in (
            b"",
            b"{",
            b'"\xff"',
            b"{}\r\n",
            START,
            b"[" * 128 + b"]" * 128,
            framed(b'{"type":"start","request_id":"\\ud800"}'),
        ):
            self.assertRaises(FramingFault, decode, text)
        for line in (b"", b"\n", b"\n\n", START[:-1], START + b"\n", START + START):
            self.assertRaises(FramingFault, decode_line, line)

    def test_another_abi_is_a_fault_of_shape(self) -> None:
        fault = self.assertRaises(ShapeFault, decode_line, START.replace(b"/v1", b"/v2"))
        self.assertEqual((fault.field, fault.request_id), ("$.abi", "r"))

    def test_a_number_beyond_range_is_refused_where_nobody_reads_it(self) -> None:
        text = framed(b'{"type":"start","request_id":"r","zz":[1e999]}')
        self.assertRaises(ShapeFault, decode, text)


class BoundTests(SynchronousTestCase):
    def test_a_frame_has_at_most_256_kib_with_its_newline(self) -> None:
        def text_of(size: int) -> frames.Deliver:
            return frames.Deliver("r", values.OutboundMessage(TARGET, values.Body("a" * size)))

        room = MAX_FRAME_BYTES - len(encode(text_of(1))) + 1
        line = encode(text_of(room))
        self.assertEqual(len(line), MAX_FRAME_BYTES)
        self.assertEqual(decode_line(line), text_of(room))
        self.assertRaises(LocalProtocolError, encode, text_of(room + 1))
        longer = line[:-1] + b" \n"
        fault = self.assertRaises(FramingFault, decode_line, longer)
        self.assertTrue(fault.too_long)
        self.assertEqual(frames.refusal(fault).code, "EMSGSIZE")
        self.assertRaises(FramingFault, decode, longer[:-1])

    def test_values_are_checked_when_they_are_built(self) -> None:
        long = "a" * 257
        for make in (
            lambda: frames.Start(""),
            lambda: frames.Start(long),
            lambda: frames.Inbound("\0", None),  # type: ignore[arg-type]
            lambda: values.MessageTarget("", "c"),
            lambda: values.MessageTarget("c", ""),
            lambda: values.MessageTarget("c", "a\0b"),
            lambda: values.MessageTarget("c", "a", "\0"),
            lambda: values.Participant(""),
            lambda: values.Body(""),
            lambda: values.Body("a\0"),
            lambda: values.Attachment(""),
            lambda: values.Attachment("u", "\0"),
            lambda: values.EventContext(values.MessageTarget(long, "c")),
            lambda: values.EventContext(TARGET, metadata={"": "x"}),
            lambda: values.EventContext(TARGET, timestamp_ms=-1),
            lambda: effects.React("m", "", False),
            lambda: effects.ControlCommand("s", "", exchange.RequestInput("?")),
            lambda: frames.ErrorFrame(code=long, message="m", retryable=False),
            lambda: frames.EffectFrame("r", values.MessageTarget("c", long), effects.Typing(True)),
        ):
            self.assertRaises(IllegalValue, make)

    def test_a_message_id_of_an_effect_or_receipt_may_be_long(self) -> None:
        """Some platforms' ids are; refusing a receipt would make its message unknown (C3)."""
        long = "m" * 1000
        for frame in (
            frames.EffectFrame("r", TARGET, effects.Delete(long)),
            frames.ReceiptFrame("r", values.Receipt("irc", long, TARGET)),
        ):
            self.assertEqual(decode_line(encode(frame)), frame)

    def test_a_controller_may_send_to_a_target_that_the_host_must_judge(self) -> None:
        far = values.MessageTarget("irc", "c" * 300)
        send = effects.Send(values.OutboundMessage(far, values.Body("x")))
        frame = frames.ControlRequest("r", send)
        self.assertEqual(decode_line(encode(frame)), frame)
        self.assertRaises(IllegalValue, frames.Outbound, "r", send.message)


class EncodingTests(SynchronousTestCase):
    def test_null_is_sent_and_what_is_optional_is_not(self) -> None:
        context = values.EventContext(TARGET)
        cases: list[tuple[frames.Frame, bytes]] = [
            (
                frames.InboundEvent("e", values.SeenTyping(context, True)),
                b'{"type":"inbound_event","event_id":"e","event":{"type":"typing","context":'
                b'{"target":{"channel":"irc.primary","conversation":"#room","thread":null,'
                b'"reply_to":null},"participant":null,"timestamp_ms":null},"active":true}}',
            ),
            (
                frames.CommandFrame("r", "s", "c", exchange.RequestInput("?")),
                b'{"type":"command","request_id":"r","session":"s","command_id":"c",'
                b'"command":{"type":"request_input","prompt":"?"}}',
            ),
            (
                frames.ControlRequest(
                    "r", effects.ControlCommand("s", "c", exchange.Notify("info", "t"))
                ),
                b'{"type":"control_request","request_id":"r","action":{"type":"command",'
                b'"session":"s","command_id":"c","command":{"type":"notify","level":"info",'
                b'"text":"t"},"target":null}}',
            ),
            (
                frames.Hello("r", "irc", {}),
                b'{"type":"hello","request_id":"r","channel":"irc","capabilities":{}}',
            ),
            (
                frames.ErrorFrame(code="busy", message="later", retryable=True),
                b'{"type":"error","request_id":null,"code":"busy","message":"later",'
                b'"retryable":true}',
            ),
        ]
        for frame, text in cases:
            self.assertIn(b'"frame":' + text + b"}\n", encode(frame))

    def test_kept_text_with_line_breaks_still_makes_one_line(self) -> None:
        frame = frames.CommandResult("r", "s", "c", exchange.Value(Raw(b'{\n "a": "b\\n"\n}')))
        line = encode(frame)
        self.assertEqual(line.count(b"\n"), 1)
        decoded = decode_line(line)
        assert isinstance(decoded, frames.CommandResult)
        self.assertEqual(decoded.result, exchange.Value(Raw(b'{  "a": "b\\n" }')))

    def test_a_lone_surrogate_is_not_sent(self) -> None:
        message = values.OutboundMessage(TARGET, values.Body("\ud800"))
        self.assertRaises(LocalProtocolError, encode, frames.Deliver("r", message))

    @settings(max_examples=150, deadline=None)
    @given(st.data())
    def test_every_frame_comes_back_as_it_was(self, data: st.DataObject) -> None:
        kind = data.draw(st.sampled_from(sorted(FRAMES, key=tag)))
        frame = data.draw(FRAMES[kind])
        line = encode(frame)
        self.assertEqual(line.count(b"\n"), 1)
        self.assertEqual(decode_line(line, frozenset({kind})), frame)

    @settings(max_examples=40, deadline=None)
    @given(st.lists(any_frame, max_size=4), st.integers(1, 80))
    def test_a_stream_of_frames_survives_any_cutting(self, sent: list[Any], step: int) -> None:
        data = b"".join(map(encode, sent))
        framer = LineFramer(MAX_FRAME_BYTES)
        got: list[Any] = []
        for start in range(0, len(data), step):
            got += map(decode, framer.feed(data[start : start + step]))
        framer.close()
        self.assertEqual(got, sent)

    @settings(max_examples=150, deadline=None)
    @given(st.binary(max_size=60), st.integers(0, 200), st.integers(0, 40))
    def test_damage_is_a_fault_and_nothing_else(self, junk: bytes, at: int, cut: int) -> None:
        """Whatever comes, only faults of ours leave the decoder."""
        line = START[:at] + junk + START[at + cut :]
        with contextlib.suppress(FramingFault, ShapeFault):
            self.assertIsInstance(decode_line(line), tuple(frames.ALL))
