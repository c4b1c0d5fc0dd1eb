"""The commands about what hosts do and are told: probe, audit, config, server token|acts."""

from __future__ import annotations

import json

import msgspec
from twisted.trial.unittest import SynchronousTestCase

from cortextx.app.cli.faults import Refused
from tests.app.scripted import Answer, Scripted

PROBE = {
    "id": 1,
    "host": "web1",
    "probe": "fs.disk_usage",
    "outcome": "ok",
    "output": {"free": 7},
    "exit_code": 0,
    "stderr": None,
    "code": None,
}
GAP = {"first": 3, "last": 5, "entries": 3, "cause": "evicted", "detected_at": None}


class Probe(SynchronousTestCase):
    """cortextx probe"""

    def test_arguments(self) -> None:
        """ARG=VALUE is JSON where it is JSON, and text where it is not (F44)."""
        command = Scripted(Answer(rows=[PROBE], end={"outcome": "ok", "code": None}))
        done = command(
            "probe", "web1", "fs.disk_usage", "path=/var", "n=5", "deep=true", 'zip="0815"',
            "eq=a=b", "empty=", "--timeout", "2.5",
        )  # fmt: skip
        args = {"path": "/var", "n": 5, "deep": True, "zip": "0815", "eq": "a=b", "empty": ""}
        asked = {"host": "web1", "probe": "fs.disk_usage", "args": args, "timeout_ms": 2500}
        self.assertEqual(command.asked, [("probe.run", asked)])
        self.assertEqual((done.code, done.out), (0, "free  7\n"))

    def test_lists_of_objects_are_tables(self) -> None:
        """A command, which may be long, stands last; controls of the host are escaped (S4)."""
        found = {"total": 3, "processes": [{"command": "a\x1b[1m b", "pid": 1}, {"pid": 23}]}
        row = {**PROBE, "output": found}
        done = Scripted(Answer(rows=[row], end={"outcome": "ok"}))("probe", "web1", "mem.top")
        self.assertEqual(
            [line.split() for line in done.out.splitlines()],
            [["total", "3"], [], ["processes"], ["PID", "COMMAND"],
             ["1", "a\\e[1m", "b"], ["23", "-"]],
        )  # fmt: skip

    def test_exit_codes(self) -> None:
        """How the probe ended is the exit code, though each is a recorded answer (§4.6)."""
        for outcome, code in (
            ("ok", 0), ("failed", 1), ("timeout", 1), ("unavailable", 1), ("lost", 1),
            ("error", 1), ("invalid", 2),
        ):  # fmt: skip
            row = {**PROBE, "outcome": outcome, "code": -32602, "output": None}
            command = Scripted(Answer(rows=[row], end={"outcome": outcome}))
            done = command("probe", "web1", "x")
            self.assertEqual(done.code, code, outcome)
            self.assertEqual("(-32602)" in done.err, outcome != "ok")

    def test_not_connected(self) -> None:
        """A host that is not connected ends with 3."""
        command = Scripted(Answer(error=Refused("not_connected", "web1 is not connected")))
        self.assertEqual(command("probe", "web1", "x").code, 3)

    def test_output_is_escaped(self) -> None:
        """What a host answers keeps its lines and cannot steer the terminal (S4)."""
        row = {**PROBE, "output": "a\n\x1b[2Jb", "stderr": "c\x9b\nd"}
        done = Scripted(Answer(rows=[row], end={"outcome": "ok"}))("probe", "web1", "x")
        self.assertEqual((done.out, done.err), ("a\n\\e[2Jb\n", "c\\x9b\nd\n"))

    def test_json(self) -> None:
        """--json is the record, and the exit code is as without."""
        row = {**PROBE, "outcome": "failed"}
        done = Scripted(Answer(rows=[row], end={"outcome": "failed"}))(
            "probe", "web1", "x", "--json"
        )
        self.assertEqual((json.loads(done.out), done.code), (row, 1))

    def test_history(self) -> None:
        """--history lists and runs nothing."""
        command = Scripted(Answer(rows=[PROBE]))
        done = command("probe", "web1", "--history", "-n", "3", "--json")
        self.assertEqual(json.loads(done.out), {"probes": [PROBE]})
        self.assertEqual(command.asked, [("probe.history", {"host": "web1", "limit": 3})])

    def test_wrong_usage(self) -> None:
        """What is no ARG=VALUE, or given twice, or without a host, asks nobody."""
        for args in (("a",), ("=b",), ("a=1", "a=2"), ("a=1", "--timeout", "0")):
            command = Scripted()
            self.assertEqual(command("probe", "web1", "x", *args).code, 2, args)
        self.assertEqual(Scripted()("probe").code, 2)

    def test_list(self) -> None:
        """--list has all probes with their arguments; a host without a probe's name, those
        that it offers."""
        done = Scripted()("probe", "--list")
        self.assertIn("limit: 1 to 200; default 20", done.out)
        shown = {"capabilities": {"supported_probes": ["their.own", "disk.usage"]}}
        command = Scripted(Answer(end=shown), Answer(end=shown))
        lines = [line.split() for line in command("probe", "web1").out.splitlines()]
        self.assertEqual([line[0] for line in lines], ["disk.usage", "mount:", "their.own"])
        rows = json.loads(command("probe", "web1", "--list", "--json").out)["probes"]
        mount = {"name": "mount", "form": "an absolute path", "needed": False, "default": None}
        self.assertEqual([row["arguments"] for row in rows], [[mount], None])

    def test_a_wrong_argument_is_named(self) -> None:
        """F44: which it is, and what is expected there."""
        said = {"field": "$.args.depth", "expected": "an argument of x, which takes limit"}
        row = {**PROBE, "outcome": "invalid", "code": -32602, "output": said}
        done = Scripted(Answer(rows=[row], end={"outcome": "invalid"}))("probe", "web1", "x")
        self.assertIn("depth: expected an argument of x, which takes limit\n", done.err)


