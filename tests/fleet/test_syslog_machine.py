# ruff: noqa: E501
"""Syslog messages and their framing: RFC 5424, RFC 3164, RFC 6587, and what devices send."""

from __future__ import annotations

import itertools
import json
from base64 import b64decode
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.syslog import SEVERITIES
from cortextx.fleet.agent.entries import moment_text
from cortextx.fleet.agent.sources.syslog_framing import (
    MAX_FRAME,
    PART_BYTES,
    Frame,
    FramingFault,
    SyslogFramer,
)
from cortextx.fleet.agent.sources.syslog_machine import (
    SyslogEncoder,
    SyslogParser,
    structured_data,
)

CEST = timezone(timedelta(hours=2))
NOW = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()) * 1_000_000
ARRIVED = moment_text(NOW)
SD = {"exampleSDID@32473": {"iut": "3", "eventSource": "Application", "eventID": "1011"}}

# text, ts, severity, facility, app_name, process_id, message, facts
RFC_5424 = [
    # §6.5, examples 1 to 4
    ("<34>1 2003-10-11T22:14:15.003Z mymachine.example.com su - ID47 - \ufeff'su root' failed for lonvick on /dev/pts/8",
     "2003-10-11T22:14:15.003Z", "crit", "auth", "su", None, "'su root' failed for lonvick on /dev/pts/8",
     {"hostname": "mymachine.example.com", "msgid": "ID47"}),
    ("<165>1 2003-08-24T05:14:15.000003-07:00 192.0.2.1 myproc 8710 - - %% It's time to make the do-nuts.",
     "2003-08-24T05:14:15.000003-07:00", "notice", "local4", "myproc", "8710", "%% It's time to make the do-nuts.",
     {"hostname": "192.0.2.1"}),
    ('<165>1 2003-10-11T22:14:15.003Z mymachine.example.com evntslog - ID47 [exampleSDID@32473 iut="3" eventSource="Application" eventID="1011"] \ufeffAn application event log entry...',
     "2003-10-11T22:14:15.003Z", "notice", "local4", "evntslog", None, "An application event log entry...",
     {"hostname": "mymachine.example.com", "msgid": "ID47", "structured_data": SD}),
    ('<165>1 2003-10-11T22:14:15.003Z mymachine.example.com evntslog - ID47 [exampleSDID@32473 iut="3" eventSource="Application" eventID="1011"][examplePriority@32473 class="high"]',
     "2003-10-11T22:14:15.003Z", "notice", "local4", "evntslog", None, "",
     {"hostname": "mymachine.example.com", "msgid": "ID47",
      "structured_data": {**SD, "examplePriority@32473": {"class": "high"}}}),
    # nothing is known
    ("<0>1 - - - - - -", ARRIVED, "emerg", "kern", None, None, "", {}),
    ("<191>1 - - - - - - x", ARRIVED, "debug", "local7", None, None, "x", {}),
    # escapes, and a name that is repeated
    (r'<13>1 - h a 1 m [x@1 a="q\"b\\c\]d\n" ip="1" ip="2"] t', ARRIVED, "notice", "user", "a", "1", "t",
     {"hostname": "h", "msgid": "m", "structured_data": {"x@1": {"a": r'q"b\c]d\n', "ip": ["1", "2"]}}}),
    ('<13>1 - - - - - [e][x@1 a="]"] [t] x', ARRIVED, "notice", "user", None, None, "[t] x",
     {"structured_data": {"e": {}, "x@1": {"a": "]"}}}),
    # malformed, and nothing of it is lost
    ('<13>1 - - a - - [x@1 a="1] t', ARRIVED, "notice", "user", "a", None, '[x@1 a="1] t', {"malformed": "structured_data"}),
    ("<13>1 - - a - - text without data", ARRIVED, "notice", "user", "a", None, "text without data", {"malformed": "structured_data"}),
    ("<13>1 2003-13-11T22:14:15Z - a - - - t", ARRIVED, "notice", "user", "a", None, "t",
     {"malformed": "timestamp", "timestamp": "2003-13-11T22:14:15Z"}),
    ("<13>1 2003-10-11T22:14:15.003Zx - a - - - t", ARRIVED, "notice", "user", "a", None, "t",
     {"malformed": "timestamp", "timestamp": "2003-10-11T22:14:15.003Zx"}),
    ("<13>1 2016-12-31T23:59:60Z - a - - - t", "2016-12-31T23:59:59Z", "notice", "user", "a", None, "t", {}),
    ("<13>1 too short", ARRIVED, "notice", "user", None, None, "1 too short", {}),
    ("<192>1 - - a - - - t", ARRIVED, "notice", "user", None, None, "<192>1 - - a - - - t", {"malformed": "pri"}),
    ("<013>1 - - a - - - t", ARRIVED, "notice", "user", None, None, "<013>1 - - a - - - t", {"malformed": "pri"}),
]  # fmt: skip

