"""What is seen of live hosts, collected, and written now and then in one go."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from cortextx.errors import in_words
from cortextx.interfaces.fleet import Presence

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.interfaces import IDelayedCall
    from twisted.python.failure import Failure

    from cortextx.interfaces.fleet import HostRecord, IHostRegistry


class PresenceBook:
    """See the module; `interval` answers the seconds from a note to its being written."""

    log = Logger()

    def __init__(
        self, reactor: Any, registry: IHostRegistry, interval: Callable[[], float]
    ) -> None:
        self._reactor = reactor
        self._registry = registry
        self._interval = interval
        self._seen: dict[tuple[str, str | None], Presence] = {}
        self._call: IDelayedCall | None = None
        self._closed = False
        self.failing = False
        """Whether the last write failed; it is tried again by itself."""

    def note(self, presence: Presence) -> None:
        """Something was seen of a host's session."""
        key = (presence.host_id, presence.session_id)
        older = self._seen.get(key)
        self._seen[key] = presence if older is None else _merged(older, presence)
        self._flush_later()

    def close(self) -> None:
        """What cannot be written from now on is not tried again by itself."""
        self._closed = True

    def flush(self) -> Deferred[None]:
        """Write what was seen; fires when it is written, or was not and will be tried again."""
        if self._call is not None:
            self._call.cancel()
            self._call = None
        seen, self._seen = self._seen, {}
        if not seen:
            return succeed(None)

        def failed(failure: Failure) -> None:
            if not self.failing:
                self.log.warn(
                    "what was seen of hosts could not be written, and will be tried again: {why}",
                    why=in_words(failure.value),
                )
            self.failing = True
            for key, presence in seen.items():
                newer = self._seen.get(key)
                self._seen[key] = presence if newer is None else _merged(presence, newer)
            if not self._closed:
                self._flush_later()

        def written(_: None) -> None:
            if self.failing:
                self.log.info("what was seen of hosts is written again")
            self.failing = False

        return self._registry.seen(list(seen.values())).addCallbacks(written, failed)

    def _flush_later(self) -> None:
        if self._call is None:
            self._call = self._reactor.callLater(self._interval(), self._due)

    def _due(self) -> None:
        self._call = None
        self.flush()


def _merged(older: Presence, newer: Presence) -> Presence:
    """Both in one: what the newer one knows, else what the older one knew."""
    known = {
        name: value
        for name in Presence.__dataclass_fields__
        if (value := getattr(newer, name)) is not None
    }
    return replace(older, **known)


class Lags:
    """How far hosts are behind: what they said in a heartbeat, less what was stored since.

    A heartbeat comes every half minute, and never from a host that has gone; what it
    said of a backlog is long untrue when the backlog has been stored.
    """

    def __init__(self) -> None:
        self._numbered: dict[str, int] = {}

    def told(self, host_id: str, accepted_seq: int, lag: int) -> None:
        """A heartbeat said `lag`, when all up to `accepted_seq` was stored."""
        self._numbered[host_id] = accepted_seq + lag

    def forget(self, host_id: str) -> None:
        """The host's row has gone."""
        self._numbered.pop(host_id, None)

    def of(self, record: HostRecord) -> int | None:
        """Entries that the host had numbered and this server not stored; None while it said
        nothing. What a host said to an earlier process stands as it was said."""
        numbered = self._numbered.get(record.host_id or "")
        return record.push_lag_seq if numbered is None else max(0, numbered - record.accepted_seq)
