"""From what a source read to an entry's body, past the rules (PURE but for the clock given).

`Composer.compose` has the signature of `entries.encode_body`, and is that very function
where no rule can apply to the source: no rules cost nothing. Otherwise it answers None for
an entry that a rule ends. Files are encoded in several threads, so what is counted is
counted under a lock.
"""

from __future__ import annotations

import random as random_numbers
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from hashlib import blake2b
from threading import Lock
from typing import Any, Protocol

import msgspec

from cortextx.core.budgets import LeakyBucket
from cortextx.core.syslog import SEVERITY_NUMBER
from cortextx.fleet.agent.entries import encode_body
from cortextx.fleet.agent.rules import Rule
from cortextx.fleet.contract import MAX_ENTRY_BYTES, MAX_MESSAGE_CHARS

MAX_SOURCES = 4096
"""Sources (files, containers) that a composer remembers the rules and rates of."""
MAX_DEPTH = 100

_decode = msgspec.json.decode
_encode = msgspec.json.encode


class Compose(Protocol):
    """How a source makes entries; None: a rule has ended this one."""

    def __call__(
        self,
        *,
        ts: datetime | int | str,
        severity: str,
        message: str,
        source: str,
        facility: str | None = None,
        app_name: str | None = None,
        process_id: str | None = None,
        metadata: bytes | dict[str, Any] | None = None,
    ) -> bytes | None: ...


class Composer:
    """The rules for one source's entries.

    `source_kind` and `source_name` are the configured source's: a rule whose
    `match.source` can never meet an entry of that kind is left out. `clock` is
    monotonic seconds, `random` a float from 0 to below 1.
    """

    def __init__(
        self,
        rules: Iterable[Rule],
        source_kind: str,
        source_name: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random_numbers.random,
    ) -> None:
        self._rules = tuple(rule for rule in rules if _may_meet(rule, source_kind, source_name))
        self._clock = clock
        self._random = random
        self._lock = Lock()
        self._by_source: dict[str, tuple[Rule, ...]] = {}
        self._buckets: dict[tuple[int, str], LeakyBucket] = {}
        self.compose: Compose = self._compose if self._rules else encode_body

    def _compose(
        self,
        *,
        ts: datetime | int | str,
        severity: str,
        message: str,
        source: str,
        facility: str | None = None,
        app_name: str | None = None,
        process_id: str | None = None,
        metadata: bytes | dict[str, Any] | None = None,
    ) -> bytes | None:
        number = SEVERITY_NUMBER[severity]
        rules = self._by_source.get(source)
        for rule in self._rules_of(source) if rules is None else rules:
            match = rule.match
            if not match.worst <= number <= match.mildest:
                continue
            if match.app is not None and match.app.match(app_name or "") is None:
                continue
            if match.message is not None and not match.message.found_in(message):
                continue
            if rule.action == "redact":
                message, metadata = self._redact(rule, message, metadata)
                continue
            kept = self._keeps(rule, source, message, app_name, process_id)
            with self._lock:
                rule.tally.matched += 1
                rule.tally.dropped += not kept
            if not kept:
                return None
            if rule.action == "sample":
                metadata = _marked(metadata, {"sampled": rule.keep})
        return encode_body(
            ts=ts,
            severity=severity,
            message=message,
            source=source,
            facility=facility,
            app_name=app_name,
            process_id=process_id,
            metadata=metadata,
        )

    def _rules_of(self, source: str) -> tuple[Rule, ...]:
        """The rules that may apply to entries of one source."""
        found = tuple(
            rule
            for rule in self._rules
            if rule.match.source is None or rule.match.source.match(source)
        )
        with self._lock:
            if len(self._by_source) >= MAX_SOURCES:
                self._by_source.clear()
            self._by_source[source] = found
        return found

    def _keeps(
        self, rule: Rule, source: str, message: str, app: str | None, process: str | None
    ) -> bool:
        if rule.action == "drop":
            return False
        if rule.action == "limit":
            return self._within(rule, source)
        if rule.by == "random":
            return self._random() < rule.keep
        value = {"message": message, "app_name": app, "process_id": process}[rule.by] or ""
        return share(value) < rule.keep

    def _within(self, rule: Rule, source: str) -> bool:
        key = (id(rule), source)
        with self._lock:
            bucket = self._buckets.get(key)
            if bucket is None:
                if len(self._buckets) >= MAX_SOURCES:
                    self._buckets.pop(next(iter(self._buckets)))
                bucket = self._buckets[key] = LeakyBucket(rule.rate, rule.burst)
            return bucket.take(1.0, self._clock()) == 0.0

    def _redact(
        self, rule: Rule, message: str, metadata: bytes | dict[str, Any] | None
    ) -> tuple[str, bytes | dict[str, Any] | None]:
        """The message and the metadata without what the rule's pattern matches.

        Bytes that were kept because they are no text (F16) go with it: they hold
        what the message held.
        """
        assert rule.pattern is not None and rule.replacement is not None
        message, count = rule.pattern.replace(rule.replacement, message, MAX_MESSAGE_CHARS)
        if len(message) > MAX_MESSAGE_CHARS:
            message = message[:MAX_MESSAGE_CHARS]
            metadata = _marked(metadata, {"cut": True})
        if metadata is not None:
            facts = _decode(metadata) if isinstance(metadata, bytes) else metadata
            redaction = _Redaction(rule)
            changed = redaction.of(facts)
            count += redaction.count
            if redaction.room < 0:
                marks = changed.get("cortextx")
                flags = marks.items() if isinstance(marks, dict) else ()
                kept = {k: v for k, v in flags if not isinstance(v, str | list | dict)}
                changed = {"cortextx": {**kept, "cut": True}}
            if count:
                marks = changed.get("cortextx")
                if isinstance(marks, dict) and "raw" in marks:
                    marks = {key: value for key, value in marks.items() if key != "raw"}
                    changed = {**changed, "cortextx": {**marks, "cut": True}}
                metadata = changed
        with self._lock:
            rule.tally.matched += 1
            rule.tally.redacted += count
        return message, metadata


