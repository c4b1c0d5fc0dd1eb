"""A user's words become full-text queries."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from cortextx.errors import BadQuery
from cortextx.stores.sqlite_text import MAX_TEXT, MAX_WORDS, like, read_text


def has_token(text: str) -> bool:
    return any(character.isalnum() for character in text)


class TextTests(SynchronousTestCase):
    """A62."""

    def test_words_become_quoted_strings(self) -> None:
        """Nothing in them is an operator."""
        query = read_text("error OR a* NEAR(b col:x -y", has_token)
        self.assertEqual(query.match, '"error" "OR" "a*" "NEAR(b" "col:x" "-y"')
        self.assertEqual(query.literals, ())

    def test_quoted_phrases_stay_together(self) -> None:
        self.assertEqual(read_text('x "disk full"y', has_token).match, '"x" "disk full" "y"')

    def test_an_unclosed_quote_reaches_to_the_end(self) -> None:
        self.assertEqual(read_text('x "disk full', has_token).match, '"x" "disk full"')

    def test_what_has_no_token_is_looked_for_as_it_stands(self) -> None:
        query = read_text('*** "%_" a', has_token)
        self.assertEqual((query.match, query.literals), ('"a"', ("%***%", r"%\%\_%")))

    def test_scripts_without_spaces_are_looked_for_as_they_stand(self) -> None:
        """The tokenizer takes a whole sentence for one word there."""
        query = read_text("错误 エラー ошибка", has_token)
        self.assertEqual((query.match, query.literals), ('"ошибка"', ("%错误%", "%エラー%")))

    def test_empty_texts_ask_for_nothing(self) -> None:
        for text in ("", "  \t\n", '""', '" "', '"'):
            query = read_text(text, has_token)
            self.assertEqual((query.match, query.literals, query.hints), ("", (), ()), text)

    def test_hints_are_the_longest_ascii_part_of_each_word(self) -> None:
        query = read_text('10.20.3 naïveté "a request" 日', has_token)
        self.assertEqual(sorted(query.hints), ["%10%", "%request%", "%vet%"])

    def test_nul_is_looked_for_as_it_is_stored(self) -> None:
        """F16."""
        self.assertEqual(read_text("\0", has_token).literals, ("%\ufffd%",))

    def test_bounds(self) -> None:
        for text in ("x" * (MAX_TEXT + 1), " ".join(map(str, range(MAX_WORDS + 1))), "\udc80"):
            with self.assertRaises(BadQuery):
                read_text(text, has_token)

    def test_like_escapes_what_it_must(self) -> None:
        self.assertEqual(like(r"a%b_c\d"), r"%a\%b\_c\\d%")
