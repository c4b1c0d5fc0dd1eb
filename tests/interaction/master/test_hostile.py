"""A slave that says anything: the master stays whole, and within bounds."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.exchange import Invoke, Notify, RequestApproval
from cortextx.interaction import data
from cortextx.interaction.correlation import DEPTHS
from cortextx.interaction.data import DEFAULT_LIMITS, KINDS, Error
from cortextx.interaction.faults import Code
from cortextx.interaction.v2 import ALWAYS_DURABLE, MAY_BE_DURABLE
from tests.interaction.master.script import ALL, Script

CONTENTS = [
    DEFAULT_LIMITS,
    data.Attached("echo", "private", 1, 3),
    data.Gap(1, 2, "retention"),
    data.SessionState("idle"),
    data.Accepted(),
    data.Started(),
    data.Delta("x"),
    data.Message("user", "x"),
    data.Tool("t", "n", "s"),
    data.CommandResolved("c", None, "accepted"),
    data.Command(RequestApproval("t", Raw(b"{}"))),
    data.Command(Notify("info", "x")),
    data.Command(Invoke("n", Raw(b"1")), "e"),
    data.Command(Invoke("n", Raw(b"2")), "e"),
    data.Done("completed"),
    *(Error.of(code, "x") for code in Code),
]


@st.composite
def frames(draw: st.DrawFn) -> tuple[Any, list[str], dict[str, Any]]:
    """A frame that is legal by itself, whether or not it makes sense now."""
    content = draw(st.sampled_from(CONTENTS))
    kind = KINDS[type(content)][1]
    depth = draw(st.sampled_from(sorted(DEPTHS[kind])))
    ids = [
        draw(st.sampled_from(choices))
        for choices in (["a1", "a1.2", "a2", "z"], ["m2", "m3", "r"], ["u", "v"], ["c", "d"])
    ][: depth - 1]
    more: dict[str, Any] = {}
    if kind in ALWAYS_DURABLE or (kind in MAY_BE_DURABLE and draw(st.booleans())):
        more["seq"] = draw(st.integers(1, 8))
    if kind in ("welcome", "attached"):
        more["capabilities"] = ALL
    if kind == "attached":
        more |= {"mode": "interact", "session": "default"}
    return content, ids, more


class HostileTests(SynchronousTestCase):
    @settings(max_examples=150, deadline=None)
    @given(st.lists(st.one_of(frames(), st.sampled_from(["ask", "read", "time"])), max_size=40))
    def test_nothing_that_a_slave_says_breaks_the_master(self, steps: list[Any]) -> None:
        """v2, Idempotency: whatever comes, seqs go up, and what we send decodes."""
        script = Script()
        key, _ = script.begin()
        seqs: list[int] = []
        for step in steps:
            if script.machine.state == "waiting":
                script.reopen()
            if script.machine.state == "over":
                break
            match step:
                case "ask":
                    if script.machine.attachments[key].state != "over":
                        script.input(key)
                case "read":
                    seqs += [event.seq for event in script.events(key) if event.seq]
                case "time":
                    script.wait(1.0)
                case (content, ids, more):
                    script.say(content, *ids, **more)
        seqs += [event.seq for event in script.events(key) if event.seq]
        self.assertEqual(seqs, sorted(set(seqs)))

    @settings(max_examples=100, deadline=None)
    @given(st.lists(st.binary(max_size=60), max_size=10))
    def test_no_bytes_break_the_master(self, chunks: list[bytes]) -> None:
        """I22: bytes that are no frames end the connection, and nothing else."""
        script = Script()
        script.begin()
        for chunk in chunks:
            script.feed(chunk)
        self.assertIn(script.machine.state, ("open", "waiting"))