def share(value: str) -> float:
    """A number from 0 to below 1 that is always the same for the same text."""
    digest = blake2b(value.encode("utf-8", "surrogatepass"), digest_size=7).digest()
    return int.from_bytes(digest, "big") / 2**56


def tallies(rules: Iterable[Rule]) -> dict[str, dict[str, int]]:
    """What each rule did since the agent started, by name; for a status and metrics."""
    return {
        rule.name: {
            "matched": rule.tally.matched,
            "dropped": rule.tally.dropped,
            "redacted": rule.tally.redacted,
        }
        for rule in rules
    }


def _may_meet(rule: Rule, kind: str, name: str) -> bool:
    """Whether entries of a source can match the rule; yes where that is not known before."""
    source = rule.match.source
    if source is None:
        return True
    if kind in ("journald", "custom"):
        return source.match("journald" if kind == "journald" else f"custom:{name}") is not None
    return True


def _marked(metadata: bytes | dict[str, Any] | None, marks: Mapping[str, Any]) -> dict[str, Any]:
    facts: dict[str, Any] = _decode(metadata) if isinstance(metadata, bytes) else metadata or {}
    known = facts.get("cortextx")
    return {**facts, "cortextx": {**(known if isinstance(known, dict) else {}), **marks}}


class _Redaction:
    """One rule's work on an entry's metadata.

    `count` is its replacements. `room` is the characters that the metadata's strings may
    still have; below 0 it is too big for an entry, and strings after that are left empty.
    """

    def __init__(self, rule: Rule) -> None:
        assert rule.pattern is not None and rule.replacement is not None
        self._pattern, self._replacement = rule.pattern, rule.replacement
        self.count = 0
        self.room = MAX_ENTRY_BYTES

    def of(self, value: Any, depth: int = 0) -> Any:
        """A JSON value with all its strings redacted."""
        if isinstance(value, str):
            if self.room < 0:
                return ""
            text, count = self._pattern.replace(self._replacement, value, self.room)
            self.count += count
            self.room -= len(text)
            return text
        if depth > MAX_DEPTH:
            return value
        if isinstance(value, dict):
            return {key: self.of(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list):
            return [self.of(item, depth + 1) for item in value]
        return value
