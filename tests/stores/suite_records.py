"""What holds for what every store keeps beside logs, and for its counts: a mixin."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from msgspec import Raw
from twisted.internet.defer import maybeDeferred
from zope.interface.verify import verifyObject

from cortextx.core.marks import OWN_SOURCE
from cortextx.errors import BadQuery, NameTaken, UnknownEntry, UnknownHost, UnknownName
from cortextx.fleet.contract import LogEntry
from cortextx.interfaces.fleet import EntryFilter
from cortextx.interfaces.fleet_records import (
    IApiTokens,
    IAuditLog,
    IConfigs,
    IMetricStore,
    IProbeRecords,
    ProbeRecord,
)
from tests.stores.suite import HASH, HOST, LATER, NOON_US, OTHER, batch, entry, run_of, seqs

if TYPE_CHECKING:
    from twisted.trial.unittest import TestCase

    Base = TestCase
else:
    Base = object

SECOND = 1_000_000


@dataclass
class Sample:
    name: str
    value: float
    labels: Any = None


def report(seq: int, marks: str, **members: Any) -> LogEntry:
    """An entry of the agent's own source."""
    metadata = Raw(b'{"cortextx": %s}' % marks.encode())
    return entry(seq, "a report", source=OWN_SOURCE, metadata=metadata, **members)


PROBE = ProbeRecord(
    host_id=HOST,
    probe="fs.disk_usage",
    args="{}",
    actor="cli",
    requested_at=1,
    finished_at=2,
    outcome="ok",
    output='{"used":1}',
    exit_code=0,
    duration_ms=7,
)


