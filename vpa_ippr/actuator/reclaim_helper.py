"""Writes ``memory.reclaim`` in a process of its own, because a reclaim that hangs in the kernel can only be ended by SIGKILL.

Run as a script: ``reclaim_helper.py <fd> <bytes>``. Exit status 0: all was freed; otherwise the errno of the write that failed.
Not a thread of the agent: one stuck in reclaim cannot be killed. Not a signal handler: Python repeats a write after EINTR (PEP 475), and
with it the whole amount.
"""

from __future__ import annotations

import errno
import os
import sys

CHUNK_BYTES = 64 * 1024 * 1024
"""Kernels without the batch fix reclaim a tenth too much of each GiB asked for at once."""


def reclaim(fd: int, amount_bytes: int) -> int:
    """Ask for the amount in chunks; 0 or the errno that ended it."""
    # File pages only: without swappiness= (before 6.12) the container's swap.max = 0 has to keep anonymous pages in.
    options = b" swappiness=0"
    while amount_bytes > 0:
        part = min(amount_bytes, CHUNK_BYTES)
        try:
            os.write(fd, b"%d%s" % (part, options))
        except OSError as error:
            if error.errno == errno.EINVAL and options:
                options = b""
                continue
            return error.errno or errno.EIO
        amount_bytes -= part
    return 0


if __name__ == "__main__":
    sys.exit(reclaim(int(sys.argv[1]), int(sys.argv[2])))