RFC_3164 = [
    # §5.4
    ("<34>Oct 11 22:14:15 mymachine su: 'su root' failed for lonvick on /dev/pts/8", "2025-10-11T22:14:15+02:00",
     "crit", "auth", "su", None, "'su root' failed for lonvick on /dev/pts/8", {"hostname": "mymachine"}),
    ("Use the BFG!", ARRIVED, "notice", "user", None, None, "Use the BFG!", {}),
    ("<165>Aug 24 05:34:00 CST 1987 mymachine myproc[10]: %% It's time to make the do-nuts.  %%", "1987-08-24T05:34:00+02:00",
     "notice", "local4", "myproc", "10", "%% It's time to make the do-nuts.  %%", {"hostname": "mymachine"}),
    ("<0>1990 Oct 22 10:52:01 TZ-6 scapegoat.dmz.example.org 10.1.2.3 sched[0]: That's All Folks!", "1990-10-22T10:52:01+02:00",
     "emerg", "kern", None, None, "TZ-6 scapegoat.dmz.example.org 10.1.2.3 sched[0]: That's All Folks!", {}),
    # what libc and logger write, without a host
    ("<13>Feb 28 23:04:01 root: hello", "2026-02-28T23:04:01+02:00", "notice", "user", "root", None, "hello", {}),
    ("<30>Feb  8 23:04:01 postfix/smtpd[77]: connect from [::1]: x", "2026-02-08T23:04:01+02:00", "info", "daemon", "postfix/smtpd", "77", "connect from [::1]: x", {}),
    ("<13>Feb 28 23:04:01 fe80::1 app[1]: x", "2026-02-28T23:04:01+02:00", "notice", "user", "app", "1", "x", {"hostname": "fe80::1"}),
    ("<13>Feb 28 23:04:01.123456 h app: x", "2026-02-28T23:04:01.123456+02:00", "notice", "user", "app", None, "x", {"hostname": "h"}),
    ("<13>2026-02-28T23:04:01.5+01:00 h app[1]: x", "2026-02-28T23:04:01.5+01:00", "notice", "user", "app", "1", "x", {"hostname": "h"}),
    ("<13>2026 Feb 28 23:04:01 h app: x", "2026-02-28T23:04:01+02:00", "notice", "user", "app", None, "x", {"hostname": "h"}),
    ("<13>Feb 28 23:04:01 no tag at all", "2026-02-28T23:04:01+02:00", "notice", "user", None, None, "no tag at all", {}),
    ("<13>app[9]: no time", ARRIVED, "notice", "user", "app", "9", "no time", {}),
    ("<13>no time, no tag", ARRIVED, "notice", "user", None, None, "no time, no tag", {}),
    ("<13>", ARRIVED, "notice", "user", None, None, "", {}),
    ("<13>Feb 30 23:04:01 h app: no such day", ARRIVED, "notice", "user", None, None, "Feb 30 23:04:01 h app: no such day", {}),
    # Cisco's
    ("<189>123: *Mar  1 10:46:11.123 UTC: %SYS-5-CONFIG_I: Configured from console", "2026-03-01T10:46:11.123+02:00", "notice", "local7", None, None,
     "%SYS-5-CONFIG_I: Configured from console", {"msgid": "SYS-5-CONFIG_I"}),
    ("<189>45: sw1: Mar  1 10:46:11: %LINK-3-UPDOWN: Interface x", "2026-03-01T10:46:11+02:00", "notice", "local7", None, None,
     "%LINK-3-UPDOWN: Interface x", {"hostname": "sw1", "msgid": "LINK-3-UPDOWN"}),
    ("<166>Mar 01 2026 10:00:00 fw1 : %ASA-6-302013: Built", "2026-03-01T10:00:00+02:00", "info", "local4", None, None,
     "%ASA-6-302013: Built", {"hostname": "fw1", "msgid": "ASA-6-302013"}),
    # bad priorities
    ("<>x", ARRIVED, "notice", "user", None, None, "<>x", {"malformed": "pri"}),
    ("<1a>x", ARRIVED, "notice", "user", None, None, "<1a>x", {"malformed": "pri"}),
    ("<1999>x", ARRIVED, "notice", "user", None, None, "<1999>x", {"malformed": "pri"}),
    ("<13x", ARRIVED, "notice", "user", None, None, "<13x", {"malformed": "pri"}),
    ("", ARRIVED, "notice", "user", None, None, "", {}),
]  # fmt: skip


