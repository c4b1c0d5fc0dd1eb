"""From a syslog message to an entry: RFC 5424, RFC 3164, and what devices send (PURE).

What the header says becomes the entry's own members; the rest of it, which is no identity
(S7), stands in `metadata.syslog`: `hostname`, `msgid`, `structured_data`, and the `peer`
that sent it. Where the header is not as it should be, nothing is lost: what was not
understood stays part of the message, and `malformed` says what it was.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable
from datetime import tzinfo
from typing import Any, NamedTuple

from cortextx.core.syslog import FACILITIES, SEVERITIES, Severity
from cortextx.fleet.agent.entries import encode_body
from cortextx.fleet.agent.sources.lines import part_bytes
from cortextx.fleet.agent.sources.stamps import StampReader
from cortextx.fleet.agent.sources.syslog_framing import Frame
from cortextx.fleet.contract import MAX_MESSAGE_CHARS

USER_NOTICE = 13
"""The priority of a message without a good one (RFC 3164 §4.3.3)."""
MAX_ELEMENTS = 64
MAX_PARAMS = 256
"""SD-ELEMENTs and SD-PARAMs of one message; with more, the data stays in the message."""
REPLACEMENT = "\ufffd"

_PRI = re.compile(r"<(\d{1,3})>", re.ASCII)
_5424 = re.compile(r"1 (\S{1,64}) (\S{1,255}) (\S{1,255}) (\S{1,128}) (\S{1,255})(?: |$)", re.ASCII)
_ELEMENT = re.compile(r"\[([^\s=\]\"\x00-\x1f]{1,128})", re.ASCII)
_PARAM = re.compile(r' +([^\s=\]"\x00-\x1f]{1,128})="((?:[^"\\]|\\.)*)"', re.ASCII | re.DOTALL)
_UNESCAPE = re.compile(r'\\(["\\\]])')
_TAG = re.compile(r" ?([^\s:\[\]]{1,128})(?:\[([^\s\[\]]{1,128})\])?:(?: |$)")
_HOST = re.compile(
    r" ([^\s\[\]]{1,255})(?= [^\s:\[\]]{1,128}(?:\[[^\s\[\]]{1,128}\])?:(?: |$)| : %)"
)
_FRACTION = re.compile(r"\.(\d{1,9})", re.ASCII)
_YEAR_BEHIND = re.compile(r"(?: [A-Z]{3,5})? ((?:19|20)\d\d)(?= )", re.ASCII)
_YEAR_INSIDE = re.compile(
    r"(?:((?:19|20)\d\d) )?([A-Z][a-z]{2}) ([ \d]?\d)(?: ((?:19|20)\d\d))?"
    r" ([0-2]\d:[0-5]\d):([0-5]\d)",
    re.ASCII,
)
_BEFORE = re.compile(r"(?:(\d{1,10}): )?(?:([\w.-]{1,255}): )?[*.]?(?=[A-Z][a-z]{2} )", re.ASCII)
_ZONE_WORD = re.compile(r"(?: [A-Z]{3,5})?(?=: %)", re.ASCII)
_CISCO_TAG = re.compile(
    r"[ :]*%([A-Z0-9_]{1,64}-(?:[A-Z0-9_]{1,64}-)?[0-7]-[A-Z0-9_]{1,64}): ?", re.ASCII
)


class Message(NamedTuple):
    """What a syslog message says; `ts` as in an entry, `facts` for `metadata.syslog`."""

    ts: str
    severity: Severity
    facility: str
    app_name: str | None
    process_id: str | None
    text: str
    facts: dict[str, Any]


class SyslogParser:
    """Reads messages; remembers time stamps. `zone` is for times without an offset."""

    def __init__(self, zone: tzinfo | None = None) -> None:
        self._stamps = StampReader(zone)

    def parse(self, text: str, arrival: int) -> Message:
        """Read one message; never raises. `arrival` is µs, for a message without a time."""
        self._stamps.day_of(arrival)
        found = _PRI.match(text)
        if found is None:
            facts: dict[str, Any] = {"malformed": "pri"} if text[:1] == "<" else {}
            return self._message(USER_NOTICE, arrival, None, text, 0, facts)
        value = int(found[1])
        if value > 191 or (len(found[1]) > 1 and found[1][0] == "0"):
            return self._message(USER_NOTICE, arrival, None, text, 0, {"malformed": "pri"})
        at = found.end()
        header = _5424.match(text, at)
        if header is not None:
            return self._rfc5424(text, value, header, arrival)
        return self._rfc3164(text, value, at, arrival)

    # -- RFC 5424 ----------------------------------------------------------------------

    def _rfc5424(self, text: str, pri: int, header: re.Match[str], arrival: int) -> Message:
        when, host, app, process, msgid = (None if v == "-" else v for v in header.groups())
        facts: dict[str, Any] = {}
        if host is not None:
            facts["hostname"] = host
        if msgid is not None:
            facts["msgid"] = msgid
        ts = None
        if when is not None:
            ts, end = self._stamps.at(when, 0, arrival)
            if ts is None or end != len(when):
                facts["malformed"] = "timestamp"
                facts["timestamp"] = when
                ts = None
        at = header.end()
        data, behind = structured_data(text, at)
        if behind < 0:
            facts["malformed"] = "structured_data"
            behind = at
        elif data:
            facts["structured_data"] = data
        message = text[behind:]
        if message.startswith("\ufeff"):
            message = message[1:]
        return Message(
            self._stamps.now(arrival) if ts is None else ts,
            SEVERITIES[pri & 7],
            FACILITIES[pri >> 3],
            app,
            process,
            message,
            facts,
        )

    # -- RFC 3164 ----------------------------------------------------------------------

    def _rfc3164(self, text: str, pri: int, at: int, arrival: int) -> Message:
        facts: dict[str, Any] = {}
        ts, end = self._time(text, at, arrival)
        if ts is None:
            # As Cisco's: a number, the host, and a mark of the clock's state come before.
            before = _BEFORE.match(text, at)
            if before is not None and before.end() > at:
                ts, end = self._time(text, before.end(), arrival)
                if ts is not None and before[2]:
                    facts["hostname"] = before[2]
        if ts is None:
            return self._message(pri, arrival, None, text, at, facts)
        word = _ZONE_WORD.match(text, end)
        end = end if word is None else word.end()
        host = _HOST.match(text, end)
        if host is not None and not host[1].endswith(":"):
            facts["hostname"] = host[1]
            end = host.end()
        return self._message(pri, arrival, ts, text, end, facts)

    def _time(self, text: str, at: int, arrival: int) -> tuple[str | None, int]:
        """RFC 3164's time and its relatives: ISO 8601, with a fraction, with a year."""
        ts, end = self._stamps.at(text, at, arrival)
        if ts is None:
            found = _YEAR_INSIDE.match(text, at)
            if found is None:
                return None, at
            before, month, day, inside, clock, second = found.groups()
            year, end = before or inside, found.end()
            minute = f"{year} {month} {day} {clock}"
            if year is None:  # a day of one digit without the space before it
                minute, year = f"{month} {int(day):2} {clock}", "bsd"
            ts = self._stamps.stamped(
                minute, second, "", "bsd" if year == "bsd" else "year", arrival
            )
        elif text[at : at + 1].isalpha():
            behind = _YEAR_BEHIND.match(text, end)
            if behind is not None:
                minute, second = text[at : end - 3], text[end - 2 : end]
                ts = self._stamps.stamped(f"{behind[1]} {minute}", second, "", "year", arrival)
                return ts, behind.end()
        else:
            return ts, end
        fraction = _FRACTION.match(text, end)
        if ts is not None and fraction is not None:
            return f"{ts[:19]}.{fraction[1][:6]}{ts[19:]}", fraction.end()
        return ts, end

    def _message(
        self, pri: int, arrival: int, ts: str | None, text: str, at: int, facts: dict[str, Any]
    ) -> Message:
        """A message of which the tag and the text begin at `at`."""
        app = process = None
        if at and "malformed" not in facts:
            cisco = _CISCO_TAG.match(text, at)
            tag = None if cisco is not None else _TAG.match(text, at)
            if cisco is not None:
                facts["msgid"] = cisco[1]
                at = text.index("%", at)
            elif tag is not None:
                app, process = tag.groups()
                at = tag.end()
        if ts is not None and text[at : at + 1] == " ":
            at += 1
        return Message(
            self._stamps.now(arrival) if ts is None else ts,
            SEVERITIES[pri & 7],
            FACILITIES[pri >> 3],
            app,
            process,
            text[at:],
            facts,
        )


