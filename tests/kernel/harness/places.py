"""Where the harness keeps what it downloads and builds: below ``.cache/kernel``, by content, and never in the repository."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
CACHE = REPOSITORY / ".cache" / "kernel"

GUEST_PAYLOAD = "/payload"
GUEST_TESTS = f"{GUEST_PAYLOAD}/tests"
GUEST_WORKLOAD = f"{GUEST_PAYLOAD}/wl"


class HarnessError(Exception):
    """The harness cannot do its work here; the message says what to install or what went wrong."""


def digest(parts: Iterable[str | bytes]) -> str:
    """A short name for what a file is built from."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part.encode() if isinstance(part, str) else part)
        found.update(b"\0")
    return found.hexdigest()[:16]


def built(name: str, make: Callable[[Path], None]) -> Path:
    """The cached file or folder of that name, made first when it is not there; half-made ones are never seen."""
    path = CACHE / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")
        remove(unfinished)
        try:
            make(unfinished)
            unfinished.rename(path)
        finally:
            remove(unfinished)
    return path


def remove(path: Path) -> None:
    """A file or a whole folder; nothing when it is not there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def only_one() -> Iterator[None]:
    """Wait until no other process builds or boots: two guests at once distort each other's pressure."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
