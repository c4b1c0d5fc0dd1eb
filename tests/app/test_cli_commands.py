"""The commands: what they ask, what they print, and how they end."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import click
from twisted.trial.unittest import SynchronousTestCase

from cortextx.app.cli import agent as agent_commands
from cortextx.app.cli.faults import Refused
from cortextx.app.cli.main import COMMANDS, cli
from tests.app.scripted import Answer, Scripted

HOST = {"name": "web1", "host_id": "6f1d", "state": "active", "accepted_seq": 7}
ENTRY = {
    "id": 1,
    "ts": "2026-01-01T00:00:00Z",
    "host": "web1",
    "severity": "err",
    "source": "file:/x",
    "app_name": "sshd",
    "process_id": "42",
    "message": "no",
}


def commands_of(group: click.Group, above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every command below a group, by the words that call it."""
    found: list[tuple[str, ...]] = []
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            found += commands_of(command, (*above, name))
        else:
            found.append((*above, name))
    return found


class Starting(SynchronousTestCase):
    """A command's own start is cheap."""

    def test_no_twisted(self) -> None:
        """No module of a command brings in Twisted, Autobahn, rich or a database."""
        modules = sorted({target.split(":")[0] for target in COMMANDS.values()})
        heavy = ("twisted", "autobahn", "txaio", "rich", "sqlite3", "asyncio", "ssl")
        script = (
            f"import sys, {', '.join(modules)}, cortextx.app.cli.main\n"
            "import cortextx.fleet.agent.identity\n"
            f"print([m for m in {heavy!r} if m in sys.modules])"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False
        )
        self.assertEqual((done.stdout, done.stderr), ("[]\n", ""))

    def test_every_help_has_an_example(self) -> None:
        """--help works without any server, and shows an example and the options."""
        paths = commands_of(cli)
        self.assertGreater(len(paths), 30)
        for path in paths:
            done = Scripted()(*path, "--help")
            self.assertEqual(done.code, 0, path)
            self.assertIn("Example", done.out, path)
            self.assertIn("cortextx", done.out, path)

    def test_exit_codes_are_told(self) -> None:
        """The exit codes stand in --help."""
        self.assertIn("cannot be reached", Scripted()("--help").out)

    def test_version(self) -> None:
        """--version prints one line."""
        self.assertRegex(Scripted()("--version").out, r"^cortextx \d+\.\d+\.\d+\n$")