def structured_data(text: str, at: int) -> tuple[dict[str, dict[str, Any]], int]:
    """The SD-ELEMENTs at `at`, and where MSG begins; (…, -1) if they are malformed.

    A name that occurs several times in an element (`ip`, say) has a list of its values.
    """
    if text[at : at + 1] == "-" and text[at + 1 : at + 2] in ("", " "):
        return {}, at + 2
    data: dict[str, dict[str, Any]] = {}
    params = 0
    while text[at : at + 1] == "[":
        element = _ELEMENT.match(text, at)
        if element is None or len(data) >= MAX_ELEMENTS:
            return {}, -1
        values = data.setdefault(element[1], {})
        at = element.end()
        while (param := _PARAM.match(text, at)) is not None:
            at = param.end()
            params += 1
            name, value = param[1], param[2]
            if "\\" in value:
                value = _UNESCAPE.sub(r"\1", value)
            known = values.get(name)
            if known is None:
                values[name] = value
            elif isinstance(known, list):
                known.append(value)
            else:
                values[name] = [known, value]
        if text[at : at + 1] != "]" or params > MAX_PARAMS:
            return {}, -1
        at += 1
    if not data or text[at : at + 1] not in ("", " "):
        return {}, -1
    return data, at + 1


class SyslogEncoder:
    """Makes entries of one stream's or socket's messages.

    `compose` is as `entries.encode_body`; None from it is an entry that a rule ended.
    """

    def __init__(
        self,
        source: str,
        zone: tzinfo | None = None,
        compose: Callable[..., bytes | None] = encode_body,
    ) -> None:
        self._source = source
        self._parser = SyslogParser(zone)
        self._compose = compose
        self._last: Message | None = None

    def bodies(self, frame: Frame, arrival: int, peer: str | None) -> list[bytes]:
        """The entries of one frame: none if it is empty, more than one if it is long."""
        data, part, more, partial = frame
        if len(data) <= MAX_MESSAGE_CHARS and not part:
            body = self._one(data, arrival, peer, {"partial": True} if partial else {}, None)
            return [] if body is None else [body]
        found: list[bytes] = []
        number = part or 1
        last = self._last if number > 1 else None
        while True:
            size = part_bytes(data)
            raw, data = data[:size], data[size:]
            marks: dict[str, Any] = {"part": number}
            if not data and not more:
                marks["parts"] = number
                if partial:
                    marks["partial"] = True
            body = self._one(raw, arrival, peer, marks, last)
            if body is not None:
                found.append(body)
            last = self._last
            number += 1
            if not data:
                return found

    def _one(
        self,
        raw: bytes,
        arrival: int,
        peer: str | None,
        marks: dict[str, Any],
        head: Message | None,
    ) -> bytes | None:
        """One entry; `head` is the message that a further part belongs to."""
        more = "part" in marks and "parts" not in marks
        raw = raw if more else raw.rstrip(b"\r\n\0")
        if not raw and not marks:
            return None
        text = raw.decode("utf-8", "replace")
        if "\0" in text:
            text = text.replace("\0", REPLACEMENT)
        if REPLACEMENT in text and text.encode() != raw:
            marks["raw"] = b64encode(raw).decode()
        if head is None:
            message = self._last = self._parser.parse(text, arrival)
            text = message.text
        else:
            message = head
        facts = message.facts
        if peer is not None:
            facts = {**facts, "peer": peer}
        metadata: dict[str, Any] = {}
        if facts:
            metadata["syslog"] = facts
        if marks:
            metadata["cortextx"] = marks
        return self._compose(
            ts=message.ts,
            severity=message.severity,
            message=text,
            source=self._source,
            facility=message.facility,
            app_name=message.app_name,
            process_id=message.process_id,
            metadata=metadata or None,
        )
