"""Whether a peer is alive, told from pings, pongs and silence (PURE).

`now` is seconds of any clock that does not jump; the owner calls in when
`deadline` has passed.
"""

from __future__ import annotations

from dataclasses import dataclass

_PREFIX = b"alive:"


@dataclass(frozen=True, slots=True)
class Ping:
    """Send a ping with this payload (at most 125 bytes, RFC 6455 §5.5)."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Dead:
    """The peer left `missed` pings in a row unanswered."""

    missed: int


class Pinger:
    """Sends a ping every `interval` seconds, and gives a peer up after `allowed`
    unanswered ones in a row (§2, F21).

    Only a pong with the payload of a ping that is open counts, not any other
    byte. It answers that ping and the older ones, since a peer may answer only
    the newest of several (RFC 6455 §5.5.3). A late call makes up for nothing: a
    process that slept sends one ping and waits a whole interval for it.
    """

    __slots__ = ("_answered", "_dead", "_due", "_sent", "_sent_at", "allowed", "interval")

    def __init__(self, interval: float = 20.0, allowed: int = 3) -> None:
        self.interval = interval
        self.allowed = allowed
        self._due: float | None = None
        self._dead = False
        self._sent = 0
        self._answered = 0
        self._sent_at: dict[int, float] = {}

    @property
    def deadline(self) -> float | None:
        """When `time_passed` is due next; None before the start and after Dead."""
        return None if self._dead else self._due

    @property
    def missed(self) -> int:
        """Pings sent since the newest answered one."""
        return self._sent - self._answered

    def started(self, now: float) -> None:
        """Note that the peer is there: the first ping is due an interval later."""
        self._due = now + self.interval

    def time_passed(self, now: float) -> Ping | Dead | None:
        """Say what is due: a ping, the end (once), or nothing.

        The first call stands for `started` where that was not called.
        """
        if self._due is None:
            self.started(now)
            return None
        if self._dead or now < self._due:
            return None
        if self.missed >= self.allowed:
            self._dead = True
            return Dead(self.missed)
        self._sent += 1
        self._sent_at[self._sent] = now
        self._due = now + self.interval
        return Ping(_PREFIX + b"%d" % self._sent)

    def ponged(self, payload: bytes, now: float) -> float | None:
        """Note a pong; returns the round trip in seconds, or None if it answers no ping."""
        number = self._number(payload)
        sent_at = self._sent_at.get(number)
        if sent_at is None:
            return None
        for older in range(self._answered + 1, number + 1):
            self._sent_at.pop(older, None)
        self._answered = number
        return now - sent_at

    @staticmethod
    def _number(payload: bytes) -> int:
        digits = payload.removeprefix(_PREFIX)
        if digits == payload or not digits.isdigit() or len(digits) > 18 or digits[:1] == b"0":
            return 0
        return int(digits)


class Quiet:
    """A watchdog: expires when nothing was heard for `timeout` seconds (F36).

    It is armed by the first `heard` and disarmed by `stop`.
    """

    __slots__ = ("_deadline", "timeout")

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._deadline: float | None = None

    @property
    def deadline(self) -> float | None:
        """When it expires; None while it is not armed."""
        return self._deadline

    def heard(self, now: float) -> None:
        """Note a sign of life, or that waiting begins now."""
        self._deadline = now + self.timeout

    def stop(self) -> None:
        """Wait for nothing until the next `heard`."""
        self._deadline = None

    def expired(self, now: float) -> bool:
        """Whether the silence has lasted `timeout` seconds."""
        return self._deadline is not None and now >= self._deadline
