"""host.info: what this host is."""

from __future__ import annotations

import os
import platform
import socket
import time
from typing import Any

import psutil

from cortextx.fleet.agent.probes.catalogue import Args
from cortextx.fleet.agent.probes.place import Place


def info(args: Args, place: Place) -> dict[str, Any]:
    """Names, system, processors, memory (bytes), and since when it runs (seconds)."""
    booted = psutil.boot_time()
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    return {
        "hostname": socket.gethostname(),
        "os": platform.system().lower(),
        "distro": _distro(),
        "kernel": platform.release(),
        "arch": platform.machine(),
        "container": _container(),
        "cpus": os.cpu_count(),
        "load": [round(value, 2) for value in os.getloadavg()],
        "memory_bytes": memory.total,
        "memory_available_bytes": memory.available,
        "swap_bytes": swap.total,
        "boot_time": int(booted),
        "uptime_secs": int(time.time() - booted),
        "timezone": list(time.tzname),
        "processes": len(psutil.pids()),
    }


def _distro() -> str | None:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        return None


def _container() -> str | None:
    """What kind of container this is, as far as it says so itself."""
    if os.path.exists("/.dockerenv"):
        return "docker"
    if os.path.exists("/run/.containerenv"):
        return "podman"
    try:
        with open("/run/systemd/container") as file:
            return file.read(64).strip() or None
    except OSError:
        return None
