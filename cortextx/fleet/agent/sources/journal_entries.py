"""One line of `journalctl -o json` as a record, and a record as the bodies of entries (PURE).

MESSAGE             the message; bytes that are no UTF-8 come as an array of numbers
PRIORITY            severity (without it `info`)
SYSLOG_FACILITY     facility, by name
SYSLOG_IDENTIFIER   app_name, else _COMM, else the unit
_PID                process_id, else SYSLOG_PID
__REALTIME_TIMESTAMP  ts
unit, transport, uid, boot and the like   metadata.journal, under the journal's names
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from cortextx.core.syslog import FACILITIES, SEVERITIES, Severity
from cortextx.fleet.agent.entries import encode_body
from cortextx.fleet.agent.sources.lines import pieces
from cortextx.fleet.contract import MAX_MESSAGE_CHARS

SOURCE = "journald"
MAX_FACT = 1024
"""Characters of a field in the metadata or of a name."""
MAX_CACHED = 1024
"""Combinations of metadata that are remembered as they are encoded."""

Value = str | list[Any] | None
"""A field: text, an array of bytes as numbers, or an array of either for repeated fields."""
Compose = Callable[..., "bytes | None"]


class Record(msgspec.Struct, frozen=True, gc=False):
    """One entry of the journal; `cursor` and `realtime` (µs) are always there."""

    cursor: str = msgspec.field(name="__CURSOR")
    realtime: str = msgspec.field(name="__REALTIME_TIMESTAMP")
    message: Value = msgspec.field(name="MESSAGE", default=None)
    priority: Value = msgspec.field(name="PRIORITY", default=None)
    facility: Value = msgspec.field(name="SYSLOG_FACILITY", default=None)
    identifier: Value = msgspec.field(name="SYSLOG_IDENTIFIER", default=None)
    syslog_pid: Value = msgspec.field(name="SYSLOG_PID", default=None)
    pid: Value = msgspec.field(name="_PID", default=None)
    comm: Value = msgspec.field(name="_COMM", default=None)
    unit: Value = msgspec.field(name="_SYSTEMD_UNIT", default=None)
    user_unit: Value = msgspec.field(name="_SYSTEMD_USER_UNIT", default=None)
    transport: Value = msgspec.field(name="_TRANSPORT", default=None)
    uid: Value = msgspec.field(name="_UID", default=None)
    hostname: Value = msgspec.field(name="_HOSTNAME", default=None)
    boot: Value = msgspec.field(name="_BOOT_ID", default=None)
    message_id: Value = msgspec.field(name="MESSAGE_ID", default=None)
    container: Value = msgspec.field(name="CONTAINER_NAME", default=None)


_decode = msgspec.json.Decoder(Record).decode


class Key(NamedTuple):
    """What an entry is known by: its journal's number series, its number, its boot (A29)."""

    series: str
    number: int
    boot: str


def decode_record(line: bytes | memoryview) -> Record | None:
    """The record of one line; None if it is none."""
    try:
        return _decode(line)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None


def key_of(cursor: str) -> Key | None:
    """The key in a cursor, None if it has another form than systemd's."""
    parts = cursor.split(";", 3)
    if len(parts) < 3 or not (cursor.startswith("s=") and parts[1].startswith("i=")):
        return None
    try:
        return Key(parts[0][2:], int(parts[1][2:], 16), parts[2].removeprefix("b="))
    except ValueError:
        return None


def raw_of(value: Value) -> bytes | str:
    """A field's text, or its bytes where it is no text; repeated fields as lines."""
    if isinstance(value, str):
        return value
    if not value:
        return ""
    try:
        return bytes(value)
    except (TypeError, ValueError):
        return "\n".join(text_of(part) for part in value if isinstance(part, str | list))


def text_of(value: Value) -> str:
    """The same as text, with U+FFFD for what is none."""
    raw = raw_of(value)
    return raw if isinstance(raw, str) else raw.decode("utf-8", "replace")


