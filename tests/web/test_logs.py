"""Reading logs over HTTP: search, histogram, context, values, gaps."""

from __future__ import annotations

from tests.web.case import HOST_A, HOST_B, WebCase


class LogCase(WebCase):
    def setUp(self) -> None:
        super().setUp()
        self.issue()
        self.issue("db1", HOST_B)
        self.push("alpha one", "alpha two", "beta")
        self.push("alpha three", host_id=HOST_B, severity="err", app_name="cron", source="docker:x")

    def found(self, **params: object) -> list[str]:
        return [entry["message"] for entry in self.good("/search", params)["entries"]]


class Search(LogCase):
    def test_newest_first(self) -> None:
        """Without a word all entries come, the newest first, or the oldest."""
        self.assertEqual(self.found(order="oldest_first")[-1], "beta")
        self.assertEqual(self.found()[0], "beta")

    def test_filters(self) -> None:
        """Words, hosts by name or id, apps, sources, severities and times narrow a search."""
        for params, count in (
            ({"text": "alpha"}, 3),
            ({"text": '"alpha two"'}, 1),
            ({"text": "alpha AND ("}, 0),
            ({"host": "db1"}, 1),
            ({"host": HOST_A}, 3),
            ({"app": "cron"}, 1),
            ({"source": "file:*"}, 3),
            ({"severity_min": "err"}, 1),
            ({"severity_min": "warning"}, 4),
            ({"since": "2026-05-16T19:42:02Z"}, 2),
            ({"until": "2026-05-16T19:42:02+00:00"}, 2),
            ({"until": "2026-05-16T21:42:02+02:00"}, 2),
        ):
            self.assertEqual(len(self.found(**params)), count, params)
        both = self.good("/search", [("host", "web1"), ("host", "db1")])["entries"]
        self.assertEqual(len(both), 4)

    def test_pages(self) -> None:
        """The cursor leads through all entries, once each, until it is null."""
        seen: list[int] = []
        cursor = None
        for _ in range(4):
            params = {"limit": 1, **({} if cursor is None else {"cursor": cursor})}
            page = self.good("/search", params)
            seen += [entry["id"] for entry in page["entries"]]
            cursor = page["cursor"]
        self.assertEqual(sorted(seen), [1, 2, 3, 4])
        self.assertIsNone(cursor)

    def test_a_failed_search_is_no_empty_one(self) -> None:
        """An unknown host and a cursor that is none are problems, not empty pages (A62)."""
        self.refused(404, "/search", {"host": "nobody"})
        self.assertEqual(self.refused(400, "/search", {"cursor": "x"})["field"], "cursor")

    def test_the_ends_of_time(self) -> None:
        """Every time that can be written is answered: it is in range, or told that it is not."""
        for path in ("/search", "/histogram", "/hosts/web1/audit", "/hosts/web1/metrics"):
            for since in ("0001-01-01T00:00:00%2B01:00", "9999-12-31T23:59:59-01:00"):
                problem = self.refused(400, f"{path}?since={since}")
                self.assertEqual(problem["field"], "since")
            self.good(f"{path}?since=0001-01-01T00:00:00Z&until=9999-12-31T23:59:59Z")
            self.good(f"{path}?since=9999-12-31T23:59:59Z")

    def test_an_entry_is_whole(self) -> None:
        """An entry has all that was stored of it, its time in UTC to the microsecond."""
        [entry] = self.good("/search", {"text": "three"})["entries"]
        self.assertEqual(entry["ts"], "2026-05-16T19:42:01.000000Z")
        self.assertEqual(
            (entry["host"], entry["host_id"], entry["seq"], entry["severity"], entry["app_name"]),
            ("db1", HOST_B, 1, "err", "cron"),
        )
        self.assertIsNone(entry["metadata"])


class Around(LogCase):
    def test_context(self) -> None:
        """The neighbours of an entry are of its host, in the order of its seqs."""
        found = self.good("/entries/2/context", {"before": 1, "after": 1})["entries"]
        self.assertEqual([entry["message"] for entry in found], ["alpha one", "alpha two", "beta"])

    def test_no_such_entry(self) -> None:
        """An id of nothing is 404, and one that is none a bad request."""
        self.refused(404, "/entries/99/context")
        self.assertEqual(self.refused(400, "/entries/x/context")["field"], "id")

    def test_histogram(self) -> None:
        """Spans are equal, and add up to all that matches."""
        params = {
            "since": "2026-05-16T19:42:00Z",
            "until": "2026-05-16T19:42:04Z",
            "buckets": 4,
        }
        counted = self.good("/histogram", params)
        self.assertEqual(len(counted["buckets"]), 4)
        self.assertEqual(counted["total"], 4)
        self.assertEqual(counted["step_seconds"], 1.0)
        self.assertEqual([bucket["count"] for bucket in counted["buckets"]], [0, 2, 1, 1])
        self.assertEqual(counted["buckets"][0]["start"], "2026-05-16T19:42:00.000000Z")

    def test_values(self) -> None:
        """Apps, sources and hosts can be chosen by how they begin."""
        self.assertEqual(self.good("/values/app")["values"], ["app", "cron"])
        self.assertEqual(self.good("/values/source", {"prefix": "doc"})["values"], ["docker:x"])
        self.assertEqual(self.good("/values/host", {"limit": 1})["values"], ["db1"])
        self.refused(400, "/values/nonesuch")


class Missing(LogCase):
    def test_gaps(self) -> None:
        """What a host numbered and never sent is told, for one host or all (F13)."""
        self.push("late", skip=5)
        [gap] = self.good("/gaps")["gaps"]
        self.assertEqual(
            (gap["host"], gap["first"], gap["last"], gap["entries"]), ("web1", 4, 8, 5)
        )
        self.assertEqual(self.good("/gaps", {"host": "db1"})["gaps"], [])
        self.refused(404, "/gaps", {"host": "nobody"})

    def test_gaps_and_audits_have_pages(self) -> None:
        """A cursor leads through all of them, each once; an audit's numbers are of all."""
        for _ in range(5):
            self.push("late", skip=1)
        for path in ("/gaps", "/hosts/web1/audit"):
            found: list[int] = []
            cursor = None
            for _ in range(3):
                told = self.good(path, {"limit": 2} | ({"cursor": cursor} if cursor else {}))
                found += [gap["first"] for gap in told["gaps"]]
                cursor = told["cursor"]
                self.assertEqual(told.get("missing_entries", 5), 5)
            self.assertEqual((found, cursor), ([4, 6, 8, 10, 12], None))
            for wrong in ("x", "1.2", "1.2.99999999999999999999", "-1.2.3"):
                self.refused(400, path, {"cursor": wrong})

    def test_audit(self) -> None:
        """A host is complete, or it is told what is missing, in a range of seqs."""
        self.assertTrue(self.good("/hosts/web1/audit")["complete"])
        self.push("late", skip=5)
        told = self.good("/hosts/web1/audit")
        self.assertEqual((told["complete"], told["missing_entries"]), (False, 5))
        for params, complete in (
            ({"to_seq": 3}, True),
            ({"to_seq": 4}, False),
            ({"from_seq": 8}, False),
            ({"from_seq": 9}, True),
            ({"until": "2020-01-01T00:00:00Z"}, True),
            ({"since": "2020-01-01T00:00:00Z"}, False),
        ):
            told = self.good("/hosts/web1/audit", params)
            self.assertEqual(told["complete"], complete, params)
