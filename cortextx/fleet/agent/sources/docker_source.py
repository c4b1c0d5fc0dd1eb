"""The Docker source: a list, an event stream, and a log stream for each container."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from cortextx.core.backoff import FullJitter
from cortextx.errors import StoreClosed, StoreFull
from cortextx.fleet.agent.entries import encode_body
from cortextx.fleet.agent.sources.docker_api import Body, EngineApi, Event, Refused
from cortextx.fleet.agent.sources.docker_following import Composing, Following
from cortextx.fleet.agent.sources.docker_roster import (
    Container,
    Follow,
    Forget,
    Rename,
    Roster,
)
from cortextx.fleet.agent.sources.docker_settings import DockerSettings
from cortextx.fleet.agent.sources.docker_trail import ContainerMark, decode_mark
from cortextx.fleet.agent.sources.report import SourceReport, SourceState
from cortextx.interfaces.fleet import ILogSource

if TYPE_CHECKING:
    from cortextx.fleet.agent.sources.journal_entries import Compose

KEY = "docker:"
SOON = 0.2
"""Seconds between an event and the list that it leads to."""
TICK = 1.0
SAY_EVERY = 60.0
MAX_EVENT = 1_048_576
NOT_READABLE = (404, 409, 500, 501)
"""What a daemon answers where a container's log driver cannot be read, or it is gone."""


