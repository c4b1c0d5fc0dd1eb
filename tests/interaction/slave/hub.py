"""Connections and one session, machines only, wired together without I/O.

A `Master` reads what its connection sends, checks each frame with the conformance
decoder, keeps its transcript, and acknowledges only if it is told to.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable
from typing import Any

import msgspec

from cortextx.core.exchange import Origin
from cortextx.interaction import data, v2
from cortextx.interaction.correlation import Correlation
from cortextx.interaction.data import DEFAULT_LIMITS, Limits
from cortextx.interaction.slave.actions import (
    AnswerGiven,
    CancelAsked,
    Close,
    Deliver,
    Facts,
    Fail,
    Fetch,
    InputAsked,
    LeaveSession,
    Mute,
    OpenSession,
    Publish,
    ReadPage,
    SessionAction,
    StatusAsked,
    Told,
)
from cortextx.interaction.slave.connection import Connection
from cortextx.interaction.slave.lines import tail_of
from cortextx.interaction.slave.policy import Rule, RulePolicy
from cortextx.interfaces.sessions import Peer
from tests.interaction.slave.mailbox import Mailbox

ME = Peer(1000, 1000, 42)
ALL = ("input", "observe", "status", "cancel", "command_result", "invoke", "replay")


class Hub:
    """One session and its connections."""

    def __init__(self, log: Iterable[bytes] = (), rules: Iterable[Rule] = (), **more: Any) -> None:
        self.box = Mailbox(log, **more)
        self.policy = RulePolicy(1000, ["echo"], list(rules))
        self.now = 0.0
        self.askers: dict[int, Any] = {}
        self.numbers = itertools.count(1)
        self.reads = 0

    def next_asker(self) -> int:
        """A number."""
        return next(self.numbers)

    def spread(self, actions: Iterable[SessionAction]) -> None:
        """Give everybody what a session said."""
        for action in list(actions):
            if isinstance(action, Publish):
                for asker, link in list(self.askers.items()):
                    link.act(link.machine.head_moved(asker, action.head, self.now))
            elif isinstance(action, Fail):
                for asker, link in list(self.askers.items()):
                    del self.askers[asker]
                    link.act(link.machine.session_failed(asker, action.error))
            elif isinstance(action, Told) and action.asker in self.askers:
                link = self.askers[action.asker]
                link.act(link.machine.told(action, self.now))

    def facts(self, after: int, lines: int, size: int) -> Facts:
        """A page, within both bounds, at least one line."""
        self.reads += 1
        page: list[bytes] = []
        for line in self.box.log[after : after + lines]:
            size -= len(line)
            if page and size < 0:
                break
            page.append(line)
        return Facts(after + 1, page, [tail_of(line) for line in page])

    def pass_time(self, seconds: float) -> None:
        """Let time pass for everybody."""
        self.now += seconds
        for link in set(self.askers.values()):
            link.act(link.machine.time_passed(self.now))
        self.spread(self.box.do(self.box.machine.time_passed(self.now)))


class Link:
    """The adapter of a machine without I/O: `out` is what it wrote."""

    def __init__(self, hub: Hub, machine: Any) -> None:
        self.hub = hub
        self.machine = machine
        self.out: list[bytes] = []
        self.closed: Close | None = None
        self.stuck = False
        self._todo: deque[Any] = deque()
        self._busy = False

    def act(self, actions: Iterable[Any]) -> None:
        """Carry out actions and write, until neither leads to more."""
        self._todo.extend(actions)
        if self._busy:
            return
        self._busy = True
        while True:
            while self._todo:
                self._one(self._todo.popleft())
            wrote = False
            while not self.machine.is_paused and self.closed is None:
                sent = self.machine.data_to_send()
                if not sent:
                    break
                wrote = True
                self.out.append(sent)
                if self.stuck:
                    self.machine.paused(self.hub.now)
            if self.closed is not None:
                break
            self._todo.extend(self.machine.output_sent(self.hub.now))
            if not self._todo and not wrote:
                break
        self._busy = False

    def _one(self, action: Any) -> None:
        hub, box = self.hub, self.hub.box
        match action:
            case OpenSession(asker=asker):
                hub.askers[asker] = self
                head = box.machine.durable
                self.act(self.machine.session_opened(asker, 1, head, hub.now))
            case LeaveSession(asker=asker):
                if hub.askers.pop(asker, None) is not None:
                    hub.spread(box.do(box.machine.asker_left(asker)))
            case Mute(asker=asker):
                hub.spread(box.do(box.machine.asker_muted(asker)))
            case Deliver(item=InputAsked() as item):
                hub.spread(box.do(box.machine.input_asked(item)))
            case Deliver(item=CancelAsked() as item):
                hub.spread(box.do(box.machine.cancel_asked(item, hub.now)))
            case Deliver(item=AnswerGiven() as item):
                hub.spread(box.do(box.machine.answer_given(item)))
            case Deliver(item=StatusAsked() as item):
                hub.spread(box.do(box.machine.status_asked(item)))
            case ReadPage(asker=asker, after=after, max_lines=lines, max_bytes=size):
                self.act(self.machine.page_read(asker, hub.facts(after, lines, size), hub.now))
            case Fetch(asker=asker, seqs=seqs):
                lines = [box.log[seq - 1] for seq in seqs]
                facts = Facts(seqs[0], lines, [tail_of(line) for line in lines])
                self.act(self.machine.fetched(asker, facts))
            case Close():
                self.closed = self.closed or action


class _Body(msgspec.Struct, gc=False):
    kind: str
    data: msgspec.Raw


class _Quick(msgspec.Struct, gc=False):
    """Just enough of a frame to follow it, where there are very many."""

    correlation: Ids
    event: _Body
    session_seq: int | None

    @property
    def kind(self) -> str:
        """As of a frame."""
        return self.event.kind


class Ids(msgspec.Struct, gc=False):
    """The part that tells attachments apart."""

    attachment_id: str | None


_quick = msgspec.json.Decoder(_Quick)


class Master(Link):
    """A v2 master on a connection of its own; `is_quick` reads without checking."""

    def __init__(
        self,
        hub: Hub,
        limits: Limits = DEFAULT_LIMITS,
        peer: Peer = ME,
        hello: bool = True,
    ) -> None:
        super().__init__(hub, Connection(peer, hub.policy, hub.next_asker, limits))
        self.frames: list[v2.Frame] = []
        self.is_quick = False
        if hello:
            self.machine_opened()

    def machine_opened(self) -> None:
        """Say hello."""
        frame = data.build(
            data.Hello((v2.ABI,)), Correlation("c"), capabilities=("input", "observe")
        )
        self.act(self.machine.opened(frame))

    def send(
        self, content: data.Data, *ids: str, seq: int | None = None, **more: Any
    ) -> list[v2.Frame]:
        """Send a frame; answers what came back."""
        frame = v2.encode(data.build(content, Correlation("c", *ids), session_seq=seq, **more))
        return self.send_line(frame[:-1])

    def send_line(self, line: bytes) -> list[v2.Frame]:
        """Send any line."""
        self.act(self.machine.line_received(line, self.hub.now))
        return self.read()

    def attach(
        self,
        attachment: str = "a",
        after: int | None = None,
        mode: v2.Mode = "interact",
        capabilities: tuple[Any, ...] = ALL,
        **more: Any,
    ) -> list[v2.Frame]:
        """Attach to the session."""
        session = more.pop("session", "default")
        where = data.Attach("echo", "private", after_session_seq=after, **more)
        if mode == "observe" and capabilities is ALL:
            capabilities = ("observe", "replay", "status")
        return self.send(where, attachment, mode=mode, session=session, capabilities=capabilities)

    def input(self, request_id: str, text: str = "hi", attachment: str = "a") -> list[v2.Frame]:
        """Send an input."""
        return self.send(data.Input(text), attachment, request_id, origin=Origin("test"))

    def ack(self, seq: int, attachment: str = "a") -> list[v2.Frame]:
        """Acknowledge."""
        return self.send(data.Ack(), attachment, seq=seq)

    def read(self) -> list[v2.Frame]:
        """What came since; every frame must decode (I40)."""
        text, self.out = b"".join(self.out), []
        lines = text.split(b"\n")[:-1]
        if self.is_quick:
            new: list[Any] = [_quick.decode(line) for line in lines]
        else:
            new = [v2.decode(line + b"\n", "slave") for line in lines]
        self.frames += new
        return new

    def facts(self, attachment: str = "a") -> list[int]:
        """The seqs that came on an attachment, as they came."""
        return [
            frame.session_seq
            for frame in self.frames
            if frame.correlation.attachment_id == attachment and frame.session_seq is not None
        ]


def kinds(frames: Iterable[v2.Frame]) -> list[str]:
    """The kinds of frames, and the codes of errors."""
    return [frame.kind if frame.kind != "error" else _code(frame) for frame in frames]


def _code(frame: v2.Frame) -> str:
    return str(msgspec.json.decode(frame.event.data)["code"])