class ParserTests(SynchronousTestCase):
    def test_rfc5424(self) -> None:
        """The RFC's own examples, and what departs from them, as an entry has it."""
        self.check(RFC_5424)

    def test_rfc3164(self) -> None:
        """The older form, its relatives, and what devices make of it."""
        self.check(RFC_3164)

    def check(self, table: list[Any]) -> None:
        for text, *wanted in table:
            self.assertEqual(list(SyslogParser(CEST).parse(text, NOW)), wanted, text)

    def test_too_much_structured_data_stays_text(self) -> None:
        """What a sender sends beyond reason is kept as it came."""
        many = "".join(f'[e{n} a="1"]' for n in range(65))
        self.assertEqual(structured_data(many, 0), ({}, -1))
        crowd = "[e " + " ".join(f'a{n}="1"' for n in range(257)) + "]"
        self.assertEqual(structured_data(crowd, 0), ({}, -1))

    @settings(max_examples=200, deadline=None)
    @given(
        st.sampled_from([row[0] for row in RFC_5424 + RFC_3164]),
        st.integers(0, 120),
        st.text(max_size=30),
        st.integers(0, 40),
    )
    def test_never_raises(self, text: str, at: int, more: str, skip: int) -> None:
        """Whatever comes is a message, and its severity one of the eight."""
        message = SyslogParser(CEST).parse(text[:at] + more + text[at + skip :], NOW)
        self.assertIn(message.severity, SEVERITIES)
        self.assertIsNotNone(datetime.fromisoformat(message.ts).utcoffset())


def fed(stream: bytes, cuts: list[int], **how: Any) -> list[Frame]:
    """The frames of a stream that comes cut at these places, until its end or a fault."""
    framer = SyslogFramer(**how)
    places = sorted({cut % (len(stream) + 1) for cut in cuts} | {0, len(stream)})
    frames: list[Frame] = []
    try:
        for start, end in itertools.pairwise(places):
            frames += framer.feed(stream[start:end])
    except FramingFault as fault:
        return frames + fault.frames + [Frame(b"fault: " + str(fault).encode())]
    return frames + framer.close()


def joined(frames: list[Frame]) -> list[bytes]:
    """The messages of frames; parts put together."""
    messages: list[bytes] = []
    for frame in frames:
        if frame.part > 1:
            messages[-1] += frame.data
        else:
            messages.append(frame.data)
    return messages