class Hosts(SynchronousTestCase):
    """cortextx agent …"""

    def test_issue_json(self) -> None:
        """The JSON of issue has exactly the members that scripts read, null where undecided."""
        command = Scripted(
            Answer(end={"host_id": None, "token": "t", "invitation": "ws://x#token=t", "more": 1})
        )
        done = command("agent", "issue", "--host", "web1", "--expire-in", "1h", "--json")
        self.assertEqual(command.asked, [("agent.issue", {"name": "web1", "expires_in": 3600})])
        self.assertEqual(
            json.loads(done.out), {"host_id": None, "token": "t", "invitation": "ws://x#token=t"}
        )

    def test_issue_text(self) -> None:
        """For a person the invitation is printed, and what to do with it."""
        command = Scripted(Answer(rows=[{"host_id": None, "token": "t", "invitation": "ws://x#t"}]))
        done = command("agent", "issue", "--host", "web1")
        self.assertIn("ws://x#t", done.out)
        self.assertIn("cortextx agent enroll", done.err)

    def test_issue_tells_what_it_replaced(self) -> None:
        """An invitation that is good no more is told."""
        row = {"token": "t", "invitation": "ws://x#t", "replaced": True}
        done = Scripted(Answer(rows=[row]))("agent", "issue", "--host", "web1")
        self.assertIn("web1 had an invitation that nobody used; it is good no more", done.err)

    def test_list(self) -> None:
        """A listing has a heading and a line a host; what is not known is a dash."""
        done = Scripted(Answer(rows=[HOST]))("agent", "list")
        head, line = done.out.splitlines()
        self.assertTrue(head.startswith("HOST"))
        self.assertEqual(line.split()[:4], ["web1", "active", "-", "7"])

    def test_list_json(self) -> None:
        """--json means the same before and behind the command."""
        for args in (("--json", "agent", "list"), ("agent", "list", "--json")):
            self.assertEqual(
                json.loads(Scripted(Answer(rows=[HOST]))(*args).out), {"hosts": [HOST]}
            )

    def test_no_hosts(self) -> None:
        """An empty listing prints nothing on stdout, and says on stderr how to begin."""
        done = Scripted(Answer())("agent", "list")
        self.assertEqual((done.out, done.code), ("", 0))
        self.assertIn("agent issue --host", done.err)

    def test_not_found(self) -> None:
        """An unknown host ends with 4, and the hint is passed on."""
        command = Scripted(Answer(error=Refused("not_found", "no host web9", "agent list shows")))
        done = command("agent", "show", "web9")
        self.assertEqual(done.code, 4)
        self.assertEqual(done.err, "cortextx: no host web9\n  next: agent list shows\n")

    def test_no_server(self) -> None:
        """Where no server runs, the command ends with 3 and says how to start it."""
        done = Scripted(None)("agent", "list")
        self.assertEqual(done.code, 3)
        self.assertIn("next: start one", done.err)

    def test_gaps(self) -> None:
        """What the server never got is listed, for one host or for all (F13)."""
        gap = {"host": "web1", "first": 3, "last": 5, "entries": 3}
        done = Scripted(Answer(rows=[gap]))("agent", "gaps", "web1", "--json")
        self.assertEqual(json.loads(done.out), {"gaps": [gap]})
        self.assertEqual(Scripted(Answer())("agent", "gaps").out, "")

    def test_rotate(self) -> None:
        """rotate asks for one host, and cuts it off only with --now (F7)."""
        command = Scripted(Answer(), Answer())
        command("agent", "rotate", "web1")
        command("agent", "rotate", "web1", "--now")
        self.assertEqual(
            command.asked,
            [("agent.rotate", {"host": "web1"}), ("agent.rotate", {"host": "web1", "now": True})],
        )

    def test_rotate_tells_what_will_happen(self) -> None:
        """With --expire-in it says whether the host was cut, until when the old token is
        good, and how a host that is too late comes back (F7)."""
        end = {"host_id": "6f1d", "name": "web1", "connected": True, "pending": True,
               "ends_at": "2027-01-15T08:01:00Z"}  # fmt: skip
        for changes, said, unsaid in (
            ({}, ("it was cut", "refused from 2027-01-15T08:01:00Z"), "locked out"),
            (
                {"connected": False},
                ("when it connects next", "locked out", "--host web1 --host-id 6f1d"),
                "was cut",
            ),
            ({"pending": False}, ("invitation anew", "refused from 2027"), "was cut"),
        ):
            command = Scripted(Answer(end=end | changes))
            done = command("agent", "rotate", "web1", "--expire-in", "60")
            for words in said:
                self.assertIn(words, done.out)
            self.assertNotIn(unsaid, done.out)
        plain = Scripted(Answer(end=end | {"ends_at": None}))("agent", "rotate", "web1")
        self.assertEqual(plain.out, "web1 gets a new token when it connects next\n")

    def test_dangerous_ones_want_yes(self) -> None:
        """revoke and forget do nothing without --yes where nobody can be asked."""
        for name in ("revoke", "forget"):
            command = Scripted(Answer())
            done = command("agent", name, "web1")
            self.assertEqual((done.code, command.asked), (2, []))
            self.assertIn("--yes", done.err)
            self.assertEqual(command("agent", name, "web1", "--yes").code, 0)
            self.assertEqual(command.asked, [(f"agent.{name}", {"host": "web1"})])

    def at_a_terminal(self) -> None:
        """Let the user be somebody who can be asked."""
        terminal = SimpleNamespace(isatty=lambda: True)
        self.patch(agent_commands, "sys", SimpleNamespace(stdin=terminal))

    def test_no_is_no(self) -> None:
        """Who answers no is told that nothing was changed, with exit code 1."""
        self.at_a_terminal()
        command = Scripted(Answer(rows=[HOST]), Answer())
        done = command("agent", "revoke", "web1", stdin="n\n")
        self.assertEqual(done.code, 1)
        self.assertIn("nothing was changed", done.err)
        self.assertEqual([op for op, _ in command.asked], ["agent.show"])

    def test_revoking_what_never_enrolled(self) -> None:
        """Of a host that has yet to enrol the invitation is withdrawn: there is no more."""
        self.at_a_terminal()
        gone = Answer(end={"host_id": None, "name": "web1", "withdrawn": True})
        command = Scripted(Answer(rows=[{**HOST, "host_id": None}]), gone)
        done = command("agent", "revoke", "web1", stdin="y\n")
        self.assertEqual(done.code, 0)
        self.assertIn("Withdraw the invitation for web1?", done.out + done.err)
        self.assertTrue(done.out.endswith("the invitation for web1 is withdrawn\n"), done.out)
        self.assertEqual(
            Scripted(gone)("agent", "forget", "web1", "--yes").out,
            "the invitation for web1 is withdrawn\n",
        )

    def test_issue_refuses_what_cannot_be(self) -> None:
        """An empty name and a host id that is no UUID are told in words, and not asked for."""
        for args, said in (
            (("--host", ""), "--host is empty"),
            (("--host", "x", "--host-id", "nope"), "--host-id is no UUID"),
            (("--host", "x", "--host-id", ""), "--host-id is no UUID"),
        ):
            command = Scripted(Answer())
            done = command("agent", "issue", *args)
            self.assertEqual((done.code, command.asked), (2, []))
            self.assertIn(said, done.err)

    def test_issue_passes_the_hint_on(self) -> None:
        """What the server says of an invitation is told, beside it."""
        row = {"token": "t", "invitation": "ws://x#t", "hint": "set public_url"}
        done = Scripted(Answer(rows=[row]))("agent", "issue", "--host", "web1")
        self.assertIn("Note: set public_url", done.err)
        self.assertNotIn("public_url", done.out)

    def test_an_empty_state_directory(self) -> None:
        """An empty --state-dir is wrong usage, not the directory one happens to be in."""
        done = Scripted(Answer(), directory="")("agent", "list")
        self.assertEqual(done.code, 2)
        self.assertIn("--state-dir", done.err)

    def test_a_state_directory_that_cannot_be(self) -> None:
        """up says which directory is missing or in the way, with the code of a wrong value."""
        for directory in ("/proc/cortextx", "/dev/null/cortextx", "/proc/no/cortextx"):
            done = Scripted(directory=directory)("up")
            self.assertEqual(done.code, 2, done.err)
            self.assertIn(f"{directory} cannot be used", done.err)
        self.assertIn("/proc/no is missing", done.err)

    def test_agent_of_this_machine(self) -> None:
        """status shows what the agent says, nested or not; retry asks it to try again (F34)."""
        command = Scripted(Answer(end={"state": "active", "buffer": {"depth": 3}}), Answer())
        done = command("agent", "status")
        self.assertEqual(done.out, "state         active\nbuffer.depth  3\n")
        self.assertEqual(command("agent", "retry").code, 0)
        self.assertEqual([op for op, _ in command.asked], ["status", "retry"])
        connected = Scripted(Answer(end={"connected": True}))("agent", "retry")
        self.assertEqual((connected.code, "nothing to try" in connected.out), (0, True))

    def test_a_status_is_for_people(self) -> None:
        """An agent's status shows sources and files as tables, a line each with what is
        wrong, and no JSON; with --json it is what the agent said."""
        said = {
            "state": "reconnecting",
            "health": "yellow",
            "health_why": ["not connected: refused", "source docker docker waits: no daemon"],
            "next_attempt_in": 3.4,
            "sources_paused_by": ["buffer", "link"],
            "sources": [
                {"kind": "file", "name": "app", "path": "/a*", "start": "end", "origin": "local",
                 "files": 0, "why": "no file matches"}
            ],
            "sources_left_out": [
                {"kind": "journald", "name": "journald", "origin": "server", "why": "not yet"}
            ],
            "files": [{"path": "/b\x1b", "offset": 5, "size": 7, "why": None}],
        }  # fmt: skip
        shown = [
            line.split() for line in Scripted(Answer(end=said))("agent", "status").out.splitlines()
        ]
        for line in (
            "health_why.1 not connected: refused",
            "health_why.2 source docker docker waits: no daemon",
            "next_attempt_in 3.4 s",
            "sources_paused_by buffer, link",
            "SOURCE KIND BY FROM FILES STATE WHY",
            "app file local end 0 - no file matches",
            "journald journald server - - - not yet",
            "FILE READ OF WHY",
            "/b\\e 5 7 -",
        ):
            self.assertIn(line.split(), shown)
        done = Scripted(Answer(end=said))("agent", "status", "--json")
        self.assertEqual(json.loads(done.out), said)

    def test_names_are_escaped(self) -> None:
        """A host's name cannot steer the terminal (S4)."""
        done = Scripted(Answer(rows=[{**HOST, "name": "a\x1b[2J\u202e"}]))("agent", "list")
        self.assertIn("a\\e[2J\\u202e", done.out)

    def test_wrong_usage(self) -> None:
        """What click finds wrong ends with 2, as does a wrong value."""
        for args in (
            ("nothing",), ("agent", "issue"), ("agent", "issue", "--host", "x", "--expire-in", "y"),
            ("search", "--severity", "loud"), ("search", "--since", "yesterdayish"),
            ("tail", "-n", "1", "--after", "2"), ("search", "--since", "999999999w"),
        ):  # fmt: skip
            done = Scripted()(*args)
            self.assertEqual(done.code, 2, args)
            self.assertIn("Error", done.err)


