"""The agent of the session benchmarks: an `exec` child that says what its input asks for.

The input is a JSON object: `kind` ("message" or "delta"), `count`, `size` (characters of
each text), and `rate` (lines a second; 0: as fast as they are taken). With a rate each
text begins with the time at which it was said, by the clock that all processes share.
"""

from __future__ import annotations

import json
import os
import sys
import time

BURST = 100


def main() -> None:
    asked = json.loads(json.loads(sys.stdin.readline())["input"])
    form = {
        "message": '{"type":"message","role":"assistant","content":"%s"}\n',
        "delta": '{"type":"delta","text":"%s"}\n',
    }[asked["kind"]]
    count, size, rate = asked["count"], asked["size"], asked["rate"]
    if rate:
        begun = time.monotonic()
        for number in range(count):
            time.sleep(max(0.0, begun + number / rate - time.monotonic()))
            text = f"{time.monotonic():.6f} "
            _say((form % text.ljust(size, "x")).encode())
    else:
        line = (form % "x".ljust(size, "x")).encode()
        for number in range(0, count, BURST):
            _say(line * min(BURST, count - number))
    _say(b'{"type":"done","status":"completed"}\n')


def _say(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


if __name__ == "__main__":
    main()