class FramingTests(SynchronousTestCase):
    STREAMS = [
        # stream, messages
        (b"<1>a\n<2>b\n", [b"<1>a", b"<2>b"]),
        (b"\n\n<1>a\r\n\n", [b"<1>a\r"]),
        (b"5 <1>ab6 <2>c\nd", [b"<1>ab", b"<2>c\nd"]),
        (b"4 <1>a\n4 <1>b\n", [b"<1>a", b"<1>b"]),
        (b"12 monkeys\n13 <x>\n", [b"12 monkeys", b"13 <x>"]),
        (b"2026-01-01 x\n", [b"2026-01-01 x"]),
        (b"123456789 <1>\n", [b"123456789 <1>"]),
        (b"7\n", [b"7"]),
        (b"", []),
        # faults of octet counting
        (b"4 <1>a<2>b\n", [b"<1>a", b"fault: a frame does not begin with a count"]),
        (b"4 <1>a0 ", [b"<1>a", b"fault: a frame does not begin with a count"]),
        (b"4 <1>a04 <1>b", [b"<1>a", b"fault: a frame does not begin with a count"]),
        (b"4 <1>a 4 <1>b", [b"<1>a", b"fault: a frame does not begin with a count"]),
        (b"4 <1>a123456789", [b"<1>a", b"fault: a frame's count is too long"]),
        (b"16777217 <1>", [b"fault: a frame of 16777217 bytes"]),
        (b"4 <1>a4x<1>b", [b"<1>a", b"fault: a frame does not begin with a count"]),
    ]  # fmt: skip

    def test_streams_whole_and_byte_by_byte(self) -> None:
        """Every stream gives the same messages and faults, however it is cut."""
        for stream, wanted in self.STREAMS:
            self.assertEqual(joined(fed(stream, [])), wanted, stream)
            every = list(range(len(stream)))
            self.assertEqual(joined(fed(stream, every)), wanted, stream)

    def test_an_unfinished_message(self) -> None:
        """What a stream ended inside is kept, and said to be partial (F43)."""
        self.assertEqual(fed(b"<1>a\n<2>b", []), [Frame(b"<1>a"), Frame(b"<2>b", partial=True)])
        self.assertEqual(fed(b"9 <1>ab", []), [Frame(b"<1>ab", partial=True)])
        self.assertEqual(fed(b"4 <1>a7", []), [Frame(b"<1>a")])
        self.assertEqual(fed(b"4 ", []), [Frame(b"4 ", partial=True)])
        long = fed(b"9999 <1>" + b"x" * 40, [], limit=20)
        self.assertEqual([(f.part, f.more, f.partial) for f in long],
                         [(1, True, False), (2, True, False), (3, False, True)])  # fmt: skip

    def test_long_messages_come_in_parts(self) -> None:
        """F17: none is cut off, none is held whole, and no character is torn."""
        text = b"<13>" + "aé€😀".encode() * 40
        for stream in (text + b"\n<1>b\n", b"%d %b4 <1>b" % (len(text), text)):
            for cuts in ([], list(range(len(stream)))):
                frames = fed(stream, cuts, limit=50)
                self.assertEqual(joined(frames), [text, b"<1>b"])
                parts = [frame for frame in frames if frame.part]
                self.assertEqual([frame.part for frame in parts], list(range(1, len(parts) + 1)))
                self.assertEqual([f.more for f in parts], [True] * (len(parts) - 1) + [False])
                for frame in parts:
                    self.assertTrue(len(frame.data) <= 50)
                    frame.data.decode()

    def test_memory_is_bounded(self) -> None:
        """A line without an end, and a frame of 16 MiB, never fill more than a part."""
        for start in (b"<13>", b"%d <13>" % MAX_FRAME):
            framer = SyslogFramer()
            framer.feed(start)
            for _ in range(40):
                framer.feed(b"x" * 4096)
                self.assertTrue(framer.pending <= PART_BYTES)

    def test_after_a_fault_nothing_is_read(self) -> None:
        """Nothing is resynchronised."""
        framer = SyslogFramer("octet-counting")
        self.assertRaises(FramingFault, framer.feed, b"x")
        self.assertEqual(framer.feed(b"4 <1>a") + framer.close(), [])

    @settings(max_examples=150, deadline=None)
    @given(
        st.lists(st.binary(max_size=40), max_size=6),
        st.lists(st.integers(0, 400), max_size=12),
        st.sampled_from([17, 32, 100]),
    )
    def test_counted_frames_survive_any_cut(
        self, messages: list[bytes], cuts: list[int], limit: int
    ) -> None:
        """Any bytes in counted frames come out as they went in."""
        messages = [message or b"x" for message in messages]
        stream = b"".join(b"%d %b" % (len(message), message) for message in messages)
        frames = fed(stream, cuts, framing="octet-counting", limit=limit)
        self.assertEqual(joined(frames), messages)

    @settings(max_examples=150, deadline=None)
    @given(
        st.lists(st.binary(max_size=60), max_size=6),
        st.lists(st.integers(0, 400), max_size=12),
        st.sampled_from([17, 32, 100]),
    )
    def test_lines_survive_any_cut(self, lines: list[bytes], cuts: list[int], limit: int) -> None:
        """Any lines come out as they went in, without the empty ones."""
        lines = [line.replace(b"\n", b"") for line in lines]
        frames = fed(b"".join(line + b"\n" for line in lines), cuts, framing="newline", limit=limit)
        self.assertEqual(joined(frames), [line for line in lines if line])