class OwnTraces(NamedTuple):
    """By what the agent knows its own entries (A35): its unit, and its pid in this boot."""

    units: frozenset[str] = frozenset()
    pid: str = ""
    boot: str = ""
    hostname: str = ""


NOTHING_OWN = OwnTraces()


class RecordMapper:
    """Turns records into bodies. Remembers encoded metadata, of which there is little
    variety. `compose` answers None for what a rule drops."""

    def __init__(self, compose: Compose = encode_body, own: OwnTraces = NOTHING_OWN) -> None:
        self._compose = compose
        self._own = own
        self._facts: dict[tuple[Value, ...], bytes] = {}

    def is_own(self, record: Record) -> bool:
        """Whether the agent itself wrote it, or it is of an excluded unit."""
        own = self._own
        if record.pid == own.pid and own.pid and record.boot == own.boot:
            return True
        return isinstance(record.unit, str) and record.unit in own.units

    def bodies(self, record: Record) -> Iterator[bytes | None]:
        """The bodies of one record: one, or the parts of a long message (F17)."""
        message = record.message
        simple = type(message) is str and len(message) <= MAX_MESSAGE_CHARS and "\0" not in message
        facts = self._metadata(record)
        texts = [(message, facts)] if simple else self._pieces(message, facts)
        try:
            moment = int(record.realtime)
        except ValueError:
            moment = 0
        name = record.identifier or record.comm or record.unit
        pid = record.pid or record.syslog_pid
        for text, metadata in texts:
            yield self._compose(
                ts=moment,
                severity=_severity(record.priority),
                message=text,
                source=SOURCE,
                facility=_facility(record.facility),
                app_name=None if name is None else _short(name),
                process_id=None if pid is None else _short(pid),
                metadata=metadata,
            )

    def _pieces(self, message: Value, facts: bytes) -> Iterator[tuple[str, bytes]]:
        raw = raw_of(message)
        data = raw.encode("utf-8", "replace") if isinstance(raw, str) else raw
        for text, marks in pieces(data):
            if marks is None:
                yield text, facts
            else:
                own = msgspec.json.encode(marks)
                yield text, b'{"cortextx":%b,%b' % (own, facts[1:])

    def _metadata(self, record: Record) -> bytes:
        key = (
            record.unit if type(record.unit) is str else None,
            record.user_unit if type(record.user_unit) is str else None,
            record.transport if type(record.transport) is str else None,
            record.uid if type(record.uid) is str else None,
            record.comm if type(record.comm) is str else None,
            record.hostname if type(record.hostname) is str else None,
            record.message_id if type(record.message_id) is str else None,
            record.container if type(record.container) is str else None,
            record.boot if type(record.boot) is str else None,
        )
        known = self._facts.get(key)
        if known is None:
            if len(self._facts) >= MAX_CACHED:
                self._facts.clear()
            known = self._facts[key] = self._encoded(key)
        return known

    def _encoded(self, key: tuple[Value, ...]) -> bytes:
        names = (
            "_SYSTEMD_UNIT", "_SYSTEMD_USER_UNIT", "_TRANSPORT", "_UID", "_COMM", "_HOSTNAME",
            "MESSAGE_ID", "CONTAINER_NAME", "_BOOT_ID",
        )  # fmt: skip
        facts = {name: _short(value) for name, value in zip(names, key, strict=True) if value}
        if facts.get("_HOSTNAME") == self._own.hostname:
            del facts["_HOSTNAME"]
        return msgspec.json.encode({"journal": facts})


def _short(value: Value) -> str:
    return text_of(value)[:MAX_FACT].replace("\0", "�")


_SEVERITY: dict[Value, Severity] = {str(n): name for n, name in enumerate(SEVERITIES)}
_FACILITY = {str(number): name for number, name in enumerate(FACILITIES)}


def _severity(value: Value) -> Severity:
    return _SEVERITY.get(value, "info") if type(value) is str else "info"


def _facility(value: Value) -> str | None:
    return _FACILITY.get(value) if type(value) is str else None
