# ruff: noqa: E501
"""What is read out of a line, and how records become entries."""

from __future__ import annotations

import json
from base64 import b64decode
from datetime import UTC, datetime, timedelta, timezone

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.syslog import SEVERITIES
from cortextx.fleet.agent.entries import BODY_LIMIT, encode_body, moment_text
from cortextx.fleet.agent.sources.lines import BOM, RecordEncoder, part_bytes, pieces
from cortextx.fleet.agent.sources.parse import LineParser
from cortextx.fleet.contract import MAX_MESSAGE_CHARS, LogEntry

CEST = timezone(timedelta(hours=2))
NOW = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()) * 1_000_000

FORMS = [
    # line, ts, severity, facility, app_name, process_id
    ("Feb 28 23:04:01 web-3 nginx[1234]: GET /", "2026-02-28T23:04:01+02:00", "info", None, "nginx", "1234"),
    ("Feb  3 23:04:01 web-3 kernel: [1.2] up", "2026-02-03T23:04:01+02:00", "info", None, "kernel", None),
    ("Dec 31 23:59:59 h a[1]: x", "2025-12-31T23:59:59+02:00", "info", None, "a", "1"),
    ("Feb 29 10:00:00 h a[1]: x", "2024-02-29T10:00:00+02:00", "info", None, "a", "1"),
    ("<34>1 2003-10-11T22:14:15.003Z h su 77 ID47 - failed", "2003-10-11T22:14:15.003Z", "crit", "auth", "su", "77"),
    ("<165>1 2003-08-24T05:14:15.000003-07:00 h my - - - x", "2003-08-24T05:14:15.000003-07:00", "notice", "local4", "my", None),
    ("<34>1 - - - - - - x", moment_text(NOW), "crit", "auth", None, None),
    ("<13>Feb 28 23:04:01 h app: ERROR x", "2026-02-28T23:04:01+02:00", "notice", "user", "app", None),
    ("<13>app[9]: hello", moment_text(NOW), "notice", "user", "app", "9"),
    ("<192>app: hello", moment_text(NOW), "info", None, None, None),
    ("2026-02-28T23:04:01.123456+01:00 host sshd[77]: error: x", "2026-02-28T23:04:01.123456+01:00", "err", None, "sshd", "77"),
    ("2026-02-28T23:04:01Z INFO main: x", "2026-02-28T23:04:01Z", "info", None, None, None),
    ("2026-02-28 04:45:01 upgrade libc6:amd64 2.36 2.37", "2026-02-28T04:45:01+02:00", "info", None, None, None),
    ("2026-02-28 04:45:01,7 WARNING x", "2026-02-28T04:45:01.7+02:00", "warning", None, None, None),
    ("2026-02-28 04:45:01.123 UTC [12] FATAL:  x", "2026-02-28T04:45:01.123Z", "crit", None, None, None),
    ("2026/02/28 04:45:01 [error] 12#0: x", "2026-02-28T04:45:01+02:00", "err", None, None, "12"),
    ("[2026-02-28 04:45:01] DEBUG x", "2026-02-28T04:45:01+02:00", "debug", None, None, None),
    ("Start-Date: 2026-02-28  04:45:01", "2026-02-28T04:45:01+02:00", "info", None, None, None),
    ("update-alternatives 2026-02-28 04:45:01: run", "2026-02-28T04:45:01+02:00", "info", None, "update-alternatives", None),
    ("2016-12-31T23:59:60Z leap", "2016-12-31T23:59:59Z", "info", None, None, None),
    ("2026-02-28T23:04:01.123456789Z x", "2026-02-28T23:04:01.123456Z", "info", None, None, None),
    ("2026-13-28T23:04:01Z no such month", moment_text(NOW), "info", None, None, None),
    ("level=warn msg=x", moment_text(NOW), "warning", None, None, None),
    ("error: x", moment_text(NOW), "err", None, None, None),
    ("there was no error in errors.c", moment_text(NOW), "info", None, None, None),
    ("", moment_text(NOW), "info", None, None, None),
]  # fmt: skip


def entry(body: bytes) -> LogEntry:
    """The body as a server decodes it."""
    return msgspec.json.decode(b'{"seq":1,' + body, type=LogEntry)


