"""The data of each kind has one shape, and a reader ignores what it does not know (I20)."""

from __future__ import annotations

import msgspec
from msgspec import Raw
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core import exchange as x
from cortextx.core.jsontext import encode
from cortextx.interaction import data, v2
from cortextx.interaction.data import DEFAULT_LIMITS, Limits
from cortextx.interaction.faults import Code, IllegalFrame, ShapeFault
from tests.interaction.examples import CHAIN, COMMAND, DATA, frame, line, wire

TEXTS: list[tuple[data.Data, bytes]] = [
    (
        data.Hello(("a",), ("b",), "m"),
        b'{"versions":["a"],"fallback_versions":["b"],"master_id":"m"}',
    ),
    (
        data.Attach("executor", "private", after_session_seq=41),
        b'{"agent":"executor","scope":"private","after_session_seq":41}',
    ),
    (data.Attach("a", "shared", "team"), b'{"agent":"a","scope":"shared","space":"team"}'),
    (
        data.Attached("a", "private", 42, 50),
        b'{"agent":"a","scope":"private","replay_from":42,"head":50}',
    ),
    (data.Detach(), b"{}"),
    (data.Ack(), b"{}"),
    (data.Gap(1, 9, "retention"), b'{"from_seq":1,"to_seq":9,"reason":"retention"}'),
    (
        data.Input("t", Raw(b'{"a":1}'), "/srv", "/srv"),
        b'{"text":"t","event":{"a":1},"cwd":"/srv","workspace":"/srv"}',
    ),
    (data.Input("t"), b'{"text":"t"}'),
    (
        data.SessionState("active", None, 3, 50),
        b'{"status":"active","phase":null,"step":3,"head":50}',
    ),
    (data.Started(None), b'{"model":null}'),
    (data.Delta("d"), b'{"type":"delta","text":"d"}'),
    (data.Delta("d", 1, 2), b'{"type":"delta","text":"d","part":1,"parts":2}'),
    (data.Message("user", "t"), b'{"type":"message","role":"user","text":"t"}'),
    (
        data.Tool("k", "ls", "requested"),
        b'{"type":"tool","call_id":"k","name":"ls","state":"requested"}',
    ),
    (
        data.CommandResolved("c", None, "expired"),
        b'{"type":"command","command_id":"c","effect_id":null,"state":"expired"}',
    ),
    (
        data.Command(COMMAND, "e"),
        b'{"command":{"type":"request_approval","tool":"sh","arguments":{"cmd":"ls"}},'
        b'"effect_id":"e"}',
    ),
    (data.CommandResult(x.Rejected("no")), b'{"result":{"type":"rejected","reason":"no"}}'),
    (data.Done("completed"), b'{"status":"completed"}'),
    (
        data.Done("error", data.Error("internal", "m", False)),
        b'{"status":"error","error":{"code":"internal","message":"m","retryable":false}}',
    ),
]

REFUSED: list[tuple[data.Data, list[bytes]]] = [
    (
        DEFAULT_LIMITS,
        [b"{}", encode(DEFAULT_LIMITS).replace(b"1024", b"0")]
        + [encode(DEFAULT_LIMITS).replace(b"1024", wrong) for wrong in (b"-1", b"1e9", b"null")],
    ),
    (
        data.Attach("a", "private"),
        [
            b"{}",
            b'{"scope":"private"}',
            b'{"agent":"a"}',
            b'{"agent":"a/b","scope":"private"}',
            b'{"agent":"index","scope":"private"}',
            b'{"agent":"a","scope":"secret"}',
            b'{"agent":"a","scope":"private","space":"s"}',
            b'{"agent":"a","scope":"shared","space":".."}',
            b'{"agent":"a","scope":"private","after_session_seq":-1}',
            b'{"agent":"a","scope":"private","after_session_seq":1.5}',
            b'{"agent":"a","scope":"private","after_session_seq":18446744073709551616}',
            b'{"agent":"a","scope":"private","owner":-1}',
        ],
    ),
    (
        data.Input("t"),
        [
            b"{}",
            b'{"text":null}',
            b'{"text":"t","event":"x"}',
            b'{"text":"t","event":[]}',
            b'{"text":"t","event":{"a":"' + b"x" * 65_530 + b'"}}',
        ],
    ),
    (data.Command(COMMAND), [b"{}", b'{"command":{"type":"x"}}', b'{"command":null}']),
    (
        data.CommandResult(x.Accepted()),
        [b"{}", b'{"result":"accepted"}', b'{"result":{"type":"accepted"},"effect_id":""}'],
    ),
    (data.Done("completed"), [b"{}", b'{"status":"ok"}', b'{"status":"error","error":{}}']),
    (data.Error("busy", "m", True), [b"{}", b'{"code":"busy","message":"m"}']),
    (data.Gap(1, 1, ""), [b'{"from_seq":0,"to_seq":1,"reason":""}', b'{"from_seq":2}']),
    (data.Delta(""), [b"{}", b'{"type":5}', b'{"type":"delta"}', b'{"type":"tool","name":"n"}']),
]