class Audit(SynchronousTestCase):
    """cortextx audit"""

    def test_complete(self) -> None:
        """A host of which nothing is missing is complete, and the exit code says so."""
        end = {"host": "web1", "complete": True, "accepted_seq": 9}
        done = Scripted(Answer(end=end))("audit", "web1")
        self.assertEqual((done.code, done.out), (0, "web1: complete, up to entry 9\n"))

    def test_gaps(self) -> None:
        """Else every gap is listed with its cause, losses without a number too (F13, F37)."""
        unnumbered = {**GAP, "first": None, "last": None, "entries": 0, "cause": None,
                      "detail": "7 entries"}  # fmt: skip
        end = {
            "host": "web1", "complete": False, "accepted_seq": 9, "missing_entries": 3,
            "awaited_entries": 1,
        }  # fmt: skip
        done = Scripted(Answer(rows=[GAP, unnumbered], end=end))("audit", "web1")
        self.assertEqual(done.code, 5)
        first, head, *lines = done.out.splitlines()
        for words in ("3 entries are missing", "1 losses before numbering", "1 numbers have not"):
            self.assertIn(words, first)
        self.assertTrue(head.startswith("FIRST"))
        self.assertEqual([line.split()[:3] for line in lines], [["3", "5", "3"], ["-", "-", "-"]])
        self.assertIn("7 entries", lines[1])
        self.assertIn("evicted", lines[0])
        self.assertIn("not told", lines[1])

    def test_ranges(self) -> None:
        """An edge is an entry's number or a time; each goes where it belongs."""
        for args, asked in (
            (("--from", "5", "--to", "7"), {"from_seq": 5, "to_seq": 7}),
            (
                ("--from", "1h", "--to", "2027-01-15T08:00Z"),
                {"since": "2027-01-15T07:00:00Z", "until": "2027-01-15T08:00:00Z"},
            ),
            (("--from", "2", "--to", "1h"), {"from_seq": 2, "until": "2027-01-15T07:00:00Z"}),
        ):
            command = Scripted(Answer(end={"complete": True}))
            command("audit", "web1", *args)
            self.assertEqual(command.asked, [("agent.audit", {"host": "web1", **asked})])
        self.assertEqual(Scripted()("audit", "web1", "--from", "0").code, 2)
        self.assertEqual(Scripted()("audit", "web1", "--from", "then").code, 2)

    def test_json(self) -> None:
        """--json is one object with the gaps in it."""
        end = {"host": "web1", "complete": False, "gaps": 1}
        done = Scripted(Answer(rows=[GAP], end=end))("audit", "web1", "--json")
        self.assertEqual((json.loads(done.out), done.code), ({**end, "gaps": [GAP]}, 5))


