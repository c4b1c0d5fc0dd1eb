# ruff: noqa: E501
"""Structured lines: JSON, logfmt, access and error logs, and a source's own `format`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.syslog import SEVERITIES
from cortextx.fleet.agent.entries import moment_text
from cortextx.fleet.agent.sources.forms import severity_of
from cortextx.fleet.agent.sources.parse import FORMATS, LineParser
from cortextx.fleet.agent.sources.stamps import zone_named

CEST = timezone(timedelta(hours=2))
NOW = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()) * 1_000_000
ARRIVED = moment_text(NOW)
ACCESS = '192.0.2.1 - bob [28/Feb/2026:23:04:01 +0100] "GET /a\\"b HTTP/1.1" %d 12 "-" "curl [x]"'

AUTO = [
    # line, ts, severity, app_name, process_id
    ('{"time":"2026-02-28T23:04:01.5Z","level":"WARN","msg":"x","pid":7,"app":"web"}', "2026-02-28T23:04:01.5Z", "warning", "web", "7"),
    ('{"level":50,"time":1772319841123,"pid":12,"hostname":"h","name":"api","msg":"x"}', "2026-02-28T23:04:01.123000Z", "err", "api", "12"),
    ('{"ts":1772319841.5,"level":"dpanic","caller":"a.go:1"}', "2026-02-28T23:04:01.500000Z", "crit", None, None),
    ('{"@timestamp":"2026-02-28T23:04:01.000Z","log.level":"error","service.name":"pay","process.pid":3}', "2026-02-28T23:04:01.000Z", "err", "pay", "3"),
    ('{"@timestamp":"2026-02-28T23:04:01.000Z","log":{"level":"debug"},"service":{"name":"pay"},"process":{"pid":3}}', "2026-02-28T23:04:01.000Z", "debug", "pay", "3"),
    ('{"version":"1.1","short_message":"x","timestamp":1772319841.25,"level":3}', "2026-02-28T23:04:01.250000Z", "err", None, None),
    ('{"severity":"NOTICE","timestamp":"2026-02-28 23:04:01"}', "2026-02-28T23:04:01+02:00", "notice", None, None),
    ('{"time":true,"level":[],"pid":1.5,"app":{}}', ARRIVED, "info", None, None),
    ('{"time":"yesterday","level":"loud"}', ARRIVED, "info", None, None),
    ('{"log":"x\\n","stream":"stderr","time":"2026-02-28T23:04:01.123456789Z"}', "2026-02-28T23:04:01.123456Z", "info", None, None),
    ('{"time":1e400}', ARRIVED, "info", None, None),
    ('{not json', ARRIVED, "info", None, None),
    ('time="2026-02-28T23:04:01+01:00" level=warning msg="a \\"q\\" level=debug" pid=9', "2026-02-28T23:04:01+01:00", "warning", None, "9"),
    ("ts=2026-02-28T23:04:01.123Z caller=a.go:1 level=error component=tsdb", "2026-02-28T23:04:01.123Z", "err", None, None),
    ("level=info ts=1772319841.5 app=x", "2026-02-28T23:04:01.500000Z", "info", "x", None),
    ("a=b, and c=d", ARRIVED, "info", None, None),
    (ACCESS % 200, "2026-02-28T23:04:01+01:00", "info", None, None),
    (ACCESS % 404, "2026-02-28T23:04:01+01:00", "info", None, None),
    (ACCESS % 503, "2026-02-28T23:04:01+01:00", "err", None, None),
    ("www.example.org:443 " + ACCESS % 200, "2026-02-28T23:04:01+01:00", "info", None, None),
    ('::1 - - [31/Feb/2026:23:04:01 +0100] "GET / HTTP/1.1" 200 1', ARRIVED, "info", None, None),
    ("2026/02/28 23:04:01 [warn] 77#5: *1 upstream", "2026-02-28T23:04:01+02:00", "warning", None, "77"),
    ("[Sat Feb 28 23:04:01.123456 2026] [core:error] [pid 35708:tid 43] [client ::1] x", "2026-02-28T23:04:01.123456+02:00", "err", None, "35708"),
    ("[Sat Feb 28 23:04:01 2026] [notice] caught SIGTERM", "2026-02-28T23:04:01+02:00", "notice", None, None),
    ("[Sat Feb 28 23:04:01.1 2026] [ssl:trace3] [pid 7] x", "2026-02-28T23:04:01.1+02:00", "debug", None, "7"),
    ("W0228 23:04:01.123456   77 main.go:12] text", "2026-02-28T23:04:01.123456+02:00", "warning", None, "77"),
    ("E1328 23:04:01.123456   77 main.go:12] no such month", ARRIVED, "info", None, None),
    ("type=SYSCALL msg=audit(1772319841.243:24287): arch=c000003e", "2026-02-28T23:04:01.243000Z", "info", "audit", None),
    ("77:M 28 Feb 2026 23:04:01.123 # WARNING overcommit", "2026-02-28T23:04:01.123+02:00", "warning", None, "77"),
    ("1772319841.586    921 192.168.0.68 TCP_MISS/200", "2026-02-28T23:04:01.586000Z", "info", None, None),
]  # fmt: skip

NAMED = [
    # format, line, ts, severity, app_name, process_id
    ("plain", "2026-02-28T23:04:01Z ERROR x", ARRIVED, "info", None, None),
    ("json", '{"time":"2026-02-28T23:04:01Z","level":"err"}', "2026-02-28T23:04:01Z", "err", None, None),
    ("json", "2026-02-28T23:04:01Z ERROR x", ARRIVED, "info", None, None),
    ("logfmt", "level=err x=1", ARRIVED, "err", None, None),
    ("logfmt", '{"level":"err"}', ARRIVED, "info", None, None),
    ("rfc3164", "<11>Feb 28 23:04:01 h app[7]: x", "2026-02-28T23:04:01+02:00", "err", "app", "7"),
    ("rfc3164", '{"level":"err"}', ARRIVED, "info", None, None),
    ("rfc5424", "<11>1 2026-02-28T23:04:01Z h app 7 - - x", "2026-02-28T23:04:01Z", "err", "app", "7"),
    ("rfc5424", "<11>Feb 28 23:04:01 h app[7]: x", ARRIVED, "info", None, None),
    ("nginx", ACCESS % 500, "2026-02-28T23:04:01+01:00", "err", "nginx", None),
    ("nginx", "2026/02/28 23:04:01 [crit] 77#5: x", "2026-02-28T23:04:01+02:00", "crit", "nginx", "77"),
    ("apache", ACCESS % 200, "2026-02-28T23:04:01+01:00", "info", "apache", None),
    ("apache", "[Sat Feb 28 23:04:01 2026] [error] x", "2026-02-28T23:04:01+02:00", "err", "apache", None),
]  # fmt: skip


class FormTests(SynchronousTestCase):
    def test_what_each_line_is_found_to_be(self) -> None:
        """Time, severity, program and process of lines whose form nobody named."""
        for line, *wanted in AUTO:
            found = LineParser(CEST).parse(line, NOW)
            got = [found.ts, found.severity, found.app_name, found.process_id]
            self.assertEqual(got, wanted, line)

    def test_a_named_format_is_the_only_one(self) -> None:
        """A source's `format` reads lines of that form, and no others."""
        for form, line, *wanted in NAMED:
            found = LineParser(CEST, form).parse(line, NOW)
            got = [found.ts, found.severity, found.app_name, found.process_id]
            self.assertEqual(got, wanted, (form, line))

    def test_levels(self) -> None:
        """Words, syslog's numbers, and bunyan's."""
        for level, wanted in (
            ("Warning", "warning"), ("E", "err"), (" info ", "info"), (0, "emerg"), (7, "debug"),
            (10, "debug"), (20, "debug"), (30, "info"), (40, "warning"), (60, "crit"),
            ("50", "err"), ("3", "err"), (None, None), (True, None), (8, None), (-1, None),
            (2.5, None), ("x", None), ("99999999", None), ("", None),
        ):  # fmt: skip
            self.assertEqual(severity_of(level), wanted, level)

    starts = st.sampled_from([row[0] for row in AUTO] + [row[1] for row in NAMED])

    @settings(max_examples=300, deadline=None)
    @given(
        st.sampled_from(FORMATS),
        starts,
        st.integers(0, 90),
        st.text(max_size=20),
        st.integers(0, 30),
    )
    def test_never_raises(self, form: str, line: str, at: int, more: str, skip: int) -> None:
        """Whatever the line and the format, there is a time with an offset and a severity."""
        found = LineParser(CEST, form).parse(line[:at] + more + line[at + skip :], NOW)
        self.assertIn(found.severity, SEVERITIES)
        self.assertIsNotNone(datetime.fromisoformat(found.ts).utcoffset())


class ZoneTests(SynchronousTestCase):
    def test_names(self) -> None:
        """What `timezone` may be; anything else is refused."""
        wanted: dict[str, tzinfo | None] = {
            "local": None, "UTC": UTC, "+02:00": CEST, "-0330": timezone(-timedelta(hours=3.5)),
            "Europe/Berlin": ZoneInfo("Europe/Berlin"),
        }  # fmt: skip
        for name, zone in wanted.items():
            self.assertEqual(zone_named(name), zone)
        for name in ("Nowhere/Else", "+25:00", "../etc/passwd", "\0"):
            self.assertRaises(ValueError, zone_named, name)

    def test_summer_and_winter(self) -> None:
        """A local time has the offset of its own day."""
        parser = LineParser(ZoneInfo("Europe/Berlin"))
        self.assertEqual(parser.parse("2026-01-05 10:00:00 x", NOW).ts[-6:], "+01:00")
        self.assertEqual(parser.parse("2026-07-05 10:00:00 x", NOW).ts[-6:], "+02:00")
