"""What a log says of an error is never nothing."""

from __future__ import annotations

from twisted.internet.defer import CancelledError
from twisted.trial.unittest import SynchronousTestCase

from cortextx.errors import StoreError, in_words


class Words(SynchronousTestCase):
    def test_an_error_that_says_something(self) -> None:
        """Its own words."""
        self.assertEqual(in_words(StoreError("the disk is gone")), "the disk is gone")

    def test_an_error_without_words(self) -> None:
        """Its class, and its cause where there is one."""
        self.assertEqual(in_words(CancelledError()), "CancelledError")
        self.assertEqual(in_words(StoreError(" \n")), "StoreError")
        try:
            try:
                raise OSError("read failed")
            except OSError as error:
                raise StoreError from error
        except StoreError as error:
            self.assertEqual(in_words(error), "StoreError (read failed)")
