"""Where a process that `cortextx up` started logs: a file that is turned over, never endless."""

from __future__ import annotations

import os

from twisted.logger import ILogObserver, textFileLogObserver
from twisted.python.logfile import LogFile

LOG_FILE_VARIABLE = "CORTEXTX_LOG_FILE"
FILE_BYTES = 10_000_000
"""A file that has grown so large is renamed to .1, and so on."""
FILES = 5
"""How many such old files are kept."""


def rotating() -> ILogObserver:
    """An observer for `twistd --logger=`: writes to $CORTEXTX_LOG_FILE, readable by us only."""
    file = LogFile.fromFullPath(
        os.environ[LOG_FILE_VARIABLE],
        rotateLength=FILE_BYTES,
        maxRotatedFiles=FILES,
        defaultMode=0o600,
    )
    observer: ILogObserver = textFileLogObserver(file)
    return observer