class EncoderTests(SynchronousTestCase):
    def entries(self, *frames: Frame, peer: str | None = None) -> list[dict[str, Any]]:
        encoder = SyslogEncoder("custom:sw", CEST)
        return [json.loads(b"{" + b) for frame in frames for b in encoder.bodies(frame, NOW, peer)]

    def test_an_entry(self) -> None:
        """Header fields are the entry's own; the claimed host is metadata (S7)."""
        [found] = self.entries(Frame(RFC_5424[2][0].encode() + b"\n"), peer="192.0.2.7")
        self.assertEqual(found["source"], "custom:sw")
        self.assertEqual(found["app_name"], "evntslog")
        self.assertEqual(found["facility"], "local4")
        self.assertEqual(
            found["metadata"],
            {"syslog": {"hostname": "mymachine.example.com", "msgid": "ID47",
                        "structured_data": SD, "peer": "192.0.2.7"}},
        )  # fmt: skip

    def test_F16_bytes_that_are_no_text(self) -> None:
        """They are replaced, and kept with their header in `raw`; an ending NUL is none."""
        [found] = self.entries(Frame(b"<13>app: caf\xe9\n\0"))
        self.assertEqual(found["message"], "caf\ufffd")
        self.assertEqual(b64decode(found["metadata"]["cortextx"]["raw"]), b"<13>app: caf\xe9")
        [found] = self.entries(Frame(b"<13>app: x\0"))
        self.assertEqual((found["message"], "metadata" in found), ("x", False))

    def test_F17_parts_share_a_header(self) -> None:
        """Further parts have the first one's time, severity and program."""
        found = self.entries(
            Frame(b"<11>app[3]: one", 1, True), Frame(b"<12>two", 2, True), Frame(b"end", 3)
        )
        self.assertEqual([entry["message"] for entry in found], ["one", "<12>two", "end"])
        self.assertEqual({(e["severity"], e["process_id"]) for e in found}, {("err", "3")})
        self.assertEqual([e["metadata"]["cortextx"] for e in found],
                         [{"part": 1}, {"part": 2}, {"part": 3, "parts": 3}])  # fmt: skip

    def test_F17_a_long_datagram(self) -> None:
        """A datagram of a Unix socket may be longer than a message may be."""
        found = self.entries(Frame(b"<13>app: " + b"x" * 150_000))
        self.assertEqual("".join(e["message"] for e in found), "x" * 150_000)
        self.assertEqual([e["metadata"]["cortextx"].get("parts") for e in found], [None, None, 3])

    def test_nothing_is_no_entry(self) -> None:
        self.assertEqual(self.entries(Frame(b""), Frame(b"\r\n"), Frame(b"\0")), [])
