"""Frames of every kind, and strategies for many more of them."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from cortextx.core import exchange as x
from cortextx.core.jsontext import encode
from cortextx.interaction import data, v1, v2
from cortextx.interaction.correlation import DEPTHS, Correlation
from cortextx.interaction.v2 import Frame

CHAIN = Correlation("con", "att", "req", "run", "cmd")

COMMAND = x.RequestApproval("sh", Raw(b'{"cmd":"ls"}'))

DATA: list[data.Data] = [
    data.Hello((v2.ABI,), (v1.ABI,), "m"),
    data.DEFAULT_LIMITS,
    data.Attach("executor", "private", after_session_seq=41),
    data.Attached("executor", "shared", 42, 50, "team"),
    data.Detach(),
    data.Ack(),
    data.Gap(1, 9, "retention"),
    data.Input("hello", Raw(b'{"a":1}'), "/srv"),
    data.StatusRequest(),
    data.SessionState("active", "tool", 3, 50),
    data.Cancel(),
    data.Accepted(),
    data.Started("m"),
    data.Delta("d"),
    data.Message("assistant", "t", 1, 2),
    data.Tool("k", "ls", "requested"),
    data.CommandResolved("cmd", "e", "accepted"),
    data.Command(COMMAND, "e"),
    data.CommandResult(x.Value(Raw(b"[1]")), "e"),
    data.Done("error", data.Error("internal", "m", False)),
    data.Error("busy", "m", True),
]
"""One of each type."""


def frame(what: data.Data, seq: int = 7, depth: int | None = None) -> Frame:
    """A legal frame for `what`, durable where it may be."""
    side, kind = data.KINDS[type(what)]
    durable = side == "slave" and kind in v2.ALWAYS_DURABLE | v2.MAY_BE_DURABLE
    members: dict[str, Any] = {}
    if kind in v2.WITH_CAPABILITIES:
        members["capabilities"] = ("input", "observe")
    if kind in v2.WITH_SESSION:
        members |= {"mode": "interact", "session": "default"}
    if kind == "input":
        members["origin"] = x.Origin("terminal", "tty1")
    return data.build(
        what,
        CHAIN.prefix(max(DEPTHS[kind]) if depth is None else depth),
        session_seq=seq if durable or kind == "ack" else None,
        **members,
    )


def wire(what: data.Data) -> dict[str, Any]:
    """The same as plain JSON values, to be spoilt."""

    value: dict[str, Any] = msgspec.json.decode(v2.encode(frame(what)))
    return value


def line(value: Any) -> bytes:
    """A value as a line."""
    return encode(value) + b"\n"


identifiers = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=32)
seqs = st.integers(1, v2.MAX_SEQ)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
names = st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,20}", fullmatch=True).filter(
    lambda name: name != "index"
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64) | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
).filter(lambda value: value not in (float("inf"), float("-inf")))
raws = json_values.map(lambda value: Raw(encode(value)))
objects = st.dictionaries(texts, json_values, max_size=3).map(lambda value: Raw(encode(value)))
origins = st.builds(
    x.Origin,
    identifiers,
    st.none() | identifiers,
    st.none() | identifiers,
    metadata=st.dictionaries(texts, texts, max_size=3),
)
commands: st.SearchStrategy[x.Command] = st.one_of(
    st.builds(x.RequestInput, texts),
    st.builds(x.RequestApproval, texts, raws),
    st.builds(x.Notify, texts, texts),
    st.builds(x.Invoke, texts, raws),
)
results: st.SearchStrategy[x.Result] = st.one_of(
    st.builds(x.Accepted), st.builds(x.Rejected, texts), st.builds(x.Value, raws)
)
errors = st.builds(data.Error, texts, texts, st.booleans())
effects = st.none() | identifiers
seq_or_none = st.none() | seqs


def _correlations(depth: int) -> st.SearchStrategy[Correlation]:
    return st.lists(identifiers, min_size=depth, max_size=depth).map(lambda ids: Correlation(*ids))


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    """Any legal frame."""
    what = draw(payloads)
    side, kind = data.KINDS[type(what)]
    depth = draw(st.sampled_from(sorted(DEPTHS[kind])))
    seq: int | None = None
    if kind in v2.ALWAYS_DURABLE or kind == "ack":
        seq = draw(seqs)
    elif side == "slave" and kind in v2.MAY_BE_DURABLE:
        seq = draw(seq_or_none)
    members: dict[str, Any] = {}
    if kind in v2.WITH_SESSION:
        mode = draw(st.sampled_from(["observe", "interact"]))
        extra = draw(st.sets(st.sampled_from(["status", "replay"])))
        if mode == "interact":
            extra |= draw(st.sets(st.sampled_from(sorted(v2.CAPABILITIES))))
        needed = "observe" if mode == "observe" else "input"
        members = {
            "mode": mode,
            "session": draw(names),
            "capabilities": tuple(sorted(extra | {needed})),
        }
    elif kind in v2.WITH_CAPABILITIES:
        chosen = draw(st.sets(st.sampled_from(sorted(v2.CAPABILITIES)), min_size=1))
        members["capabilities"] = tuple(chosen)
    if kind == "input":
        members["origin"] = draw(origins)
    return data.build(what, draw(_correlations(depth)), session_seq=seq, **members)


payloads: st.SearchStrategy[data.Data] = st.one_of(
    st.builds(data.Hello, st.lists(texts, max_size=2).map(tuple), master_id=st.none() | texts),
    st.just(data.DEFAULT_LIMITS),
    st.builds(
        data.Attach,
        names,
        st.just("shared"),
        st.none() | names,
        st.none() | st.integers(0, v2.MAX_SEQ),
        st.none() | st.integers(0, 2**32 - 1),
    ),
    st.builds(data.Attached, names, st.sampled_from(["private", "temp"]), seqs, seqs),
    st.sampled_from(
        [data.Detach(), data.Ack(), data.StatusRequest(), data.Cancel(), data.Accepted()]
    ),
    st.tuples(seqs, seqs, texts).map(lambda g: data.Gap(min(g[:2]), max(g[:2]), g[2])),
    st.builds(data.Input, texts, st.just(UNSET) | objects, st.none() | texts),
    st.builds(data.SessionState, texts, st.none() | texts, st.integers(0, 2**32 - 1), seqs),
    st.builds(data.Started, st.none() | texts),
    st.builds(data.Delta, texts, seq_or_none, seq_or_none),
    st.builds(data.Message, texts, texts),
    st.builds(data.Tool, texts, texts, texts),
    st.builds(data.CommandResolved, texts, effects, texts),
    st.builds(data.Command, commands, effects),
    st.builds(data.CommandResult, results, effects),
    st.builds(data.Done, st.sampled_from(["completed", "error"]), st.none() | errors),
    errors,
)
"""Any data of ours."""

v1_ids = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=40
)
no_nul = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=40)
requests: st.SearchStrategy[v1.Request] = st.one_of(
    st.builds(
        v1.Input,
        v1_ids,
        v1_ids,
        st.sampled_from(["private", "shared", "temp"]),
        no_nul,
        origins,
        st.just(UNSET) | objects,
        st.none() | v1_ids,
        st.none() | v1_ids,
        st.just(UNSET) | v1_ids,
    ),
    st.builds(v1.Resume, v1_ids, v1_ids, st.none() | v1_ids),
    st.builds(v1.Status, v1_ids, v1_ids),
    st.builds(v1.Cancel, v1_ids, v1_ids),
    st.builds(v1.CommandResult, v1_ids, v1_ids, v1_ids, results),
)
events: st.SearchStrategy[x.Event] = st.one_of(
    st.builds(x.RunAccepted, v1_ids, v1_ids, v1_ids),
    st.builds(x.RunStarted, v1_ids, v1_ids, st.none() | texts),
    st.builds(x.Delta, v1_ids, v1_ids, texts),
    st.builds(x.Message, v1_ids, v1_ids, texts, texts),
    st.builds(x.ToolCall, v1_ids, v1_ids, texts, texts, texts),
    st.builds(x.CommandIssued, v1_ids, v1_ids, v1_ids, commands),
    st.builds(x.SessionStatus, v1_ids, v1_ids, texts, st.none() | texts, st.integers(0, 99)),
    st.builds(
        x.Failure,
        v1_ids,
        run=st.none() | v1_ids,
        code=texts,
        message=texts,
        retryable=st.booleans(),
    ),
    st.builds(x.RunDone, v1_ids, v1_ids, texts),
)
"""Any event, as a v1 stream carries it."""
