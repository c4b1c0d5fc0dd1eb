"""tail: from the newest on, and over a restart without a loss or a duplicate (A64)."""

from __future__ import annotations

import json

from twisted.trial.unittest import SynchronousTestCase

from cortextx.app.cli.faults import NotReachable, Refused
from tests.app.scripted import Answer, Outcome, Scripted


def entries(*ids: int) -> list[dict]:
    """Rows with these ids."""
    return [{"id": n, "ts": "t", "host": "h", "source": "s", "message": f"m{n}"} for n in ids]


def gone(*ids: int) -> Answer:
    """Rows, and then the server goes away."""
    return Answer(rows=entries(*ids), error=NotReachable("went away"))


STOP = Answer(error=KeyboardInterrupt())


def shown(done: Outcome) -> list[int]:
    """The ids that were printed."""
    return [json.loads(line)["id"] for line in done.out.splitlines()]


class Tail(SynchronousTestCase):
    """cortextx tail"""

    def test_last(self) -> None:
        """Without -f it shows the newest entries, ten by default, and ends."""
        command = Scripted(Answer(rows=entries(4, 5), end={"cursor": 5}))
        done = command("tail", "--json", "--host", "h")
        self.assertEqual((done.code, shown(done)), (0, [4, 5]))
        self.assertEqual(command.asked, [("search.tail", {"hosts": ["h"], "last": 10})])

    def test_after(self) -> None:
        """--after without -f reads page after page until nothing is left."""
        command = Scripted(Answer(rows=entries(4), end={"cursor": 6}), Answer(end={"cursor": 6}))
        done = command("tail", "--after", "3", "--json")
        self.assertEqual(shown(done), [4])
        self.assertEqual([args["after"] for _, args in command.asked], [3, 6])

    def test_follow(self) -> None:
        """-f goes on behind what was shown, until ^C, which ends it with 130."""
        command = Scripted(
            Answer(rows=entries(4), end={"cursor": 5}),
            Answer(rows=entries(6), error=KeyboardInterrupt()),
        )
        done = command("tail", "-f", "-n", "1", "--json")
        self.assertEqual((done.code, shown(done)), (130, [4, 6]))
        self.assertEqual(command.asked[1], ("search.tail", {"after": 5, "follow": True}))

    def test_restart(self) -> None:
        """When the server comes back it goes on from its cursor; stderr tells of both."""
        command = Scripted(
            Answer(end={"cursor": 5}), gone(6, 7), None, None, Answer(), gone(7, 8),
            Answer(), STOP,
        )  # fmt: skip
        done = command("tail", "-f", "--json")
        self.assertEqual(shown(done), [6, 7, 8])
        follows = [args for op, args in command.asked if op == "search.tail" and "follow" in args]
        self.assertEqual([args["after"] for args in follows], [5, 7, 8])
        self.assertEqual(done.err.count("went away"), 2)
        self.assertEqual(done.err.count("is back"), 2)
        self.assertEqual(command.slept, [0.2, 0.4, 0.8, 0.2])

    def test_a_row_that_was_shown(self) -> None:
        """A row at or below the cursor is not shown again, whoever sends it."""
        command = Scripted(
            Answer(rows=entries(4, 5), end={"cursor": 5}),
            Answer(rows=entries(5, 6), error=KeyboardInterrupt()),
        )
        self.assertEqual(shown(command("tail", "-f", "--json")), [4, 5, 6])

    def test_stopping_server(self) -> None:
        """A server that says that it is stopping is waited for, as one that is gone."""
        command = Scripted(
            Answer(end={"cursor": 5}),
            Answer(error=Refused("unavailable", "stopping")),
            Answer(),
            STOP,
        )
        self.assertEqual(command("tail", "-f").code, 130)
        self.assertEqual(len(command.asked), 4)

    def test_refused(self) -> None:
        """An error of the request itself ends it, instead of asking for ever."""
        command = Scripted(Answer(end={"cursor": 5}), Answer(error=Refused("bad_request", "no")))
        self.assertEqual(command("tail", "-f").code, 2)

    def test_no_server(self) -> None:
        """Where no server runs at the start, -f does not wait: it says how to start one."""
        self.assertEqual(Scripted(None)("tail", "-f").code, 3)