class Search(SynchronousTestCase):
    """cortextx search"""

    def test_filters(self) -> None:
        """Every filter is asked for by its name; what was not given is left out."""
        command = Scripted(Answer())
        command(
            "search", "a", "b c", "--host", "x", "--host", "y", "--app", "sshd", "--source",
            "file:*", "--severity", "error", "--since", "1h", "--until", "2027-01-15T08:00+00:00",
            "-n", "5", "--cursor", "q",
        )  # fmt: skip
        self.assertEqual(
            command.asked,
            [
                (
                    "search",
                    {
                        "text": 'a "b c"',
                        "hosts": ["x", "y"],
                        "apps": ["sshd"],
                        "sources": ["file:*"],
                        "severity": "err",
                        "since": "2027-01-15T07:00:00Z",
                        "until": "2027-01-15T08:00:00Z",
                        "limit": 5,
                        "cursor": "q",
                        "order": "newest_first",
                    },
                )
            ],
        )

    def test_text(self) -> None:
        """An entry is one line, whatever stands in its message (S4)."""
        done = Scripted(Answer(rows=[{**ENTRY, "message": "a\nb\x1b]0;x\x07\x9b"}]))("search")
        self.assertEqual(
            done.out,
            "2026-01-01T00:00:00Z web1 err file:/x sshd[42]: a\\nb\\e]0;x\\x07\\x9b\n",
        )

    def test_raw(self) -> None:
        """--raw shows the text as it is."""
        done = Scripted(Answer(rows=[{**ENTRY, "message": "a\x1b[1m"}]))("search", "--raw")
        self.assertIn("a\x1b[1m\n", done.out)

    def test_json(self) -> None:
        """--json is an object a line, equal to the entry, and safe to show (S4)."""
        rows = [{**ENTRY, "message": "a\x9b\u202e\x1bä"}, ENTRY]
        done = Scripted(Answer(rows=rows))("search", "--json")
        self.assertEqual([json.loads(line) for line in done.out.splitlines()], rows)
        self.assertNotIn("\x9b", done.out)
        self.assertNotIn("\u202e", done.out)

    def test_pages(self) -> None:
        """More than a page is asked for page by page, up to the limit; then stderr says more."""
        command = Scripted(
            Answer(rows=[ENTRY], end={"cursor": "one"}), Answer(rows=[ENTRY], end={"cursor": "two"})
        )
        done = command("search", "-n", "1500")
        self.assertEqual([args["limit"] for _, args in command.asked], [1000, 500])
        self.assertEqual(command.asked[1][1]["cursor"], "one")
        self.assertEqual(len(done.out.splitlines()), 2)
        self.assertIn("--cursor two", done.err)

    def test_all(self) -> None:
        """-n 0 goes on to the end, and says nothing of more."""
        command = Scripted(Answer(end={"cursor": "one"}), Answer(end={"cursor": None}))
        done = command("search", "-n", "0")
        self.assertEqual(len(command.asked), 2)
        self.assertNotIn("more", done.err)

    def test_nothing_found(self) -> None:
        """No hit is no error, and stderr says so; a hit leaves stderr empty."""
        done = Scripted(Answer())("search", "x")
        self.assertEqual((done.code, done.out, done.err), (0, "", "nothing found\n"))
        self.assertEqual(Scripted(Answer(rows=[ENTRY]))("search", "x").err, "")

    def test_a_span_that_ends_before_it_begins(self) -> None:
        """--since later than --until is wrong usage, in search and tail; nobody is asked."""
        for name in ("search", "tail"):
            command = Scripted(Answer())
            done = command(name, "--since", "1h", "--until", "2h")
            self.assertEqual((done.code, command.asked), (2, []))
            self.assertIn("--since is later than --until", done.err)

    def test_refusal(self) -> None:
        """A search that fails is an error, never an empty result (A62)."""
        done = Scripted(Answer(error=Refused("internal", "it broke")))("search", "x")
        self.assertEqual((done.code, done.out), (1, ""))
        self.assertIn("it broke", done.err)