@implementer(ILogSource)
class DockerSource:
    """Follows containers into the buffer. Constructor and calls as of every source."""

    log = Logger()

    def __init__(
        self,
        reactor: Any,
        name: str,
        settings: DockerSettings,
        put: Callable[..., Deferred[Any]],
        checkpoints: Callable[[], Mapping[str, bytes]],
        *,
        compose: Compose = encode_body,
        wall: Callable[[], float] = time.time,
        own: frozenset[str] | None = None,
        api: EngineApi | None = None,
    ) -> None:
        self.name = name
        self._reactor = reactor
        self._settings = settings
        self._put = put
        self._checkpoints = checkpoints
        self._compose = compose
        self._wall = wall
        self._api = api or EngineApi(reactor, settings.socket)
        self._roster = Roster(settings, own_containers() if own is None else own, random.random)
        self._backoff = FullJitter(random=random.random, base=0.5, cap=30.0)
        self._events_backoff = FullJitter(random=random.random, base=0.5, cap=30.0)
        self._marks: dict[str, ContainerMark] = {}
        self._followings: dict[str, Following] = {}
        self._timers: dict[str, Any] = {}
        self._events: Body | None = None
        self._event_rest = b""
        self._listing = False
        self._list_again = False
        self._why: str | None = "not started"
        self._said: dict[str, float] = {}
        self._running = False
        self._paused = False
        self._stopped: Deferred[None] | None = None
        self.counters: Counter[str] = Counter()

    # -- ILogSource --------------------------------------------------------------------

    def start(self) -> None:
        """See `ILogSource.start`."""
        self._running = True
        for key, data in self._checkpoints().items():
            mark = decode_mark(data) if key.startswith(KEY) else None
            if mark is not None:
                self._marks[key.removeprefix(KEY)] = mark
        self._list()
        self._tick()

    def stop(self) -> Deferred[None]:
        """See `ILogSource.stop`."""
        self._running = False
        for name in list(self._timers):
            self._cancel(name)
        if self._stopped is None:
            self._stopped = Deferred()
            if self._events is not None:
                self._events.close()
            for following in list(self._followings.values()):
                following.close()
            self._check_stopped()
        return self._stopped

    def pause(self) -> None:
        """See `ILogSource.pause`."""
        self._paused = True
        for following in self._followings.values():
            following.pause()

    def resume(self) -> None:
        """See `ILogSource.resume`."""
        self._paused = False
        for following in list(self._followings.values()):
            following.resume()
        if self._running:
            self._list_soon()

    def report(self) -> SourceReport:
        """How it is."""
        state: SourceState = "running"
        if self._paused:
            state = "paused"
        elif self._why is not None:
            state = "waiting"
        details = {
            "followed": sorted(f.container.name for f in self._followings.values())[:100],
            "waiting": self._roster.waiting,
        }
        return SourceReport(self.name, "docker", state, self._why, dict(self.counters), details)

    # -- the daemon --------------------------------------------------------------------

    def _list(self) -> None:
        self._cancel("list")
        if not self._running:
            return
        if self._listing:
            self._list_again = True
            return
        self._listing = True
        work = Deferred.fromCoroutine(self._api.containers())
        work.addCallbacks(self._listed, self._not_listed)
        work.addErrback(self._fault, "looking for containers")
        work.addBoth(self._list_ended)

    def _listed(self, containers: list[Container]) -> None:
        self._backoff.reset()
        self._why = None
        if not self._running:
            return
        if self._events is None and "events" not in self._timers:
            self._open_events()
        self._act(self._roster.listed(containers, self._now(), list(self._marks)))
        if self._roster.waiting:
            self._say("waiting", f"{self._roster.waiting} containers wait: too many are followed")

    def _not_listed(self, failure: Failure) -> None:
        # The HTTP client wraps what went wrong in an error without words.
        reasons = getattr(failure.value, "reasons", None)
        said = (reasons[0] if reasons else failure).getErrorMessage()
        self._why = f"{self._settings.socket}: {said[:200]}"
        self._say("list", f"the daemon cannot be asked: {self._why}")
        self._later("list", max(0.5, self._backoff.next_delay()), self._list)

    def _list_ended(self, _: object) -> None:
        self._listing = False
        again, self._list_again = self._list_again, False
        if self._running and "list" not in self._timers:
            self._later("list", SOON if again else self._settings.look_every, self._list)
        self._check_stopped()

    def _list_soon(self) -> None:
        self._later("list", SOON, self._list)

    def _open_events(self) -> None:
        if not self._running or self._events is not None:
            return
        self._event_rest = b""
        body = self._events = Body(self._event_data, lambda _: self._events_lost(body))
        work = Deferred.fromCoroutine(self._api.events(body))
        work.addCallbacks(lambda _: self._events_open(), lambda _: self._events_lost(body))

    def _events_open(self) -> None:
        # What happened before is in no event.
        self._events_backoff.reset()
        self._roster.changed()
        if self._running:
            self._list_soon()

    def _events_lost(self, body: Body) -> None:
        if self._events is body:
            self._events = None
            if self._running:
                delay = max(0.5, self._events_backoff.next_delay())
                self._later("events", delay, self._open_events)

    def _event_data(self, data: bytes) -> None:
        lines = (self._event_rest + data).split(b"\n")
        self._event_rest = lines.pop()
        if len(self._event_rest) > MAX_EVENT:
            self._event_rest = b""
        told = False
        for line in lines:
            try:
                event = msgspec.json.decode(line, type=Event)
            except (msgspec.MsgspecError, UnicodeError, RecursionError):
                continue
            if event.action.partition(":")[0] in ("start", "die", "rename", "destroy", "restart"):
                self._roster.changed(event.actor.id)
                told = True
        if told and self._running:
            self._list_soon()

    # -- containers --------------------------------------------------------------------

    def _act(self, actions: Sequence[Follow | Rename | Forget]) -> None:
        for action in actions:
            if isinstance(action, Follow):
                self._follow(action.container)
            elif isinstance(action, Rename):
                following = self._followings.get(action.container.id)
                if following is not None:
                    labels = self._settings.kept_labels(action.container.labels)
                    following.container = action.container
                    following.composing.renamed(action.container, labels)
            else:
                self._marks.pop(action.id, None)
                self._keep({KEY + action.id: None})

    def _follow(self, container: Container) -> None:
        now = self._micros() * 1000
        mark = self._marks.get(container.id)
        if mark is None:
            begin = now
            if self._settings.start == "start":
                begin = max(0, now - int(self._settings.since_secs) * 1_000_000_000)
            mark = self._marks[container.id] = ContainerMark(begin)
            self._keep({KEY + container.id: msgspec.json.encode(mark)})
        newest = max((stream.at for stream in mark.streams.values()), default=0)
        labels = self._settings.kept_labels(container.labels)
        following = self._followings[container.id] = Following(
            self._reactor,
            self._api,
            container,
            mark,
            Composing(self._compose, self._settings.form, container, labels),
            lambda bodies, mark: self._put(bodies, {KEY + container.id: msgspec.json.encode(mark)}),
            micros=self._micros,
            patient=newest > now,
            timeout=self._settings.partial_secs,
            ended=self._following_ended,
            stored=lambda mark, count: self._durable(container.id, mark, count),
        )
        self.counters["followings"] += 1
        following.start()
        if self._paused:
            following.pause()

    def _durable(self, id: str, mark: ContainerMark, count: int) -> None:
        self.counters["entries"] += count
        if id in self._marks:
            self._marks[id] = mark

    def _following_ended(self, following: Following, failure: Failure | None, new: int) -> None:
        id, now = following.container.id, self._now()
        self._followings.pop(id, None)
        if failure is None:
            self._roster.ended(id, new, now)
        else:
            error = failure.value
            refused = isinstance(error, Refused) and error.status in NOT_READABLE
            self._roster.failed(id, now, for_good=refused)
            self.counters["failures"] += 1
            if not failure.check(StoreFull, StoreClosed):
                text = f"{following.container.name}: {failure.getErrorMessage()[:200]}"
                self._say("failed", text)
        if self._running:
            self._list_soon()
        self._check_stopped()

    def _keep(self, checkpoints: Mapping[str, bytes | None]) -> None:
        self._put([], checkpoints).addErrback(lambda _: None)

    # -- time and words ----------------------------------------------------------------

    def _tick(self) -> None:
        now = self._now()
        for following in list(self._followings.values()):
            following.time_passed(now)
        if not self._paused:
            self._act(self._roster.due(now))
        self._later("tick", TICK, self._tick)

    def _later(self, name: str, delay: float, what: Callable[[], None]) -> None:
        self._cancel(name)

        def due() -> None:
            del self._timers[name]
            what()

        self._timers[name] = self._reactor.callLater(delay, due)

    def _cancel(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _say(self, kind: str, text: str) -> None:
        now = self._now()
        if now >= self._said.get(kind, float("-inf")) + SAY_EVERY:
            self._said[kind] = now
            self.log.warn("{name}: {text}", name=self.name, text=text)

    def _fault(self, failure: Failure, what: str) -> None:
        self.log.failure("{name}: {what} failed", failure, name=self.name, what=what)

    def _check_stopped(self) -> None:
        stopped = self._stopped
        if stopped is None or stopped.called or self._listing or self._followings:
            return
        stopped.callback(None)

    def _micros(self) -> int:
        return int(self._wall() * 1e6)

    def _now(self) -> float:
        return float(self._reactor.seconds())


def own_containers() -> frozenset[str]:
    """The id of the container that this process runs in, if it does (A35)."""
    ids: set[str] = set()
    for path, pattern in (
        ("/proc/self/cgroup", r"(?:^|[/:-])([0-9a-f]{64})(?:\.scope)?$"),
        ("/proc/self/mountinfo", r"/containers/([0-9a-f]{64})/hostname /etc/hostname "),
    ):
        try:
            with open(path) as file:
                ids.update(re.findall(pattern, file.read(1_048_576), re.MULTILINE))
        except OSError:
            continue
    return frozenset(ids)