class RecordsSuite(Base):
    """Tests of the other interfaces of a store."""

    def make_store(self) -> Any:
        """A new empty store, or a Deferred of one."""
        raise NotImplementedError

    async def with_hosts(self) -> Any:
        """A store in which HOST is `alpha` and OTHER is `beta`."""
        store = await maybeDeferred(self.make_store)
        await store.issue("alpha", HOST, HASH, NOON_US, NOON_US)
        await store.issue("beta", OTHER, LATER, NOON_US, NOON_US)
        return store

    async def fails(self, error: type[Exception], call: Any) -> Exception:
        try:
            await call
        except error as raised:
            return raised
        raise AssertionError(f"{error.__name__} was not raised")

    async def test_it_provides_the_interfaces(self) -> None:
        store = await self.with_hosts()
        for interface in (IMetricStore, IProbeRecords, IAuditLog, IApiTokens, IConfigs):
            verifyObject(interface, store)

    # Gaps and their causes

    async def causes(self, store: Any) -> list[tuple[int | None, int | None, str | None]]:
        return [(gap.first, gap.last, gap.cause) for gap in await store.gaps(HOST)]

    async def test_what_a_host_says_of_a_gap_is_its_cause(self) -> None:
        """F37: by range, so that a gap of several losses is cut at their ends."""
        store = await self.with_hosts()
        await store.append([run_of(1, 2)])
        lost = '{"lost": {"first": 4, "last": 6, "count": 3, "reason": "evicted", "detail": "d"}}'
        poison = '{"lost": {"first": 8, "last": 8, "count": 1, "reason": "set_aside"}}'
        await store.append([batch(HOST, [entry(11), report(12, lost)])])
        self.assertEqual(await self.causes(store), [(3, 3, None), (4, 6, "evicted"), (7, 10, None)])
        await store.append([batch(HOST, [report(13, poison)])])
        self.assertEqual(
            await self.causes(store),
            [(3, 3, None), (4, 6, "evicted"), (7, 7, None), (8, 8, "set_aside"), (9, 10, None)],
        )
        self.assertEqual((await store.gaps(HOST))[1].detail, "d")
        (row,) = await store.find(HOST)
        self.assertEqual((row.lost_entries, row.gap_count), (8, 1))

    async def test_a_gap_and_its_cause_may_come_in_one_batch(self) -> None:
        store = await self.with_hosts()
        lost = '{"lost": {"first": 1, "last": 4, "reason": "damaged"}}'
        await store.append([batch(HOST, [report(5, lost)])])
        self.assertEqual(await self.causes(store), [(1, 4, "damaged")])

    async def test_the_first_cause_stays_and_other_hosts_have_none_of_it(self) -> None:
        store = await self.with_hosts()
        lost = '{"lost": {"first": 1, "last": 4, "reason": "%s"}}'
        await store.append([batch(HOST, [report(5, lost % "evicted"), report(6, lost % "x")])])
        await store.append([batch(OTHER, [entry(3)])])
        self.assertEqual(await self.causes(store), [(1, 4, "evicted")])
        self.assertEqual((await store.gaps(OTHER))[0].cause, None)

    async def test_a_truncation_is_a_gap_without_seqs_noted_once(self) -> None:
        """F37; a replayed batch notes nothing again (F11)."""
        store = await self.with_hosts()
        gap = '{"gap": {"kind": "file", "source": "file:/var/log/a", "unread_bytes": "17"}}'
        again = batch(HOST, [report(1, gap)])
        await store.append([again])
        await store.append([again])
        (found,) = await store.gaps(HOST)
        self.assertEqual((found.first, found.last, found.entries), (None, None, 0))
        self.assertEqual((found.cause, found.source), ("truncated", "file:/var/log/a"))
        self.assertEqual(found.detail, "17 bytes unread")
        (row,) = await store.find(HOST)
        self.assertEqual((row.lost_entries, row.gap_count), (0, 1))

    async def test_what_is_no_mark_is_an_entry_like_any_other(self) -> None:
        store = await self.with_hosts()
        odd = ['{"lost": 1}', '{"lost": {"first": 9, "last": 2, "reason": "x"}}', "[]", "{}"]
        await store.append([batch(HOST, [report(seq, m) for seq, m in enumerate(odd, 3)])])
        self.assertEqual(await self.causes(store), [(1, 2, None)])

    # Rows by key

    async def test_a_row_without_host_id_is_changed_and_forgotten_by_its_key(self) -> None:
        store = await self.with_hosts()
        pending = await store.issue("new", None, b"n" * 32, NOON_US, NOON_US)
        changed = await store.update_row(pending.key, lambda row: replace(row, state="revoked"))
        self.assertEqual((changed.key, changed.state), (pending.key, "revoked"))
        await store.forget_row(pending.key)
        self.assertEqual(await store.find("new"), [])
        await self.fails(UnknownHost, store.forget_row(pending.key))
        await self.fails(UnknownHost, store.update_row(pending.key, lambda row: row))

    # Counts and surroundings

    async def test_a_histogram_counts_what_a_search_would_find(self) -> None:
        store = await self.with_hosts()
        await store.append([run_of(1, 9), batch(OTHER, [entry(1, "needle", severity="err")])])
        whole = await store.histogram(EntryFilter(), 3)
        self.assertEqual((whole.start, sum(whole.counts)), (NOON_US + SECOND, 10))
        self.assertEqual(len(whole.counts), 3)
        window = EntryFilter(since=NOON_US, until=NOON_US + 10 * SECOND)
        by_second = await store.histogram(window, 10)
        self.assertEqual((by_second.step, list(by_second.counts)), (SECOND, [0, 2] + [1] * 8))
        for narrowed, count in (
            (EntryFilter(text="needle"), 1),
            (EntryFilter(hosts=("alpha",)), 9),
            (EntryFilter(severity_max=3), 1),
            (EntryFilter(text="message", hosts=("beta",)), 0),
            (EntryFilter(text="message", since=NOON_US + 5 * SECOND), 5),
        ):
            found = await store.histogram(narrowed, 4)
            self.assertEqual(sum(found.counts), count, narrowed)
        await self.fails(BadQuery, store.histogram(EntryFilter(), 0))
        await self.fails(UnknownHost, store.histogram(EntryFilter(hosts=("no",)), 3))

    async def test_an_empty_store_has_an_empty_histogram(self) -> None:
        store = await self.with_hosts()
        self.assertEqual(list((await store.histogram(EntryFilter(), 4)).counts), [0] * 4)

    async def test_a_context_is_what_the_host_sent_around_an_entry(self) -> None:
        store = await self.with_hosts()
        mixed = [entry(seq, source="file:a" if seq % 2 else "file:b") for seq in range(1, 10)]
        await store.append([batch(HOST, mixed), run_of(1, 5, OTHER)])
        found = await store.search(EntryFilter(text="5", hosts=("alpha",)), 9)
        (meant,) = found.entries
        self.assertEqual(seqs(await store.context(meant.id, 2, 1)), [3, 4, 5, 6])
        self.assertEqual(seqs(await store.context(meant.id, 9, 0)), [1, 2, 3, 4, 5])
        beside = await store.context(meant.id, 2, 2, same_source=True)
        self.assertEqual(seqs(beside), [1, 3, 5, 7, 9])
        self.assertEqual({e.host for e in beside}, {"alpha"})
        await self.fails(UnknownEntry, store.context(999, 1, 1))
        await self.fails(BadQuery, store.context(meant.id, -1, 1))

    async def test_known_values_are_those_of_the_entries(self) -> None:
        store = await self.with_hosts()
        await store.append(
            [batch(HOST, [entry(1, app_name="sshd"), entry(2, app_name="cron", source="file:x")])]
        )
        self.assertEqual(await store.known_values("app"), ["cron", "sshd"])
        self.assertEqual(await store.known_values("app", "ss"), ["sshd"])
        self.assertEqual(await store.known_values("source"), ["file:x", "journald"])
        self.assertEqual(await store.known_values("source", limit=1), ["file:x"])

    async def test_stats_say_how_much_there_is(self) -> None:
        store = await self.with_hosts()
        await store.append([run_of(2, 4)])
        stats = await store.stats()
        self.assertEqual((stats.entries, stats.hosts, stats.gaps), (3, 2, 1))
        self.assertEqual(stats.oldest, NOON_US)

    # Metrics

    async def test_samples_are_stored_by_series_and_found_by_time(self) -> None:
        """F24; the same series and time again replaces, as after a lost ack."""
        store = await self.with_hosts()
        pushed = [Sample("load1", 0.5), Sample("disk", 7.0, {"b": "2", "a": "1"})]
        for ts in (10, 20, 30, 30):
            stored = await store.store_samples(HOST, ts, pushed, NOON_US)
            self.assertEqual((stored.accepted, stored.dropped), (2, 0))
        found = await store.metrics(HOST, ("load1",), since=20, until=31)
        self.assertEqual([(p.ts, p.value, p.labels) for p in found], [(20, 0.5, ()), (30, 0.5, ())])
        (disk,) = await store.metrics(names=("disk",), limit=1)
        self.assertEqual((disk.ts, disk.labels), (30, (("a", "1"), ("b", "2"))))
        self.assertEqual([(p.name, p.ts) for p in await store.latest_metrics()],
                         [("disk", 30), ("load1", 30)])  # fmt: skip
        self.assertEqual(await store.metrics(OTHER), [])
        await self.fails(UnknownHost, store.store_samples("no", 1, pushed, NOON_US))

    async def test_samples_of_too_many_series_are_dropped_and_counted(self) -> None:
        """F24: over-cardinality drops the sample, not the push."""
        store = await self.with_hosts()
        many = [Sample("n", 1.0, {"i": str(number)}) for number in range(2005)]
        stored = await store.store_samples(HOST, 1, many, NOON_US)
        self.assertEqual((stored.accepted, stored.dropped), (2000, 5))
        known = await store.store_samples(HOST, 2, many[:3] + many[-1:], NOON_US)
        self.assertEqual((known.accepted, known.dropped), (3, 1))
        other = await store.store_samples(OTHER, 2, many[-1:], NOON_US)
        self.assertEqual(other.accepted, 1)
        odd = await store.store_samples(OTHER, 2, [Sample("n", float("inf"))], NOON_US)
        self.assertEqual((odd.accepted, odd.dropped), (0, 1))

    # Probes, acts

    async def test_probe_records_are_kept_newest_first(self) -> None:
        store = await self.with_hosts()
        failed = replace(PROBE, probe="x", outcome="failed", code=-32011, stderr="no", output=None)
        first = await store.record_probe(PROBE)
        second = await store.record_probe(failed)
        self.assertEqual(
            await store.probe_history(HOST),
            [replace(failed, id=second), replace(PROBE, id=first)],
        )
        self.assertEqual([p.id for p in await store.probe_history(before=second)], [first])
        self.assertEqual([p.id for p in await store.probe_history(probe="x")], [second])
        self.assertEqual(len(await store.probe_history(limit=1)), 1)
        self.assertEqual(await store.probe_history(OTHER), [])
        await self.fails(UnknownHost, store.record_probe(replace(PROBE, host_id="no")))

    async def test_acts_are_kept_newest_first(self) -> None:
        store = await self.with_hosts()
        one = await store.record_act("cli:root", "agent.revoke", HOST, {"why": ["é", 1]}, 5)
        two = await store.record_act("api:ops", "config.set", "web", {}, 6)
        acts = await store.acts()
        self.assertEqual([(a.id, a.at, a.actor, a.act) for a in acts], [
            (two, 6, "api:ops", "config.set"), (one, 5, "cli:root", "agent.revoke"),
        ])  # fmt: skip
        self.assertEqual(acts[1].details, {"why": ["é", 1]})
        self.assertEqual([a.id for a in await store.acts(subject=HOST)], [one])
        self.assertEqual([a.id for a in await store.acts(actor="api:ops")], [two])
        self.assertEqual([a.id for a in await store.acts(before=two)], [one])

    # Tokens

    async def test_tokens_live_until_they_are_revoked(self) -> None:
        """S8: by hash only; a name is free again after that."""
        store = await self.with_hosts()
        made = await store.add_token("ci", "viewer", HASH, 1, expires_at=99)
        self.assertEqual((made.role, made.expires_at), ("viewer", 99))
        self.assertNotIn("hhhh", repr(made))
        await self.fails(NameTaken, store.add_token("ci", "admin", LATER, 2))
        await store.tokens_used({"ci": 7, "nobody": 8})
        found = await store.find_token(HASH)
        self.assertEqual((found.name, found.last_used_at), ("ci", 7))
        revoked = await store.revoke_token("ci", 9)
        self.assertEqual(revoked.revoked_at, 9)
        self.assertEqual(await store.find_token(HASH), None)
        await self.fails(UnknownName, store.revoke_token("ci", 10))
        await store.add_token("ci", "admin", LATER, 11)
        self.assertEqual([t.revoked_at for t in await store.list_tokens()], [9, None])

    # Configs

    async def test_a_hosts_config_is_laid_over_its_groups_and_these_over_all(self) -> None:
        store = await self.with_hosts()
        await store.set_config("all", "", {"a": 1, "b": 1, "c": 1, "d": 1}, 1)
        await store.set_config("group", "web", {"b": 2, "c": 2, "d": 2}, 2)
        await store.set_config("group", "big", {"c": 3, "d": 3}, 3)
        host = await store.set_config("host", HOST, {"d": 4}, 4)
        await store.set_groups(HOST, ["web", "big"], 5)
        found = await store.effective_config(HOST)
        self.assertEqual(found.members, {"a": 1, "b": 2, "c": 3, "d": 4})
        self.assertEqual([layer.scope for layer in found.layers], ["all", "group", "group", "host"])
        self.assertEqual(found.version, host.version)
        self.assertEqual((await store.effective_config(OTHER)).members["d"], 1)
        await store.set_groups(HOST, ["big", "web"], 6)
        self.assertEqual((await store.effective_config(HOST)).members["c"], 2)
        self.assertEqual(await store.groups_of(HOST), ["big", "web"])
        self.assertEqual(await store.groups(), {"big": [HOST], "web": [HOST]})

    async def test_versions_grow_and_what_is_removed_is_gone(self) -> None:
        store = await self.with_hosts()
        first = await store.set_config("group", "g", {"a": 1}, 1)
        self.assertEqual(await store.set_config("group", "g", None, 2), None)
        self.assertEqual(await store.configs(), [])
        second = await store.set_config("group", "g", {"a": 1}, 3)
        self.assertGreater(second.version, first.version + 1)
        self.assertEqual(await store.groups(), {"g": []})
        await self.fails(UnknownHost, store.set_config("host", "no", {}, 1))
        await self.fails(UnknownHost, store.set_groups("no", [], 1))

    async def test_a_forgotten_host_leaves_no_config(self) -> None:
        store = await self.with_hosts()
        await store.set_config("host", HOST, {"a": 1}, 1)
        await store.set_groups(HOST, ["web"], 1)
        await store.forget(HOST)
        self.assertEqual((await store.configs(), await store.groups()), ([], {}))