class ShapeTests(SynchronousTestCase):
    def test_every_shape_has_its_text_and_back(self) -> None:
        for what, text in TEXTS:
            sent = frame(what)
            self.assertEqual(bytes(sent.event.data), text)
            self.assertEqual(data.read(sent), what)

    def test_every_kind_has_data_and_only_event_has_several_types(self) -> None:
        self.assertEqual({type(what) for what in DATA}, set(data.KINDS))
        sorts = {sort for sort in data.KINDS.values() if sort[1] != "event"}
        self.assertEqual(sorts, {(s, k) for s in v2.SENDS for k in v2.SENDS[s]} - {data._EVENT})

    def test_members_that_are_not_declared_are_ignored(self) -> None:
        for what in DATA:
            value = wire(what)
            value["event"]["data"]["x_unknown"] = {"a": [1]}
            self.assertEqual(data.read(v2.decode(line(value))), what)

    def test_what_is_missing_or_mistyped_concerns_the_whole_chain_of_the_frame(self) -> None:
        """I23: the frame itself is legal, so its ids are safe."""
        for what, texts in REFUSED:
            for text in texts:
                sent = frame(what)
                event = msgspec.structs.replace(sent.event, data=Raw(text))
                spoilt = v2.decode(v2.encode(msgspec.structs.replace(sent, event=event)))
                fault = self.assertRaises(ShapeFault, data.read, spoilt)
                self.assertEqual(fault.correlation, sent.correlation)
                self.assertTrue(fault.field.startswith("$.event.data"), fault.field)

    def test_an_event_of_an_unknown_type_is_opaque(self) -> None:
        sent = frame(data.Delta("d"))
        event = msgspec.structs.replace(sent.event, data=Raw(b'{"type":"later","text":5}'))
        got = data.read(msgspec.structs.replace(sent, event=event))
        self.assertEqual(got, data.Opaque("later"))

    def test_absent_and_null_are_the_same(self) -> None:
        sent = frame(data.Attach("a", "private"))
        text = Raw(b'{"agent":"a","scope":"private","space":null,"after_session_seq":null}')
        event = msgspec.structs.replace(sent.event, data=text)
        got = data.read(msgspec.structs.replace(sent, event=event))
        self.assertEqual(got, data.Attach("a", "private"))

    def test_data_of_ours_is_checked_when_it_is_built(self) -> None:
        self.assertRaises(IllegalFrame, data.Attach, "a/b", "private")
        self.assertRaises(IllegalFrame, data.Attach, "a", "private", "space")
        self.assertRaises(IllegalFrame, data.Gap, 2, 1, "r")
        self.assertRaises(IllegalFrame, data.Input, "t", Raw(b"[]"))
        self.assertRaises(IllegalFrame, data.Command, COMMAND, "a\n")

    def test_a_session_is_a_name(self) -> None:
        """I41: a bad one is a fault of the attachment, though the frame is legal."""
        for name, legal in [("default", True), ("a.b-c_d", True), ("a" * 128, True)] + [
            (wrong, False) for wrong in ("a/b", "..", ".", "index", "a b", "é")
        ]:
            for what in (data.Attach("a", "private"), data.Attached("a", "private", 1, 0)):
                sent = frame(what)
                event = msgspec.structs.replace(sent.event, session=name)
                sent = v2.decode(v2.encode(msgspec.structs.replace(sent, event=event)))
                if legal:
                    self.assertEqual(data.read(sent), what)
                else:
                    fault = self.assertRaises(ShapeFault, data.read, sent)
                    self.assertEqual(fault.correlation, CHAIN.prefix(2))


class LimitsTests(SynchronousTestCase):
    def test_the_defaults_stand_flat_in_a_welcome(self) -> None:
        """I16, I20."""
        self.assertEqual(
            msgspec.json.decode(frame(DEFAULT_LIMITS).event.data),
            {
                "max_attachments": 64,
                "max_pending_requests_per_attachment": 32,
                "max_pending_commands_per_attachment": 16,
                "max_unacked_events_per_attachment": 1024,
                "max_outbound_bytes_per_attachment": 1_048_576,
                "max_outbound_bytes_per_connection": 8_388_608,
                "max_replay_events_per_batch": 256,
                "max_frame_bytes": 262_144,
            },
        )

    def test_a_welcome_may_leave_out_only_the_bound_of_frames(self) -> None:
        whole = msgspec.to_builtins(DEFAULT_LIMITS)
        for name in whole:
            less = encode({other: whole[other] for other in whole if other != name})
            if name == "max_frame_bytes":
                self.assertEqual(msgspec.json.decode(less, type=Limits), DEFAULT_LIMITS)
            else:
                self.assertRaises(msgspec.ValidationError, msgspec.json.decode, less, type=Limits)


class AnswerTests(SynchronousTestCase):
    def test_a_fault_is_answered_to_its_prefix_or_not_at_all(self) -> None:
        for depth in range(1, 6):
            answer = data.fault_frame(ShapeFault("$.x", "y", CHAIN.prefix(depth)))
            assert answer is not None
            self.assertEqual(answer.correlation, CHAIN.prefix(depth))
            self.assertEqual(data.read(answer), data.Error("bad_frame", "$.x: expected y", False))
        self.assertIsNone(data.fault_frame(ShapeFault("$.x", "y")))

    def test_the_codes_are_those_of_the_ruling_and_each_has_an_errno(self) -> None:
        """I7; a request_conflict is EINVAL in v1."""
        self.assertEqual(len(Code), 21)
        self.assertEqual(Code.REQUEST_CONFLICT.errno, "EINVAL")
        self.assertEqual(Code.SESSION_IO.errno, "EIO")
        for code in Code:
            self.assertRegex(code.errno, r"\AE[A-Z]+\Z")
        self.assertTrue(Code.BUSY.retryable)
        self.assertFalse(Code.REQUEST_CONFLICT.retryable)

    def test_our_version_is_selected_where_it_is_offered(self) -> None:
        self.assertEqual(data.selected_version(data.Hello(("x/v9", v2.ABI))), v2.ABI)
        for versions in ((), ("cortexfs.interaction/v1",), ("x/v9",)):
            self.assertIsNone(data.selected_version(data.Hello(versions)))
