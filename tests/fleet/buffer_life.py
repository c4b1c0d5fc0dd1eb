"""What the buffer's tests share: limits, numbered entries, and one who writes them."""

from __future__ import annotations

from cortextx.fleet.agent.buffer import Buffer, BufferLimits
from cortextx.testing.disk import SimulatedDisk

TINY = BufferLimits(soft=1600, hard=2400, min_free=0, segment=400, cache=300)
ROOMY = BufferLimits(soft=2**20, hard=2**21, min_free=0, segment=400, cache=300)


def body(number: int) -> bytes:
    """The entry at position `number`, of a length that varies."""
    return b'"message":"%d%s","source":"file:/a"}' % (number, b"x" * (number * 7 % 40))


def segments(disk: SimulatedDisk) -> list[str]:
    return sorted(name for name in disk.names() if name.endswith(".seg"))


def everything(buffer: Buffer) -> dict[int, bytes]:
    """All that can be read, by seq, in batches of a few."""
    found: dict[int, bytes] = {}
    seq = buffer.acked + 1
    while batch := buffer.read(seq, 4, 10_000):
        if not batch.bodies:
            return found
        assert batch.first >= seq
        found.update(enumerate(batch.bodies, batch.first))
        seq = batch.first + len(batch.bodies)
    return found


class Writer:
    """Appends numbered entries whose checkpoint says how many there are."""

    def __init__(self, disk: SimulatedDisk, limits: BufferLimits = ROOMY) -> None:
        self.disk = disk
        self.limits = limits
        self.buffer = Buffer.open(disk, limits)

    def put(self, count: int, sync: bool = True) -> None:
        first = self.count + 1
        bodies = [body(n) for n in range(first, first + count)]
        self.buffer.append(bodies, {"file:n": b"%d" % (self.count + count)})
        if sync:
            self.buffer.sync()
            self.promise()

    @property
    def count(self) -> int:
        return int(self.buffer.checkpoints().get("file:n", b"0"))

    def promise(self) -> None:
        self.disk.mark((self.buffer.last, self.buffer.numbered))

    def reopen(self) -> None:
        self.disk = SimulatedDisk(self.disk.files())
        self.buffer = Buffer.open(self.disk, self.limits)
