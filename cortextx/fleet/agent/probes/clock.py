"""time.sync: whether the clock is kept, as the kernel says."""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

from cortextx.fleet.agent.probes.catalogue import Args
from cortextx.fleet.agent.probes.place import Place

STA_UNSYNC, STA_NANO = 0x0040, 0x2000
TIME_ERROR = 5


class _Timex(ctypes.Structure):
    """struct timex, as adjtimex(2) has it; nothing is set with it."""

    _fields_ = (
        ("modes", ctypes.c_uint), ("offset", ctypes.c_long), ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long), ("esterror", ctypes.c_long), ("status", ctypes.c_int),
        ("constant", ctypes.c_long), ("precision", ctypes.c_long), ("tolerance", ctypes.c_long),
        ("time_sec", ctypes.c_long), ("time_usec", ctypes.c_long), ("tick", ctypes.c_long),
        ("rest", ctypes.c_byte * 128),
    )  # fmt: skip


def sync(args: Args, place: Place) -> dict[str, Any]:
    """Offset and errors in µs; `synchronized` is null where the kernel does not tell."""
    answer: dict[str, Any] = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "synchronized": None,
        "source": _service(),
    }
    timex = _Timex()
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    except AttributeError:
        return answer
    if state < 0:
        return answer
    nano = bool(timex.status & STA_NANO)
    return answer | {
        "synchronized": state != TIME_ERROR and not timex.status & STA_UNSYNC,
        "offset_us": timex.offset / 1000 if nano else timex.offset,
        "max_error_us": timex.maxerror,
        "estimated_error_us": timex.esterror,
    }


def _service() -> str | None:
    """The service that keeps the clock, as far as its traces tell."""
    traces = {
        "chrony": "/run/chrony/chronyd.pid",
        "ntpd": "/run/ntpd.pid",
        "ntpsec": "/run/ntpsec/ntpd.pid",
        "systemd-timesyncd": "/run/systemd/timesync/synchronized",
    }
    return next((name for name, path in traces.items() if os.path.exists(path)), None)