class Config(SynchronousTestCase):
    """cortextx config …"""

    def test_set(self) -> None:
        """Members are merged into what the scope sets; who was told is said."""
        command = Scripted(Answer(end={"version": 2, "told": ["a", "b"]}))
        done = command(
            "config", "set", "--group", "web", "flush_interval_ms=100", "--unset", "x",
        )  # fmt: skip
        asked = {
            "group": "web", "config": {"flush_interval_ms": 100}, "merge": True, "unset": ["x"],
        }  # fmt: skip
        self.assertEqual(command.asked, [("config.set", asked)])
        self.assertEqual((done.out, done.err), ("set, version 2\n", "told 2 connected hosts\n"))

    def test_file_and_clear(self) -> None:
        """--file replaces what was set, --clear sends a null that removes it."""
        command = Scripted(Answer(end={"version": 1}), Answer(end={"version": None}))
        command("config", "set", "--all", "--file", "-", stdin='{"probe_concurrency": 2}')
        done = command("config", "set", "--host", "web1", "--clear")
        self.assertEqual(command.asked[0], ("config.set", {"config": {"probe_concurrency": 2}}))
        self.assertEqual(msgspec.json.encode(command.asked[1][1]["config"]), b"null")
        self.assertNotIn("merge", command.asked[1][1])
        self.assertEqual(done.out, "nothing is set any more\n")

    def test_wrong_usage(self) -> None:
        """Without exactly one scope and one way to say what, nobody is asked."""
        for args in (
            ("set", "a=1"), ("set", "--all", "--host", "x", "a=1"), ("set", "--all"),
            ("set", "--all", "a=1", "--clear"), ("set", "--all", "a"), ("push",),
            ("show", "web1", "--group", "x"), ("groups", "web1"),
            ("groups", "web1", "web", "--none"), ("groups", "--none"),
        ):  # fmt: skip
            self.assertEqual(Scripted()("config", *args).code, 2, args)
        done = Scripted()("config", "set", "--all", "--file", "-", stdin="[]")
        self.assertEqual(done.code, 2)

    def test_push(self) -> None:
        """push is for one scope too."""
        command = Scripted(Answer(end={"told": []}), Answer(end={"told": []}))
        command("config", "push", "--all", "--at", "2027-01-15T08:00Z")
        command("config", "push", "--host", "web1")
        self.assertEqual(
            command.asked,
            [
                ("config.push", {"apply_after": "2027-01-15T08:00:00Z"}),
                ("config.push", {"host": "web1"}),
            ],
        )

    def test_show(self) -> None:
        """A host's config, who set what in it, and what the host said of it."""
        layer = {"scope": "all", "name": "", "version": 1, "members": {"a": 1}}
        said = {"ts": "2026-01-01T00:00:00Z", "message": "no\x1b"}
        row = {"host": "web1", "config": {"a": 1}, "layers": [layer], "reports": [said]}
        done = Scripted(Answer(rows=[row]))("config", "show", "web1")
        self.assertIn("config.a  1", done.out)
        self.assertIn("no\\e", done.out)
        self.assertEqual(done.err, "")
        done = Scripted(Answer(rows=[layer], end={"defaults": {"b": 2}}))(
            "config", "show", "--json"
        )
        self.assertEqual(json.loads(done.out), {"configs": [layer], "defaults": {"b": 2}})

    def test_show_tells_of_a_roll_back(self) -> None:
        """A58: a host that took its config back is told apart, with the reason; what it said
        of another config is over."""
        there = {"state": "rolled_back", "failed": "f1", "reason": "journald x: no such unit"}
        row = {"host": "web1", "fingerprint": "f1", "config": {}, "at_host": there}
        done = Scripted(Answer(rows=[row]))("config", "show", "web1")
        self.assertIn("web1 took this config back: journald x: no such unit", done.err)
        self.assertIn("at_host.state   rolled_back", done.out)
        done = Scripted(Answer(rows=[{**row, "fingerprint": "f2"}]))("config", "show", "web1")
        self.assertEqual(done.err, "")

    def test_groups(self) -> None:
        """A host's groups are listed, set and taken away."""
        command = Scripted(Answer(rows=[{"name": "web", "host_ids": []}]), Answer(), Answer())
        self.assertIn("web", command("config", "groups").out)
        command("config", "groups", "web1", "web", "eu")
        command("config", "groups", "web1", "--none")
        self.assertEqual(
            command.asked[1:],
            [
                ("group.set", {"host": "web1", "groups": ["web", "eu"]}),
                ("group.set", {"host": "web1", "groups": []}),
            ],
        )


