"""Numbered delivery: what a sender owes, and what a receiver may take (PURE).

`Outbox` is the sender's side, go-back-N over items numbered from 1; `Inbox` is
the receiver's admission rule for one connection (F33); `place` says what of a
run of numbered items is new against a high-water mark (§7, F11, F13).

A refusal must never turn into loss: were a push refused and the next one taken,
the receiver's high-water mark would pass the refused items and they would be
dropped as duplicates when they come again. So after a refusal at `s` an `Inbox`
refuses all that starts beyond `s` until the sender goes back, or until a fence
(a ping sent right behind the refusal, and its pong) proves that what comes now
was sent with the refusal in sight.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from cortextx.errors import LocalProtocolError, RemoteProtocolError


@dataclass(frozen=True, slots=True)
class Placement:
    """What of `count` items from `first` is new to a receiver at `high_water`.

    `skip` items at the front are duplicates, the rest is new. `gap` is the range
    (first, last) that the sender skipped, or None (F13). `high_water` is the mark
    once the new items are stored.
    """

    skip: int
    gap: tuple[int, int] | None
    high_water: int


def place(high_water: int, first: int, count: int) -> Placement:
    """Place a contiguous run of items against a high-water mark (§7, F11, F13)."""
    last = first + count - 1
    if last <= high_water:
        return Placement(count, None, high_water)
    if first <= high_water:
        return Placement(high_water - first + 1, None, last)
    gap = (high_water + 1, first - 1) if first > high_water + 1 else None
    return Placement(0, gap, last)


class Inbox:
    """One connection's admission rule: which pushes may be taken at all (F33).

    It knows nothing of the high-water mark; duplicates and gaps are the store's,
    in the transaction that holds them.
    """

    __slots__ = ("_fence", "_resend_from")

    def __init__(self) -> None:
        self._resend_from: int | None = None
        self._fence = 0

    @property
    def resend_from(self) -> int | None:
        """The first number that the sender must go back to, or None when in step."""
        return self._resend_from

    def admits(self, first: int) -> bool:
        """Say whether a push that starts at `first` may be taken now.

        A push at or below the refused number means that the sender went back:
        the refusal is then over.
        """
        if self._resend_from is None:
            return True
        if first <= self._resend_from:
            self._resend_from = None
            return True
        return False

    def refused(self, first: int) -> int:
        """Note that the push at `first` was refused; returns the fence to send.

        The caller sends the refusal and then a ping that carries the fence.
        Every refusal has a fence of its own and only the newest one counts: a
        push that was refused after an older fence went out may itself have been
        sent before the sender answered that fence. The number to go back to is
        the lowest that was refused.
        """
        if self._resend_from is None or first < self._resend_from:
            self._resend_from = first
        self._fence += 1
        return self._fence

    def fence_answered(self, fence: int) -> None:
        """Note the pong to a fence: after the newest one a jump is a real gap."""
        if fence == self._fence:
            self._resend_from = None


@dataclass(frozen=True, slots=True)
class Push:
    """One push in flight: its correlation `key` and the items it carries."""

    key: int
    first: int
    last: int
    size: int


class Outbox:
    """The sender's side: a bounded window of pushes, go-back-N after a refusal.

    Items are numbered from 1 without holes, except where the owner says so with
    `skipped` (evicted or set aside). `window` is the number of pushes that may be
    unanswered. After a refusal nothing is sent until every push in flight has
    been answered (`settling`); then sending restarts at `acked + 1`, or at the
    number the receiver named when that is lower than what was sent.
    """

    __slots__ = ("_acked", "_in_flight", "_next", "_resend", "window")

    def __init__(self, acked: int, window: int) -> None:
        self._acked = acked
        self._next = acked + 1
        self._in_flight: deque[Push] = deque()
        self._resend: int | None = None
        self.window = window

    @property
    def acked(self) -> int:
        """The highest number that the receiver has made durable."""
        return self._acked

    @property
    def next_first(self) -> int:
        """The number of the first item of the next push."""
        return self._next

    @property
    def in_flight(self) -> int:
        """The number of pushes that wait for an answer."""
        return len(self._in_flight)

    @property
    def bytes_in_flight(self) -> int:
        """The bytes of the pushes that wait for an answer."""
        return sum(push.size for push in self._in_flight)

    @property
    def settling(self) -> bool:
        """Whether a refusal is being waited out."""
        return self._resend is not None

    def may_send(self) -> bool:
        """Whether the window is open."""
        return self._resend is None and len(self._in_flight) < self.window

    def sent(self, key: int, first: int, last: int, size: int) -> None:
        """Note a push of the items `first` to `last`.

        A `first` beyond `next_first` means that the items between are gone for
        good. Raises LocalProtocolError if the window is closed or `first` was
        sent already.
        """
        if not self.may_send() or first < self._next or last < first:
            raise LocalProtocolError(f"push {first}..{last} does not follow {self._next}")
        self._in_flight.append(Push(key, first, last, size))
        self._next = last + 1

    def acknowledged(self, key: int, up_to: int, ceiling: int) -> int:
        """Note the answer to push `key`: all up to `up_to` is durable.

        `up_to` may lie beyond the push, as pushes of an earlier connection may
        have become durable meanwhile, but not beyond `ceiling`, the highest
        number ever given to an item. Returns the new `acked`. Raises
        RemoteProtocolError for an unknown push or an impossible `up_to`.
        """
        push = self._take(key)
        if up_to > ceiling:
            raise RemoteProtocolError(f"acknowledged {up_to}, but nothing beyond {ceiling} exists")
        if up_to < push.last:
            # An ack below the push's own end keeps the rest owed.
            self._go_back(up_to + 1)
        self._acked = max(self._acked, up_to)
        self._next = max(self._next, self._acked + 1)
        self._settled()
        return self._acked

    def refused(self, key: int, resend_from: int | None = None) -> Push:
        """Note that push `key` was refused; returns it.

        `resend_from` is the number that the receiver named (F33), else the
        push's own first. Raises RemoteProtocolError if no such push is in flight.
        """
        push = self._take(key)
        self._go_back(push.first if resend_from is None else min(resend_from, push.first))
        self._settled()
        return push

    def fast_forward(self, acked: int) -> None:
        """Start over on a new connection whose receiver has all up to `acked` (§7)."""
        self._in_flight.clear()
        self._resend = None
        self._acked = max(self._acked, acked)
        self._next = self._acked + 1

    def _take(self, key: int) -> Push:
        for push in self._in_flight:
            if push.key == key:
                self._in_flight.remove(push)
                return push
        raise RemoteProtocolError(f"an answer to {key}, which is not in flight")

    def _go_back(self, first: int) -> None:
        self._resend = first if self._resend is None else min(self._resend, first)

    def _settled(self) -> None:
        if self._resend is not None and not self._in_flight:
            self._next = max(self._resend, self._acked + 1)
            self._resend = None
