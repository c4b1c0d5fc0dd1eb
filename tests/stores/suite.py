"""What holds for every store: a mixin for twisted.trial.unittest.TestCase.

A store's own test module subclasses `LogStoreSuite` with TestCase and gives
`make_store`, which answers the store or a Deferred of it and cleans up after
itself (`addCleanup`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from msgspec import Raw
from twisted.internet.defer import maybeDeferred
from zope.interface.verify import verifyObject

from cortextx.errors import BadQuery, UnknownHost
from cortextx.fleet.contract import LogEntry
from cortextx.interfaces.fleet import (
    Candidates,
    EntryFilter,
    HostRecord,
    IHostRegistry,
    ILogStore,
    LogBatch,
    Presence,
    StoredEntry,
)

if TYPE_CHECKING:
    from twisted.trial.unittest import TestCase

    Base = TestCase
else:
    Base = object

HOST = "2b9a0b3a-7e3c-4d2a-9c0e-9bbf5d3a1f01"
OTHER = "7d1c2f6e-0d6e-4c39-8c3f-7a54b1f0aa02"
NOON = datetime(2026, 5, 16, 12, tzinfo=UTC)
NOON_US = 1_778_932_800_000_000
HASH = b"h" * 32
LATER = b"l" * 32


def entry(seq: int, message: str = "", **members: Any) -> LogEntry:
    """An entry `seq` seconds after noon (modulo a day)."""
    given: dict[str, Any] = {
        "ts": NOON + timedelta(seconds=seq % 86_400),
        "severity": "info",
        "source": "journald",
        "message": message or f"message {seq}",
    }
    return LogEntry(seq=seq, **(given | members))


def batch(host_id: str, entries: Sequence[LogEntry], received_at: int = NOON_US) -> LogBatch:
    return LogBatch(host_id, entries[0].seq, entries, received_at, 100 * len(entries))


def run_of(first: int, last: int, host_id: str = HOST) -> LogBatch:
    return batch(host_id, [entry(seq) for seq in range(first, last + 1)])


def seqs(entries: Sequence[StoredEntry]) -> list[int]:
    return [stored.seq for stored in entries]


class LogStoreSuite(Base):
    """Tests of ILogStore and IHostRegistry."""

    def make_store(self) -> Any:
        """A new empty store, or a Deferred of one."""
        raise NotImplementedError

    async def fresh(self) -> Any:
        return await maybeDeferred(self.make_store)

    async def with_hosts(self) -> Any:
        """A store in which HOST is `alpha` and OTHER is `beta`."""
        store = await self.fresh()
        await store.issue("alpha", HOST, HASH, NOON_US, NOON_US)
        await store.issue("beta", OTHER, LATER, NOON_US, NOON_US)
        return store

    async def record(self, store: Any, ref: str = HOST) -> HostRecord:
        (found,) = await store.find(ref)
        assert isinstance(found, HostRecord)
        return found

    async def fails(self, error: type[Exception], call: Any) -> Exception:
        try:
            await call
        except error as raised:
            return raised
        raise AssertionError(f"{error.__name__} was not raised")

    async def test_it_provides_the_interfaces(self) -> None:
        store = await self.fresh()
        verifyObject(ILogStore, store)
        verifyObject(IHostRegistry, store)

    # append

    async def test_what_is_appended_is_found_as_it_was_sent(self) -> None:
        store = await self.with_hosts()
        sent = entry(
            1,
            "Grüße 😀\n\ufffd",
            ts=datetime(2026, 5, 16, 14, 30, 0, 5, tzinfo=timezone(timedelta(hours=2, minutes=30))),
            severity="crit",
            source="file:/var/log/x.log",
            facility="daemon",
            app_name="sshd",
            process_id="12",
            metadata=Raw(b'{"a": [1]}'),
        )
        (answer,) = await store.append([batch(HOST, [sent], NOON_US + 7)])
        self.assertEqual((answer.up_to_seq, answer.stored, answer.gap), (1, 1, None))
        page = await store.search(EntryFilter(), 10)
        (stored,) = page.entries
        self.assertEqual(
            replace(stored, id=0),
            StoredEntry(
                id=0,
                host_id=HOST,
                host="alpha",
                seq=1,
                ts=NOON_US + 5,
                ts_offset=150,
                received_at=NOON_US + 7,
                severity=2,
                facility="daemon",
                app_name="sshd",
                process_id="12",
                message="Grüße 😀\n\ufffd",
                source="file:/var/log/x.log",
                metadata='{"a": [1]}',
            ),
        )

    async def test_absent_and_null_members_are_none(self) -> None:
        store = await self.with_hosts()
        await store.append([batch(HOST, [entry(1), entry(2, metadata=Raw(b"null"))])])
        for stored in (await store.search(EntryFilter(), 10)).entries:
            self.assertEqual(
                (stored.facility, stored.app_name, stored.process_id, stored.metadata),
                (None, None, None, None),
            )

    async def test_the_ends_of_time_can_be_stored(self) -> None:
        """A valid ts whose UTC year is 0 or 10000 must not be a poison entry (F25)."""
        store = await self.with_hosts()
        far = [
            entry(1, ts=datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))),
            entry(2, ts=datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone(-timedelta(hours=12)))),
        ]
        await store.append([batch(HOST, far)])
        page = await store.search(EntryFilter(), 10, newest_first=False)
        self.assertEqual(seqs(page.entries), [1, 2])

    async def test_duplicates_are_dropped_and_the_rest_is_stored(self) -> None:
        """F11."""
        store = await self.with_hosts()
        await store.append([run_of(1, 5)])
        (again, part) = await store.append([run_of(2, 4), run_of(4, 8)])
        self.assertEqual((again.up_to_seq, again.stored), (5, 0))
        self.assertEqual((part.up_to_seq, part.stored), (8, 3))
        page = await store.search(EntryFilter(), 99, newest_first=False)
        self.assertEqual(seqs(page.entries), list(range(1, 9)))
        self.assertEqual((await self.record(store)).accepted_seq, 8)
        self.assertEqual(await store.gaps(), [])

    async def test_seq_zero_is_a_duplicate(self) -> None:
        """F1."""
        store = await self.with_hosts()
        (answer,) = await store.append([run_of(0, 2)])
        self.assertEqual((answer.up_to_seq, answer.stored), (2, 2))

    async def test_a_gap_is_remembered(self) -> None:
        """F13."""
        store = await self.with_hosts()
        (answer,) = await store.append([run_of(4, 5)])
        self.assertEqual((answer.up_to_seq, answer.gap), (5, (1, 3)))
        await store.append([run_of(6, 6), run_of(10, 10)])
        found = [(gap.host_id, gap.first, gap.last) for gap in await store.gaps(HOST)]
        self.assertEqual(found, [(HOST, 1, 3), (HOST, 7, 9)])
        row = await self.record(store)
        self.assertEqual((row.lost_entries, row.gap_count), (6, 2))
        self.assertEqual(await store.gaps(OTHER), [])
        self.assertEqual(len(await store.gaps()), 2)

    async def gaps_now(self, store: Any) -> list[Any]:
        """The gaps of HOST in the order of their seqs; the row's counts agree with them."""
        found = sorted((gap.first, gap.last, gap.cause) for gap in await store.gaps(HOST))
        row = await self.record(store)
        counts = (sum(last - first + 1 for first, last, _ in found), len(found))
        self.assertEqual((row.lost_entries, row.gap_count), counts)
        return found

    async def test_a_restored_store_notes_what_was_acked(self) -> None:
        """F26: at once, and once; accepted_seq stays, and the push behind it adds nothing."""
        store = await self.with_hosts()
        await store.append([run_of(1, 3)])
        self.assertIsNone(await store.restored(HOST, 3, NOON_US))
        noted = await store.restored(HOST, 9, NOON_US)
        self.assertEqual((noted.first, noted.last, noted.entries), (4, 9, 6))
        self.assertIsNone(await store.restored(HOST, 9, NOON_US))
        self.assertIsNone(await store.restored("no such host", 9, NOON_US))
        self.assertEqual(await self.gaps_now(store), [(4, 9, "restored")])
        self.assertEqual((await self.record(store)).accepted_seq, 3)
        (answer,) = await store.append([run_of(10, 11)])
        self.assertEqual((answer.up_to_seq, answer.gap), (11, (4, 9)))
        self.assertEqual(await self.gaps_now(store), [(4, 9, "restored")])
        await store.append([run_of(14, 14)])
        self.assertEqual(await self.gaps_now(store), [(4, 9, "restored"), (12, 13, None)])

    async def test_what_comes_after_all_is_no_gap(self) -> None:
        """F26: whatever a host sends of what it had acked is stored and leaves the gap."""
        store = await self.with_hosts()
        await store.append([run_of(1, 3)])
        await store.restored(HOST, 20, NOON_US)
        (answer,) = await store.append([run_of(4, 5)])
        self.assertEqual((answer.stored, answer.gap), (2, None))
        self.assertEqual(await self.gaps_now(store), [(6, 20, "restored")])
        await store.append([run_of(9, 10)])
        kept = [(6, 8, "restored"), (11, 20, "restored")]
        self.assertEqual(await self.gaps_now(store), kept)
        await store.append([run_of(25, 25)])
        self.assertEqual(await self.gaps_now(store), [*kept, (21, 24, None)])

    async def test_all_of_a_noted_gap_may_come(self) -> None:
        """F26: then nothing is missing."""
        store = await self.with_hosts()
        await store.restored(HOST, 4, NOON_US)
        await store.append([run_of(1, 6)])
        self.assertEqual(await self.gaps_now(store), [])

    async def test_gaps_come_in_pages(self) -> None:
        """Of one host or of all: behind a place, each once, and never more than 1000."""
        store = await self.with_hosts()
        for n in range(1, 8):
            at = NOON_US + n // 3
            await store.append([batch(HOST, [entry(2 * n)], at), batch(OTHER, [entry(3 * n)], at)])
        for host in (HOST, OTHER, None):
            whole = await store.gaps(host)
            found: list[Any] = []
            after = None
            while page := await store.gaps(host, after, 3):
                self.assertLessEqual(len(page), 3)
                found += page
                after = page[-1].place
            self.assertEqual([gap.place for gap in found], [gap.place for gap in whole])
            self.assertEqual(len(found), 14 if host is None else 7)
            self.assertEqual([g.detected_at for g in found], sorted(g.detected_at for g in found))
        await store.append([batch(HOST, [entry(n)]) for n in range(20, 2100, 2)])
        self.assertEqual(len(await store.gaps(HOST, None, 5000)), 1000)

    async def test_a_tail_from_beyond_the_head_goes_on_at_the_head(self) -> None:
        """F26: its position comes from before a restoration."""
        store = await self.with_hosts()
        await store.append([run_of(1, 3)])
        page = await store.tail(EntryFilter(), 99, 10)
        self.assertEqual((list(page.entries), page.cursor), ([], 3))
        self.assertEqual(await store.oldest(), 1)

    async def test_hosts_do_not_share_their_seqs(self) -> None:
        store = await self.with_hosts()
        answers = await store.append([run_of(1, 3), run_of(1, 2, OTHER), run_of(4, 4)])
        self.assertEqual([answer.up_to_seq for answer in answers], [3, 2, 4])

    async def test_a_batch_of_a_host_that_has_gone_stores_nothing(self) -> None:
        """§5 UnknownHost; the batches beside it are stored."""
        store = await self.with_hosts()
        await store.forget(HOST)
        (gone, good) = await store.append([run_of(1, 3), run_of(1, 2, OTHER)])
        self.assertTrue(gone.unknown_host)
        self.assertEqual((gone.stored, good.up_to_seq), (0, 2))
        self.assertEqual(len((await store.search(EntryFilter(), 10)).entries), 2)

    async def test_seqs_reach_beyond_32_bits(self) -> None:
        """F31."""
        store = await self.with_hosts()
        top = 2**63 - 1
        (answer,) = await store.append([run_of(top, top)])
        self.assertEqual((answer.up_to_seq, answer.gap), (top, (1, top - 1)))

    # search

    async def searchable(self) -> Any:
        store = await self.with_hosts()
        await store.append(
            [
                batch(
                    HOST,
                    [
                        entry(1, "Accepted publickey for root", app_name="sshd", severity="info"),
                        entry(2, "disk is nearly full", source="file:/var/log/a.log"),
                        entry(3, "disk full", source="file:/var/log/b.log", severity="err"),
                    ],
                ),
                batch(
                    OTHER,
                    [
                        entry(1, "publickey refused", app_name="sshd", severity="warning"),
                        entry(4, "all is well", source="docker:web", severity="debug"),
                    ],
                ),
            ]
        )
        return store

    async def found(self, store: Any, **members: Any) -> list[tuple[str, int]]:
        page = await store.search(EntryFilter(**members), 99, newest_first=False)
        return [(stored.host, stored.seq) for stored in page.entries]

    async def test_every_word_must_occur(self) -> None:
        store = await self.searchable()
        self.assertEqual(await self.found(store, text="full disk"), [("alpha", 2), ("alpha", 3)])
        self.assertEqual(await self.found(store, text="full publickey"), [])

    async def test_case_does_not_matter(self) -> None:
        store = await self.searchable()
        self.assertEqual(await self.found(store, text="accepted ROOT"), [("alpha", 1)])

    async def test_a_quoted_phrase_must_occur_as_one(self) -> None:
        store = await self.searchable()
        self.assertEqual(await self.found(store, text='"disk full"'), [("alpha", 3)])

    async def test_any_text_is_a_valid_search(self) -> None:
        """A62."""
        store = await self.searchable()
        for text in (
            "***", '"', '""', "a OR b", "NEAR(a b)", "x AND", "-x", "col:x", "^x", "a*", "(", "'",
            "\x00", "%_\\", "Grüße 😀", '"disk', "{}", "full; DROP TABLE logs",
        ):  # fmt: skip
            await store.search(EntryFilter(text=text), 10)
        self.assertEqual(await self.found(store, text="full OR well"), [])

    async def test_filters_narrow_a_search(self) -> None:
        store = await self.searchable()
        second = 1_000_000
        for members, expected in (
            ({"hosts": ("alpha",), "text": "publickey"}, [("alpha", 1)]),
            ({"hosts": (OTHER,)}, [("beta", 1), ("beta", 4)]),
            ({"hosts": ("alpha", OTHER), "apps": ("sshd",)}, [("alpha", 1), ("beta", 1)]),
            ({"sources": ("file:/var/log/a.log",)}, [("alpha", 2)]),
            ({"sources": ("file:*",)}, [("alpha", 2), ("alpha", 3)]),
            ({"sources": ("docker:*", "file:/var/log/b.log")}, [("alpha", 3), ("beta", 4)]),
            ({"severity_max": 4}, [("beta", 1), ("alpha", 3)]),
            ({"since": NOON_US + 3 * second}, [("alpha", 3), ("beta", 4)]),
            ({"since": NOON_US + 2 * second, "until": NOON_US + 3 * second}, [("alpha", 2)]),
        ):
            self.assertEqual(await self.found(store, **members), expected, members)

    async def test_a_wildcard_in_a_source_is_no_pattern_elsewhere(self) -> None:
        store = await self.searchable()
        for pattern in ("file:%", "file:/var/log/?.log", "file:/var/log/_.log*", "*a.log"):
            self.assertEqual(await self.found(store, sources=(pattern,)), [], pattern)

    async def test_pages_cover_everything_once_in_both_directions(self) -> None:
        """Also where many entries have the same ts."""
        store = await self.with_hosts()
        many = [entry(seq, ts=NOON + timedelta(seconds=seq // 4)) for seq in range(1, 24)]
        await store.append([batch(HOST, many)])
        for newest_first in (True, False):
            got: list[int] = []
            cursor = None
            for _ in range(20):
                page = await store.search(EntryFilter(), 3, newest_first, cursor)
                got += seqs(page.entries)
                cursor = page.cursor
                if cursor is None:
                    break
            self.assertEqual(sorted(got), list(range(1, 24)))
            times = [seq // 4 for seq in got]
            self.assertEqual(times, sorted(times, reverse=newest_first))

    async def test_a_cursor_that_is_none_is_a_bad_query(self) -> None:
        store = await self.searchable()
        for cursor in ("", "x", "1.2.3", "-1", "n" * 100):
            await self.fails(BadQuery, store.search(EntryFilter(), 3, True, cursor))

    async def test_an_unknown_host_is_an_error_not_an_empty_result(self) -> None:
        """A62."""
        store = await self.searchable()
        await self.fails(UnknownHost, store.search(EntryFilter(hosts=("gamma",)), 3))
        await self.fails(UnknownHost, store.tail(EntryFilter(hosts=("gamma",)), 0, 3))

    # tail

    async def test_tail_goes_on_where_it_was(self) -> None:
        """A64: in the order of storing, nothing twice, nothing left out."""
        store = await self.searchable()
        head = await store.head()
        self.assertGreater(head, 0)
        got: list[tuple[str, int]] = []
        after = 0
        for _ in range(10):
            page = await store.tail(EntryFilter(), after, 2)
            got += [(stored.host, stored.seq) for stored in page.entries]
            if not page.entries:
                break
            self.assertEqual(page.cursor, page.entries[-1].id)
            after = page.cursor
        self.assertEqual(got, [("alpha", 1), ("alpha", 2), ("alpha", 3), ("beta", 1), ("beta", 4)])
        self.assertEqual(after, head)
        await store.append([run_of(4, 4)])
        page = await store.tail(EntryFilter(), after, 2)
        self.assertEqual(seqs(page.entries), [4])

    async def test_tails_cursor_passes_what_does_not_match(self) -> None:
        store = await self.searchable()
        page = await store.tail(EntryFilter(text="nowhere"), 0, 5)
        self.assertEqual((list(page.entries), page.cursor), ([], await store.head()))

    async def test_an_empty_store_has_head_zero(self) -> None:
        store = await self.fresh()
        self.assertEqual(await store.head(), 0)
        page = await store.tail(EntryFilter(), 0, 5)
        self.assertEqual((list(page.entries), page.cursor), ([], 0))

    # registry

    async def test_a_pending_row_without_an_id_is_found_by_its_token(self) -> None:
        """F6."""
        store = await self.fresh()
        row = await store.issue("alpha", None, HASH, NOON_US + 5, NOON_US)
        self.assertEqual(
            (row.name, row.host_id, row.state, row.token_hash, row.token_expires_at),
            ("alpha", None, "never_connected", HASH, NOON_US + 5),
        )
        seen: list[Candidates] = []

        def decide(candidates: Candidates) -> tuple[str, HostRecord | None]:
            seen.append(candidates)
            assert candidates.unbound is not None
            bound = replace(
                candidates.unbound,
                host_id=HOST,
                state="active",
                token_hash=LATER,
                token_expires_at=None,
                session_id="s1",
                capabilities="{}",
            )
            return "yes", bound

        self.assertEqual(await store.judge(HOST, HASH, decide), "yes")
        self.assertEqual(seen, [Candidates(None, row)])
        bound = await self.record(store)
        self.assertEqual(
            (bound.key, bound.state, bound.token_hash, bound.session_id, bound.capabilities),
            (row.key, "active", LATER, "s1", "{}"),
        )
        # Spent: the next hello with it finds the host, and nothing unbound (F29).
        self.assertEqual(
            await store.judge(HOST, HASH, lambda found: (found, None)), Candidates(bound, None)
        )

    async def test_a_decision_without_a_row_writes_nothing(self) -> None:
        store = await self.with_hosts()
        before = await store.list_hosts()
        await store.judge(HOST, HASH, lambda found: ("no", None))
        self.assertEqual(await store.list_hosts(), before)

    async def test_an_unknown_host_has_no_candidates(self) -> None:
        store = await self.with_hosts()
        found = await store.judge("0" * 8, b"?" * 32, lambda candidates: (candidates, None))
        self.assertEqual(found, Candidates(None, None))

    async def test_a_host_issued_again_keeps_its_seq_and_its_old_token_until_it_enrols(
        self,
    ) -> None:
        """F29."""
        store = await self.with_hosts()
        await store.append([run_of(1, 3)])
        old = await store.update(
            HOST, lambda row: replace(row, state="active", token_expires_at=None)
        )
        row = await store.issue("renamed", HOST, LATER, NOON_US + 9, NOON_US + 1)
        self.assertEqual(
            (row.key, row.name, row.state, row.accepted_seq, row.created_at),
            (old.key, "renamed", "never_connected", 3, old.created_at),
        )
        self.assertEqual(
            (row.token_hash, row.token_expires_at, row.token_hash_prev, row.prev_expires_at),
            (LATER, NOON_US + 9, HASH, None),
        )
        self.assertEqual(await self.record(store), row)

    async def test_a_revoked_host_issued_again_keeps_no_old_token(self) -> None:
        store = await self.with_hosts()
        await store.update(HOST, lambda row: replace(row, state="revoked"))
        row = await store.issue("alpha", HOST, LATER, NOON_US + 9, NOON_US)
        self.assertEqual((row.token_hash, row.token_hash_prev), (LATER, None))

    async def test_update_answers_the_new_row(self) -> None:
        store = await self.with_hosts()
        row = await store.update(HOST, lambda row: replace(row, rotation_pending=True))
        self.assertTrue(row.rotation_pending)
        self.assertEqual(await self.record(store), row)

    async def test_what_is_done_to_an_unknown_host_fails(self) -> None:
        store = await self.with_hosts()
        await self.fails(UnknownHost, store.update("nobody", lambda row: row))
        await self.fails(UnknownHost, store.forget("nobody"))

    async def test_hosts_are_found_by_id_or_name_and_listed_by_name(self) -> None:
        store = await self.with_hosts()
        await store.issue("alpha", None, b"x" * 32, NOON_US, NOON_US)
        self.assertEqual([h.host_id for h in await store.find("beta")], [OTHER])
        self.assertEqual([h.host_id for h in await store.find(OTHER)], [OTHER])
        self.assertEqual(len(await store.find("alpha")), 2)
        self.assertEqual(await store.find("gamma"), [])
        self.assertEqual([h.name for h in await store.list_hosts()], ["alpha", "alpha", "beta"])

    async def test_a_forgotten_host_is_gone(self) -> None:
        store = await self.with_hosts()
        await store.forget(HOST)
        self.assertEqual(await store.find(HOST), [])
        await store.seen([Presence(host_id=HOST, last_seen=1)])
        self.assertEqual([h.name for h in await store.list_hosts()], ["beta"])

    async def test_presence_writes_what_is_known_and_leaves_the_rest(self) -> None:
        store = await self.with_hosts()
        await store.update(HOST, lambda row: replace(row, state="active", session_id="s1"))
        await store.seen(
            [Presence(host_id=HOST, session_id="s1", last_seen=5, queue_depth=7, clock_skew=-3)]
        )
        await store.seen(
            [
                Presence(
                    host_id=HOST,
                    session_id="s1",
                    state="disconnected",
                    last_disconnect_reason="1009 oversize",
                    buffer_bytes=0,
                    push_lag_seq=1,
                )
            ]
        )
        row = await self.record(store)
        self.assertEqual(
            (row.last_seen, row.queue_depth, row.buffer_bytes, row.push_lag_seq, row.clock_skew),
            (5, 7, 0, 1, -3),
        )
        self.assertEqual((row.state, row.last_disconnect_reason), ("disconnected", "1009 oversize"))

    async def test_an_older_sessions_presence_is_dropped(self) -> None:
        """F14: a superseded session says nothing about the host any more."""
        store = await self.with_hosts()
        await store.update(HOST, lambda row: replace(row, state="active", session_id="s2"))
        await store.seen([Presence(host_id=HOST, session_id="s1", state="disconnected")])
        self.assertEqual((await self.record(store)).state, "active")

    async def test_presence_revives_no_revoked_or_pending_host(self) -> None:
        """F8, F29."""
        for state in ("revoked", "never_connected"):
            store = await self.with_hosts()
            await store.update(HOST, lambda row, to=state: replace(row, state=to, session_id="s1"))
            await store.seen([Presence(host_id=HOST, session_id="s1", state="disconnected")])
            self.assertEqual((await self.record(store)).state, state)