class Tokens(SynchronousTestCase):
    """cortextx server token …, acts, backup"""

    def test_add(self) -> None:
        """Only the token is on stdout, so that it can go into a file."""
        command = Scripted(Answer(end={"name": "ci", "token": "ctx_secret"}))
        done = command("server", "token", "add", "ci", "--role", "viewer", "--expire-in", "1d")
        asked = {"name": "ci", "role": "viewer", "expires_in": 86_400}
        self.assertEqual(command.asked, [("token.add", asked)])
        self.assertEqual(done.out, "ctx_secret\n")

    def test_list_and_revoke(self) -> None:
        """Tokens are listed by name; to revoke one wants a yes."""
        token = {"name": "ci", "role": "viewer"}
        command = Scripted(Answer(rows=[token]), Answer())
        done = command("server", "token", "list", "--json")
        self.assertEqual(json.loads(done.out), {"tokens": [token]})
        self.assertEqual(command("server", "token", "revoke", "ci").code, 2)
        self.assertEqual(command("server", "token", "revoke", "ci", "--yes").code, 0)
        self.assertEqual(command.asked[1:], [("token.revoke", {"name": "ci"})])

    def test_acts(self) -> None:
        """Who did what is listed, by subject and actor."""
        act = {"at": "2026-01-01T00:00:00Z", "actor": "local", "act": "token.add", "details": {}}
        command = Scripted(Answer(rows=[act]))
        done = command("server", "acts", "--by", "local", "-n", "5")
        self.assertIn("token.add", done.out)
        self.assertEqual(command.asked, [("acts", {"actor": "local", "limit": 5})])

    def test_backup(self) -> None:
        """The server is told an absolute path; what it made is printed."""
        command = Scripted(Answer(rows=[{"done": 0.5}], end={"path": "/b/x.db", "entries": 3}))
        done = command("server", "backup", "/b/../b/x.db", "--json")
        self.assertEqual(command.asked, [("server.backup", {"path": "/b/x.db"})])
        self.assertEqual(json.loads(done.out), {"path": "/b/x.db", "entries": 3})

    def test_restore_wants_a_stopped_server_and_a_yes(self) -> None:
        """A file that is not there is wrong usage; see tests/integration for the rest."""
        self.assertEqual(Scripted()("server", "restore", "/nonexistent/x.db").code, 2)
        done = Scripted()("server", "verify", "/nonexistent/x.db")
        self.assertEqual(done.code, 1)
