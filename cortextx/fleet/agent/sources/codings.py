"""How a file's bytes are text: where lines end, where characters end, what NULs are (PURE).

A file has one coding from its first byte on; it stands in its checkpoint, so a restart
in the middle goes on with it (A23). All sizes and offsets stay in the file's own bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cortextx.fleet.contract import MAX_MESSAGE_CHARS

AUTO: Final = "auto"
"""By the file's first bytes: UTF-16 if there is its BOM, else UTF-8."""
UTF_8: Final = "utf-8"
ENCODINGS: Final = (AUTO, UTF_8, "utf-16le", "utf-16be", "latin-1")
"""What a source's `encoding` may be."""


@dataclass(frozen=True, slots=True)
class Coding:
    """One way to write text; `unit` is the size of what a newline is one of."""

    name: str
    codec: str
    newline: bytes = b"\n"

    @property
    def unit(self) -> int:
        """Bytes of the smallest piece of a character."""
        return len(self.newline)

    @property
    def is_wide(self) -> bool:
        """Whether a newline is more than one byte."""
        return len(self.newline) > 1

    def lines(self, body: bytes) -> list[bytes]:
        """The whole lines that `body` begins with, without their newlines."""
        if not self.is_wide:
            lines = body[: body.rfind(b"\n") + 1].split(b"\n")
            lines.pop()
            return lines
        # Lone surrogates stay, so every line is what stands in the file.
        texts = self.text(body).split("\n")
        texts.pop()
        return [self.data(text) for text in texts]

    def part_size(self, data: bytes, chars: int = MAX_MESSAGE_CHARS) -> int:
        """How many of the first bytes of `data` make one part of `chars` characters (F17).

        An invalid byte counts as a character, so the text never gets longer than that.
        """
        return len(self.data(self.text(data[: 4 * chars + 4])[:chars]))

    def nuls(self, data: bytes) -> int:
        """How many of the first bytes of `data` are NUL characters."""
        count = len(data) - len(data.lstrip(b"\0"))
        return count - count % self.unit

    def settled(self, data: bytes) -> int:
        """How many of the first bytes of `data` are sure to stay as they are: whole
        characters, no half of a line's end, and none of the NULs that stand where nothing
        was written yet."""
        if self.is_wide:
            text = data[: len(data) & ~1].decode(self.codec, "surrogatepass").partition("\0")[0]
            text = text.removesuffix("\r")
            if text and "\ud800" <= text[-1] < "\udc00":
                text = text[:-1]
            return len(text.encode(self.codec, "surrogatepass"))
        end = data.find(b"\0")
        end = len(data) if end < 0 else end
        end -= data.endswith(b"\r", 0, end)
        if self.codec == "latin-1":
            return end
        for back in range(1, min(3, end) + 1):
            byte = data[end - back]
            if byte >= 0xC0:
                wants = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
                return end - back if wants > back else end
            if byte < 0x80:
                break
        return end

    def text(self, record: bytes) -> str:
        """A record as characters that `data` can turn back into its bytes."""
        return record[: len(record) - len(record) % self.unit].decode(self.codec, self._lossless)

    def data(self, text: str) -> bytes:
        """The inverse of `text`, but for half a character at the end."""
        return text.encode(self.codec, self._lossless)

    @property
    def _lossless(self) -> str:
        return "surrogatepass" if self.is_wide else "surrogateescape"


PLAIN: Final = Coding(UTF_8, "utf-8")
CODINGS: Final = {
    coding.name: coding
    for coding in (
        PLAIN,
        Coding("utf-16le", "utf-16-le", b"\n\0"),
        Coding("utf-16be", "utf-16-be", b"\0\n"),
        Coding("latin-1", "latin-1"),
    )
}


def coding_of(setting: str, head: bytes, before: str = UTF_8) -> str:
    """The name of the coding of a file that begins with `head`.

    `before` is what the file had until it was truncated: where a writer goes on
    behind a hole of NULs, its BOM is gone.
    """
    if setting != AUTO:
        return setting
    if head.startswith(b"\xff\xfe"):
        return "utf-16le"
    if head.startswith(b"\xfe\xff"):
        return "utf-16be"
    return before if head.startswith(b"\0\0") else UTF_8
