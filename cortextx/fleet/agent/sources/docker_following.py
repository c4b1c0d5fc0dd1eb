"""One container's log, from the daemon to the buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from cortextx.fleet.agent.reports import gap_reported
from cortextx.fleet.agent.sources.docker_api import Body, EngineApi
from cortextx.fleet.agent.sources.docker_frames import DockerFault, Frame, Multiplexed, Terminal
from cortextx.fleet.agent.sources.docker_roster import Container
from cortextx.fleet.agent.sources.docker_trail import (
    ContainerMark,
    ContainerTrail,
    Joined,
    since_text,
)
from cortextx.fleet.agent.sources.lines import pieces
from cortextx.fleet.agent.sources.parse import LineParser

if TYPE_CHECKING:
    from cortextx.fleet.agent.sources.journal_entries import Compose

HIGH_BYTES = 524_288
"""Bytes of entries that wait for the buffer, after which the daemon waits."""
SEEK_SECONDS = 30.0
"""Seconds without a frame after which what is looked for in a whole log is not there."""


class Composing:
    """How a container's lines become entries."""

    def __init__(
        self, compose: Compose, form: str, container: Container, labels: dict[str, str]
    ) -> None:
        self._compose = compose
        self._parser = LineParser(None, form)
        self._facts: dict[str, bytes] = {}
        self.renamed(container, labels)

    def renamed(self, container: Container, labels: dict[str, str]) -> None:
        """From now on it has this name and these labels."""
        self._name = "".join(c if c.isprintable() else "�" for c in container.name)
        self.source = f"docker:{self._name}"
        facts: dict[str, Any] = {"id": container.id[:12], "image": container.image[:512]}
        if labels:
            facts["labels"] = labels
        self._facts = {
            stream: msgspec.json.encode({"docker": {**facts, "stream": stream}})
            for stream in ("stdout", "stderr")
        }

    def bodies(self, line: Joined, arrival: int) -> list[bytes]:
        """The bodies of one joined line; `arrival` in µs UTC."""
        bodies = []
        facts = self._facts[line.stream]
        time = line.time.decode("ascii")
        for text, marks in pieces(line.text, part=line.part, more=line.more, partial=line.partial):
            parsed = self._parser.parse(text, arrival, arrival)
            metadata = facts
            if marks is not None:
                metadata = b'{"cortextx":%b,%b' % (msgspec.json.encode(marks), facts[1:])
            body = self._compose(
                ts=time,
                severity=parsed.severity,
                message=text,
                source=self.source,
                app_name=self._name,
                process_id=parsed.process_id,
                metadata=metadata,
            )
            if body is not None:
                bodies.append(body)
        return bodies


class Following:
    """Reads until the log ends, the daemon fails, the buffer refuses, or `close`.

    `ended(self, failure, frames)` is called once, when nothing is under way any more;
    `stored(mark)` after each put that is durable.
    """

    def __init__(
        self,
        reactor: Any,
        api: EngineApi,
        container: Container,
        mark: ContainerMark,
        composing: Composing,
        put: Callable[[list[bytes], ContainerMark], Deferred[Any]],
        *,
        micros: Callable[[], int],
        patient: bool,
        timeout: float,
        ended: Callable[[Following, Failure | None, int], None],
        stored: Callable[[ContainerMark, int], None],
    ) -> None:
        self.container = container
        self.composing = composing
        self._reactor = reactor
        self._api = api
        self._put = put
        self._micros = micros
        self._ended = ended
        self._stored = stored
        self._trail = ContainerTrail(mark, timeout=timeout, patient=patient)
        times = [stream.at for stream in mark.streams.values()]
        # A stream that wrote nothing yet may do so at any time since the beginning.
        since = min(times) if times else mark.begin
        self._since = "0" if patient else since_text(since)
        self._patient = patient
        self._frames: Multiplexed | Terminal = Multiplexed()
        self._body = Body(self._arrived, self._lost)
        self._bodies: list[bytes] = []
        self._size = 0
        self._held = False
        self._paused = False
        self._putting = False
        self._over = False
        self._failure: Failure | None = None
        self._told = False
        self._heard = 0.0
        self.new = 0

    def start(self) -> None:
        """Begin."""
        self._heard = self._reactor.seconds()
        work = Deferred.fromCoroutine(self._open())
        work.addErrback(self._lost)

    async def _open(self) -> None:
        if await self._api.has_terminal(self.container.id):
            self._frames = Terminal()
        if not self._over:
            await self._api.logs(self.container.id, self._since, self._body)
            if self._paused:
                self._hold()

    def pause(self) -> None:
        """Take no more for now."""
        self._paused = True
        self._hold()

    def resume(self) -> None:
        """Go on."""
        self._paused = False
        self._flow()

    def close(self) -> None:
        """Hang up; `ended` is called when no put is under way."""
        self._finish(None, give=False)

    def time_passed(self, now: float) -> None:
        """Seconds have passed: partials may be due."""
        if self._over or self._held:
            return
        if self._patient and self._trail.seeking and now >= self._heard + SEEK_SECONDS:
            self._trail.nothing_more()
        self._add(self._trail.time_passed(now))
        self._give()

    # Inside

    def _arrived(self, data: bytes) -> None:
        now = self._heard = float(self._reactor.seconds())
        try:
            frames: list[Frame] = self._frames.feed(data)
            before = self._trail.repeated
            for frame in frames:
                self._add(self._trail.take(frame, now))
            self.new += len(frames) - (self._trail.repeated - before)
        except (DockerFault, ValueError):
            self._finish(Failure(), give=True)
            return
        self._give()

    def _add(self, lines: list[Joined]) -> None:
        if self._trail.gaps:
            self._trail.gaps = 0
            detail = "the daemon no longer has what was read last"
            self._bodies.append(
                gap_reported(self.composing.source, "vacuumed", self._micros(), detail=detail)
            )
        arrival = self._micros()
        for line in lines:
            for body in self.composing.bodies(line, arrival):
                self._bodies.append(body)
                self._size += len(body)

    def _give(self) -> None:
        if self._size >= HIGH_BYTES:
            self._hold()
        if self._putting or not self._bodies:
            return
        bodies, self._bodies, self._size = self._bodies, [], 0
        mark = self._trail.mark
        self._putting = True
        put = self._put(bodies, mark)
        put.addCallbacks(self._durable, self._refused, (mark, len(bodies)))

    def _durable(self, _: object, mark: ContainerMark, count: int) -> None:
        self._putting = False
        self._stored(mark, count)
        self._give()
        self._flow()
        self._tell()

    def _refused(self, failure: Failure) -> None:
        self._putting = False
        self._bodies, self._size = [], 0
        self._finish(failure, give=False)
        self._tell()

    def _hold(self) -> None:
        if not self._held:
            self._held = True
            self._body.hold()

    def _flow(self) -> None:
        if self._held and not self._paused and self._size < HIGH_BYTES and not self._over:
            self._held = False
            self._body.go_on()

    def _lost(self, failure: Failure | None) -> None:
        self._finish(failure, give=True)

    def _finish(self, failure: Failure | None, give: bool) -> None:
        if not self._over:
            self._over = True
            self._failure = failure
            self._body.close()
            if give and failure is None:
                self._trail.nothing_more()
                self._add(self._trail.ended())
            if give:
                self._give()
            else:
                self._bodies, self._size = [], 0
        self._tell()

    def _tell(self) -> None:
        if self._over and not self._putting and not self._bodies and not self._told:
            self._told = True
            self._ended(self, self._failure, self.new)
