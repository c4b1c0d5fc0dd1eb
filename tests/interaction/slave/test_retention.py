"""Claims outlive what retention takes: the journal's rewriting and the slave's reading (I38)."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.exchange import Message
from cortextx.interaction.slave.actions import InputAsked, Known
from cortextx.stores.journal_log import Log
from cortextx.stores.journal_retention import begin
from tests.interaction.slave.mailbox import Mailbox, an_input
from tests.stores.test_journal_retention import SimulatedSession

REQUESTS = 600


class RetentionTests(SynchronousTestCase):
    """A long log, cut wherever it may be cut."""

    def test_no_run_is_ended_twice_and_no_request_runs_again_I38(self) -> None:
        """Wherever the log begins after it, a slave that recovers writes nothing, knows
        every claim, and answers with the seqs that there were."""
        box = Mailbox()
        for n in range(REQUESTS):
            box.input(f"r{n}")
            run = box.started()[-1]
            if n % 50 == 0:
                box.emit(run, Message(f"r{n}", run, "assistant", "x" * 2000))
            box.end(run)
        head = len(box.log)
        for first in (2, 4, head // 2 + 1, head // 2 + 2, head - 8, head):
            log = Log(lambda: SimulatedSession(), "log")
            log.open()
            log.append(1, box.log)
            begin(log, first)
            left = list(log.read(0, head, 1 << 30).lines)
            again = Mailbox()
            again.machine.log_found(first - 1)
            for line in left:
                again.machine.line_read(line)
            self.assertEqual(again.machine.recovered(), [], first)
            for n in range(REQUESTS):
                accepted = box.machine.ledger.claim(f"r{n}")
                assert accepted is not None
                (told,) = again.machine.input_asked(_again(n))
                assert isinstance(told, Known), told
                self.assertEqual((told.accepted, told.done), (accepted.accepted, accepted.done))
            log.close()


def _again(n: int) -> InputAsked:
    return an_input(f"r{n}")
