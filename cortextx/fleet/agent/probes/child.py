"""The child process that runs one probe: `python -m cortextx.fleet.agent.probes.child`.

It reads its order from stdin, bounds itself (memory, processor time, files that it
writes: none), does what is asked, and writes one line of JSON: `{"output":…}` or
`{"fault":"…"}`. It leads a process group of its own, which the agent ends as one;
when the agent dies, so does it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import resource
import signal
import sys
import time
from typing import Any

import msgspec

from cortextx.fleet.agent.probes.catalogue import PROBES, read_args
from cortextx.fleet.agent.probes.place import Order, Place
from cortextx.fleet.agent.probes.verdicts import ProbeFault

PR_SET_PDEATHSIG = 1
MAX_ORDER = 1_048_576


def main() -> int:
    """Run one probe; the exit code is 0 for an answer, whatever it says."""
    parent = os.getppid()
    with contextlib.suppress(PermissionError):
        os.setsid()
    _die_with_parent(parent)
    order = msgspec.json.decode(sys.stdin.buffer.read(MAX_ORDER), type=Order)
    bound(order)
    answer: dict[str, Any]
    try:
        answer = {"output": run(order)}
        text = encoded(answer)
        if len(text) > order.output_bytes:
            raise ProbeFault(f"the answer is larger than {order.output_bytes} bytes")
    except ProbeFault as fault:
        text = encoded({"fault": str(fault)})
    except MemoryError:
        text = encoded({"fault": f"more memory than {order.memory_bytes} bytes is needed"})
    except OSError as error:
        what = error.strerror or type(error).__name__
        text = encoded({"fault": what if error.filename is None else f"{error.filename}: {what}"})
    except Exception as error:
        text = encoded({"fault": f"{type(error).__name__}: {error}"[:500]})
    sys.stdout.buffer.write(text + b"\n")
    sys.stdout.buffer.flush()
    return 0


def run(order: Order) -> Any:
    """Carry an order out; raises ProbeFault, MemoryError, OSError."""
    probe = PROBES[order.probe]
    args = read_args(probe, order.args)
    module, _, name = probe.function.partition(":")
    found = importlib.import_module(f"cortextx.fleet.agent.probes.{module}")
    place = Place(
        time.monotonic() + order.seconds,
        order.roots,
        order.excluded,
        order.output_bytes,
        order.docker_sockets,
    )
    return getattr(found, name)(args, place)


def bound(order: Order) -> None:
    """Limit what this process, and each that it starts, can take (A61)."""
    seconds = max(1, int(order.seconds) + 1)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_AS, (order.memory_bytes, order.memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    with contextlib.suppress(OSError):
        os.nice(10)


def encoded(answer: dict[str, Any]) -> bytes:
    """JSON text; what is no Unicode (a file's name, say) is replaced."""
    try:
        return msgspec.json.encode(answer)
    except (UnicodeEncodeError, ValueError):
        return msgspec.json.encode(_clean(answer))


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, dict):
        return {_clean(name): _clean(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(inner) for inner in value]
    return value


def _die_with_parent(parent: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(1)


if __name__ == "__main__":
    raise SystemExit(main())