class LineParserTests(SynchronousTestCase):
    def test_known_forms(self) -> None:
        """Each form gives its time with an offset, severity, program and facility."""
        for line, *wanted in FORMS:
            parsed = LineParser(CEST).parse(line, NOW)
            self.assertEqual(list(parsed[:5]), wanted, line)

    def test_the_year_follows_when_the_line_was_written(self) -> None:
        """In an old file, a line is not taken for one of this year."""
        old = int(datetime(2021, 5, 1, tzinfo=UTC).timestamp()) * 1_000_000
        parser = LineParser(UTC)
        self.assertEqual(parser.parse("Apr 30 01:02:03 h a: x", NOW, old).ts[:4], "2021")
        self.assertEqual(parser.parse("Feb 28 01:02:03 h a: x", NOW).ts[:4], "2026")
        self.assertEqual(parser.parse("Apr 30 01:02:03 h a: x", NOW).ts[:4], "2025")

    def test_a_local_time_without_zone_gets_the_hosts(self) -> None:
        """Without a zone of ours, the host's own offset is written."""
        parsed = LineParser().parse("2026-02-28 04:45:01 x", NOW)
        local = datetime(2026, 2, 28, 4, 45, 1).astimezone()
        self.assertEqual(datetime.fromisoformat(parsed.ts), local)

    stamps = st.sampled_from([line for line, *_ in FORMS])

    @settings(max_examples=300, deadline=None)
    @given(
        st.tuples(
            st.sampled_from(
                ["2026-02-28T23:04", "2026-02-30T23:04", "0000-01-01T00:00", "2026-1-1T1:1"]
            ),
            st.sampled_from([":01", ":60", ":61", ""]),
            st.sampled_from(["", ".1", ",25", ".123456", ".123456789", ".1234567890", "."]),
            st.sampled_from(["Z", "+01:00", "-0730", " UTC", "", "+99:99", "+01:00:00"]),
            st.sampled_from([" host", " INFO", " ERROR", " h\u00f6st", "  host", " [host]", ""]),
            st.sampled_from(
                [" sshd[77]: ", " kernel: ", " a/b[x]: ", " app[1]:", ": ", " :x: ", " \u00e9: "]
            ),
            st.sampled_from(["error: x", "x", "", "<warning> y", "[ERROR] z"]),
        ).map("".join)
    )
    def test_one_look_reads_what_many_steps_read(self, line: str) -> None:
        """A line that is read by the one pattern for the commonest form is read as it would be
        step by step, the first time and again when its minute is known."""
        for form in ("auto", "rfc3164"):
            quick, slow = LineParser(CEST, form), LineParser(CEST, form)
            slow._whole = lambda text, late: None  # type: ignore[method-assign]
            expected = slow.parse(line, NOW)
            self.assertEqual(quick.parse(line, NOW), expected)
            self.assertEqual(quick.parse(line, NOW), expected)

    @settings(max_examples=300, deadline=None)
    @given(
        st.one_of(
            st.text(max_size=80),
            st.builds(lambda a, n, b: a[:n] + b, stamps, st.integers(0, 40), st.text(max_size=20)),
            st.from_regex(
                r"<\d{1,3}>1? ?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d([.,]\d+)?(Z|[+-]\d\d:?\d\d)?"
            ),
            st.from_regex(r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d"),
        ),
        st.integers(-(10**15), 10**17),
    )
    @example("٢٠٢٦-٠٢-٢٨ ٠٤:٤٥:٠١ x", NOW)
    @example("0000-00-00 00:00:00 x", NOW)
    @example("", -1)
    @example("9999-12-31T23:59:59-23:59 x", NOW)
    def test_never_raises_and_always_has_an_offset(self, line: str, now: int) -> None:
        """Whatever the line, what comes out is an entry that a server takes (F15)."""
        parsed = LineParser(CEST).parse(line, now)
        self.assertIn(parsed.severity, SEVERITIES)
        text = line.encode("utf-8", "replace").decode()
        body = encode_body(
            ts=parsed.ts, severity=parsed.severity, message=text, source="file:/x",
            app_name=parsed.app_name, process_id=parsed.process_id, facility=parsed.facility,
        )  # fmt: skip
        self.assertIsNotNone(entry(body).ts.utcoffset())


class PiecesTests(SynchronousTestCase):
    def test_a_plain_line_is_its_text(self) -> None:
        self.assertEqual(pieces("é x".encode()), [("é x", None)])
        self.assertEqual(pieces(b"dos\r"), [("dos", None)])

    def test_F16_bad_bytes_are_replaced_and_kept(self) -> None:
        """A34: the text has U+FFFD, the metadata the very bytes."""
        for raw in (b"a\xffb", b"\xed\xa0\x80", b"x\0y"):
            [piece] = pieces(raw)
            self.assertIn("�", piece.text)
            self.assertEqual(b64decode(piece.marks["raw"]), raw)

    def test_a_real_replacement_character_is_no_fault(self) -> None:
        [piece] = pieces("�".encode())
        self.assertIsNone(piece.marks)

    def test_F16_nul_runs_before_a_record_are_counted(self) -> None:
        [piece] = pieces(b"\0" * 5000 + b"text")
        self.assertEqual(piece, ("text", {"nuls": 5000}))

    def test_D22_a_run_of_nuls_makes_no_piece_of_its_own(self) -> None:
        """Not within a long record either, nor at its end; left out before, it is counted."""
        nuls = b"\0" * (2 * MAX_MESSAGE_CHARS)
        found = pieces(b"x" * MAX_MESSAGE_CHARS + nuls + b"y" + nuls, nuls=7)
        self.assertEqual(found[0].marks, {"part": 1, "nuls": 7})
        self.assertEqual(found[1].text[:1], "y")
        self.assertEqual(found[1].marks["nuls"] + found[1].text.count("\ufffd"), 2 * len(nuls))
        self.assertEqual((len(found), found[1].marks["parts"]), (2, 2))

    def test_F17_long_lines_are_split_never_cut(self) -> None:
        """Each part is at most 65,536 characters; the last says how many there are."""
        text = "xé" * 100_000
        found = pieces(text.encode())
        self.assertEqual("".join(piece.text for piece in found), text)
        self.assertTrue(all(len(piece.text) <= MAX_MESSAGE_CHARS for piece in found))
        self.assertEqual([piece.marks["part"] for piece in found], [1, 2, 3, 4])
        self.assertEqual([piece.marks.get("parts") for piece in found], [None, None, None, 4])

    def test_F17_a_line_of_just_the_limit_is_whole(self) -> None:
        for char in ("x", "é", "€", "😀"):
            [piece] = pieces((char * MAX_MESSAGE_CHARS).encode())
            self.assertEqual((len(piece.text), piece.marks), (MAX_MESSAGE_CHARS, None))

    @given(st.lists(st.sampled_from([b"x", "é".encode(), "😀".encode(), b"\xff", b"\xf0\x9f"])))
    def test_parts_end_between_characters(self, units: list[bytes]) -> None:
        """Cut anywhere by the rule, valid text stays valid and nothing is lost."""
        data, whole = b"".join(units), b"".join(units)
        text = ""
        while data:
            size = part_bytes(data, 3)
            self.assertGreater(size, 0)
            part = data[:size].decode("utf-8", "replace")
            self.assertLessEqual(len(part), 3)
            text, data = text + part, data[size:]
        if b"\xff" not in whole and b"\xf0\x9f" not in units:
            self.assertEqual(text.encode(), whole)

    def test_a_line_that_goes_on_is_numbered_across_records(self) -> None:
        self.assertEqual(pieces(b"ab", more=True), [("ab", {"part": 1})])
        self.assertEqual(pieces(b"cd", part=2, more=True), [("cd", {"part": 2})])
        self.assertEqual(pieces(b"e", part=3), [("e", {"part": 3, "parts": 3})])
        self.assertEqual(pieces(b"e", partial=True), [("e", {"partial": True})])


class RecordEncoderTests(SynchronousTestCase):
    def test_the_message_is_the_whole_line(self) -> None:
        line = "Feb 28 23:04:01 web-3 nginx[12]: ERROR «x»"
        found = entry(RecordEncoder("file:/l", CEST).encode([line.encode()], NOW, NOW)[0])
        self.assertEqual((found.message, found.app_name, found.severity), (line, "nginx", "err"))

    def test_A34_neighbours_of_bad_bytes_are_unaffected(self) -> None:
        bodies = RecordEncoder("file:/l").encode([b"a", b"\xff", b"b"], NOW, NOW)
        self.assertEqual([entry(body).message for body in bodies], ["a", "�", "b"])

    def test_A23_a_bom_is_stripped_at_the_files_start_only(self) -> None:
        encoder = RecordEncoder("file:/l")
        [first] = encoder.encode([BOM + b"a"], NOW, NOW, at_start=True)
        [later] = encoder.encode([BOM + b"a"], NOW, NOW)
        self.assertEqual((entry(first).message, entry(later).message), ("a", "\ufeffa"))

    def test_later_parts_keep_the_time_of_the_first(self) -> None:
        line = b"2020-01-01T00:00:00Z " + b"x" * 200_000
        bodies = RecordEncoder("file:/l").encode([line], NOW, NOW)
        self.assertEqual({entry(body).ts.year for body in bodies}, {2020})
        self.assertEqual(len(bodies), 4)

    def test_F17_an_entry_stays_below_its_size_and_cut_metadata_is_flagged(self) -> None:
        """The worst line: four-byte characters and bad bytes, kept twice."""
        line = "😀".encode() * 65_000 + b"\xff" * 500
        for body in RecordEncoder("file:/l").encode([line * 2], NOW, NOW):
            self.assertLessEqual(len(body), BODY_LIMIT)
            marks = json.loads(bytes(entry(body).metadata))["cortextx"]
            self.assertTrue(marks["cut"])
            self.assertIn("part", marks)


class EncodeBodyTests(SynchronousTestCase):
    def test_F42_raw_utf8_and_every_member(self) -> None:
        body = encode_body(
            ts=datetime(2026, 1, 1, tzinfo=CEST), severity="err", message='é"\n', source="file:/é",
            facility="daemon", app_name="a", process_id="1", metadata={"k": "€"},
        )  # fmt: skip
        self.assertIn("é".encode(), body)
        found = entry(body)
        self.assertEqual((found.message, found.source, found.process_id), ('é"\n', "file:/é", "1"))
        self.assertEqual(json.loads(bytes(found.metadata)), {"k": "€"})

    def test_F15_a_time_without_offset_is_refused(self) -> None:
        naive = datetime(2026, 1, 1)
        self.assertRaises(
            ValueError, encode_body, ts=naive, severity="err", message="", source="file:/x"
        )

    def test_F16_lone_surrogates_do_not_reach_the_wire(self) -> None:
        body = encode_body(ts=0, severity="err", message="a\ud800b", source="file:/x")
        self.assertEqual(entry(body).message, "a�b")
