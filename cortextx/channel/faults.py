"""What can be wrong with a channel frame (PURE; I22, I23).

A `FramingFault` is bytes that are no frame: nothing behind them can be trusted. A
`ShapeFault` is a readable frame that breaks a rule; the connection may live on.
Both speak in words of ours, which never repeat the peer's, and may be sent back.
"""

from __future__ import annotations

from cortextx.errors import LocalProtocolError, RemoteProtocolError


class FrameFault(RemoteProtocolError):
    """A peer's frame is refused: `field` is the path at fault, `expected` what belongs there."""

    def __init__(self, field: str, expected: str) -> None:
        super().__init__(f"{field}: expected {expected}")
        self.field = field
        self.expected = expected


class FramingFault(FrameFault):
    """The bytes are not one line of UTF-8 JSON within the bounds; end the connection.

    `too_long` says that it is for their number.
    """

    def __init__(self, field: str, expected: str, *, too_long: bool = False) -> None:
        super().__init__(field, expected)
        self.too_long = too_long


class ShapeFault(FrameFault):
    """A readable frame is not one of this ABI, or not one for its sender.

    `request_id` is what an `error` frame may name: the frame's request id, or the
    event id of what a platform sent; None where neither could be told.
    """

    def __init__(self, field: str, expected: str, request_id: str | None = None) -> None:
        super().__init__(field, expected)
        self.request_id = request_id


class IllegalValue(LocalProtocolError, ValueError):
    """A value was put together that the contract forbids: `place` in it, and why.

    Out of our own code it is a bug. It is a ValueError so that the JSON border
    makes a JsonShapeError of it where a peer's frame is decoded.
    """

    def __init__(self, place: str, expected: str) -> None:
        # The border strips "expected "; `frames` splits the rest at the colon again.
        super().__init__(f"expected {place}: {expected}")
        self.place = place
        self.expected = expected
