"""Slots, and what is logged of a child's standard error."""

from __future__ import annotations

from typing import Any

from twisted.logger import globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase

from cortextx.runtimes.complaints import MAX_BYTES, MAX_LINE_BYTES, Complaints
from cortextx.runtimes.slots import Slots


class SlotsTests(SynchronousTestCase):
    def test_they_are_given_in_order_and_never_more_than_there_are(self) -> None:
        slots, begun = Slots(2), list[int]()
        begins = [lambda number=number: begun.append(number) for number in range(5)]
        for begin in begins:
            slots.ask(begin)
        self.assertEqual(begun, [0, 1])
        self.assertTrue(slots.withdraw(begins[2]))
        self.assertFalse(slots.withdraw(begins[2]))
        self.assertFalse(slots.withdraw(begins[0]))
        for _ in range(4):
            slots.give_back()
        self.assertEqual(begun, [0, 1, 3, 4])
        slots.ask(begins[2])
        slots.ask(begins[2])
        slots.ask(begins[2])
        self.assertEqual(begun, [0, 1, 3, 4, 2, 2])


class ComplaintsTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.logged: list[Any] = []

        def observe(event: Any) -> None:
            if event.get("log_namespace", "").startswith("cortextx.runtimes"):
                self.logged.append(event)

        globalLogPublisher.addObserver(observe)
        self.addCleanup(globalLogPublisher.removeObserver, observe)

    def texts(self) -> list[str]:
        return [event["text"] for event in self.logged if "text" in event]

    def test_lines_are_whole_however_they_come(self) -> None:
        complaints = Complaints("r")
        for byte in b"one\n\ntw\xff\nend":
            complaints.came(bytes([byte]))
        complaints.ended()
        self.assertEqual(self.texts(), ["one", "tw\ufffd", "end"])

    def test_lines_and_all_of_it_are_bounded(self) -> None:
        complaints = Complaints("r")
        complaints.came(b"x" * 5000 + b"\n")
        for _ in range(100):
            complaints.came(b"y" * 999 + b"\n")
        complaints.came(b"z" * 10**6)
        complaints.ended()
        self.assertEqual(len(self.texts()[0]), MAX_LINE_BYTES)
        self.assertLess(sum(map(len, self.texts())), MAX_BYTES)
        self.assertEqual(self.logged[-1]["more"], 5001 + 100_000 + 10**6 - MAX_BYTES)
