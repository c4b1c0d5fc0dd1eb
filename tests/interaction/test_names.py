"""Names are safe in paths, and whatever a v1 peer calls its session is served."""

from __future__ import annotations

from hypothesis import given, settings
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.exchange import is_identifier
from cortextx.interaction.names import is_name, v2_identifier, v2_name
from tests.interaction.examples import v1_ids


class NameTests(SynchronousTestCase):
    def test_the_set_is_that_of_the_session_files(self) -> None:
        """I41."""
        for name in ("a", "A.b_c-9", "...", "-", "a" * 128, "Index", "index.1"):
            self.assertTrue(is_name(name), name)
        for name in ("", ".", "..", "index", "a" * 129, "a/b", "a b", "é", "a\n", "\x00", "٣"):
            self.assertFalse(is_name(name), name)

    def test_what_is_fit_stays_and_the_rest_is_its_digest(self) -> None:
        """I25."""
        self.assertEqual(v2_identifier("a b/é"), "a b/é")
        self.assertEqual(v2_name("a.b"), "a.b")
        digest = "v1-81c4b7f7e0549f1514e9cae97cf40cf1"
        self.assertEqual(v2_identifier("a\n"), digest)
        self.assertEqual(v2_name("a\n"), digest)
        self.assertNotEqual(v2_name("a/b"), "a/b")

    @settings(max_examples=100, deadline=None)
    @given(v1_ids)
    def test_any_v1_identifier_has_a_v2_form_and_keeps_it(self, text: str) -> None:
        self.assertTrue(is_identifier(v2_identifier(text)))
        self.assertTrue(is_name(v2_name(text)))
        self.assertEqual(v2_name(v2_name(text)), v2_name(text))
