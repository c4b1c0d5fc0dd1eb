"""v1 clients that come, cut, resume and retry in any order, over crashes: nobody misses a fact."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core import exchange as x
from cortextx.interaction import v1
from tests.interaction.slave.hub import Hub
from tests.interaction.slave.v1_client import V1Client, an_input

numbers = st.integers(0, 5)
steps = st.tuples(
    st.sampled_from(
        ("ask", "ask", "resume", "cut", "half", "rubbish", "say", "say", "end", "crash")
    ),
    numbers,
)


class Walk:
    """A hub, the clients on it, and what each has a right to."""

    def __init__(self) -> None:
        self.hub = Hub()
        self.inputs: list[tuple[str, V1Client]] = []
        self.resumes: list[tuple[int, V1Client]] = []

    def step(self, what: str, n: int) -> None:
        """Do one thing."""
        live = [c for _, c in [*self.inputs, *self.resumes] if not c.is_closed]
        client = live[n % len(live)] if live else None
        run = self.running()
        if what == "ask":
            self.inputs.append((f"r{n}", V1Client(self.hub, an_input(f"r{n}"))))
        elif what == "resume":
            after = min(n, len(self.hub.box.log))
            request = v1.Resume(f"q{len(self.resumes)}", "default", str(after))
            self.resumes.append((after, V1Client(self.hub, request)))
        elif what == "cut" and client is not None:
            client.act(client.machine.peer_lost())
        elif what == "half" and client is not None:
            client.act(client.machine.input_ended())
        elif what == "rubbish" and client is not None:
            client.say(b"rubbish")
        elif what == "say" and run is not None:
            events = [x.Delta("-", run, "d"), x.Message("-", run, "assistant", "m")]
            self.hub.spread(self.hub.box.emit(run, *events))
        elif what == "end" and run is not None:
            self.hub.spread(self.hub.box.end(run))
        elif what == "crash":
            self.check()
            self.hub = Hub(self.hub.box.log)
            self.inputs.clear()
            self.resumes.clear()

    def running(self) -> str | None:
        """The run that goes on."""
        done = {fact["correlation"]["run_id"] for fact in self.facts() if kind(fact) == "done"}
        started = [run for run in self.hub.box.started() if run not in done]
        return started[0] if started else None

    def facts(self) -> list[dict[str, Any]]:
        """The log."""
        return [json.loads(line) for line in self.hub.box.log]

    def check(self) -> None:
        """Each client has the facts that it should, in order, and once."""
        facts = self.facts()
        for request_id, client in self.inputs:
            wanted = [
                fact["session_seq"]
                for fact in facts
                if fact["correlation"]["request_id"] == request_id and not is_users(fact)
            ]
            had = [seq for seq in client.seqs() if seq is not None]
            assert had == wanted[: len(had)], (request_id, had, wanted)
            if client.closed is not None and not client.closed.abort:
                assert had == wanted, (request_id, had, wanted)
        for after, client in self.resumes:
            had = [seq for seq in client.seqs() if seq is not None]
            shown = [
                fact["session_seq"]
                for fact in facts
                if fact["session_seq"] > after and fact["event"]["data"].get("type") != "command"
            ]
            assert had == shown[: len(had)], (after, had, shown)
        starts = [f["correlation"]["run_id"] for f in facts if kind(f) == "started"]
        assert len(starts) == len(set(starts))


def kind(fact: dict[str, Any]) -> str:
    """The kind of a fact."""
    return str(fact["event"]["kind"])


def is_users(fact: dict[str, Any]) -> bool:
    """Whether it is what the user said (I37)."""
    return bool(fact["event"]["data"].get("role") == "user")


class WalkTests(SynchronousTestCase):
    @settings(max_examples=60, deadline=None)
    @given(st.lists(steps, max_size=40))
    def test_nobody_misses_a_fact_or_has_one_twice(self, walk: list[tuple[str, int]]) -> None:
        """Whatever comes between, a stream is the log's own facts in order, whole if it ended."""
        at = Walk()
        for what, n in walk:
            at.step(what, n)
        while at.running() is not None:
            at.step("end", 0)
        at.check()
        for _, client in [*at.inputs, *at.resumes]:
            assert client.is_closed
