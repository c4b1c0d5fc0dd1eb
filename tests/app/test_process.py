"""What a process asks of its reactor when it starts."""

from __future__ import annotations

import time
from typing import Any

from twisted.internet.selectreactor import SelectReactor
from twisted.trial.unittest import SynchronousTestCase

from cortextx.app.process import keep_steady_time


class SteadyTime(SynchronousTestCase):
    def test_the_reactor_follows_the_steady_clock(self) -> None:
        """A46: timers, those that were set before too, no longer ask for the time of day."""
        reactor: Any = SelectReactor()
        self.addCleanup(reactor.disconnectAll)
        early = reactor.callLater(50, lambda: None)
        keep_steady_time(reactor)
        late = reactor.callLater(50, lambda: None)
        now = time.monotonic()
        self.assertLess(abs(reactor.seconds() - now), 5)
        for call in (early, late):
            self.assertLess(abs(call.getTime() - now - 50), 5)
        early.reset(100)
        self.assertLess(abs(early.getTime() - now - 100), 5)
