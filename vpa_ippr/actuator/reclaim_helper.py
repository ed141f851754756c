"""Writes one cgroup file in a process of its own, because a write that hangs in the kernel can only be ended by SIGKILL.

Run as a script: ``reclaim <fd> <bytes> files|files-if-known|any`` writes ``memory.reclaim``, ``set <fd> <text>`` a limit, and
``fill <procs fd> <fd> <bytes>`` joins a cgroup and leaves page cache in it. Exit status 0: all was done; otherwise the errno of the write
that failed.

Not a thread of the agent: one stuck in reclaim cannot be killed. Not a signal handler: Python repeats a write after EINTR (PEP 475), and
with it the whole amount. Imports next to nothing: it is started at every step.
"""

from __future__ import annotations

import errno
import os
import signal
import sys

CHUNK_BYTES = 64 * 1024 * 1024
"""Kernels without the batch fix reclaim a tenth too much of each GiB asked for at once."""
LIFETIME_SECONDS = 15
"""Longer than the agent's watchdog: ends a helper whose agent was killed. SIGALRM is left at its default, which kills within the write."""
_BLOCK_BYTES = 1024 * 1024


def reclaim(fd: int, amount_bytes: int, kind: str) -> int:
    """Ask in chunks; 0 or the errno that ended it.

    Old kernels (6.1 does, 6.12 does not) answer EINVAL to ``swappiness=``. Asked again without it they may swap, unless the caller knows
    that they cannot.
    """
    options = b"" if kind == "any" else b" swappiness=0"
    while amount_bytes > 0:
        part = min(amount_bytes, CHUNK_BYTES)
        try:
            os.write(fd, b"%d%s" % (part, options))
        except OSError as error:
            if error.errno == errno.EINVAL and options:
                if kind == "files":
                    return errno.ENOTSUP
                options = b""
                continue
            return error.errno or errno.EIO
        amount_bytes -= part
    return 0


def set_limit(fd: int, text: str) -> int:
    """Write a limit. The kernel sets it before it reclaims, so it stands even when this process is killed within the write."""
    try:
        os.write(fd, text.encode("ascii") + b"\n")
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def fill(procs_fd: int, fd: int, amount_bytes: int) -> int:
    """Join the cgroup and write a file: its clean pages stay charged there after the process has ended."""
    try:
        os.write(procs_fd, b"0")
        for _ in range(amount_bytes // _BLOCK_BYTES):
            os.write(fd, bytes(_BLOCK_BYTES))
        os.fsync(fd)
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def main(arguments: list[str]) -> int:
    """Do what the arguments say; EINVAL when they say nothing known."""
    signal.alarm(LIFETIME_SECONDS)
    match arguments:
        case ["reclaim", fd, amount, kind]:
            return reclaim(int(fd), int(amount), kind)
        case ["set", fd, text]:
            return set_limit(int(fd), text)
        case ["fill", procs_fd, fd, amount]:
            return fill(int(procs_fd), int(fd), int(amount))
    return errno.EINVAL


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
