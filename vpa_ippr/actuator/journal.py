"""The journal: what must be put back if the agent dies, on disk before the kernel is touched.

One JSON file a shrink, named by the shrink's UID, written to a temporary file, fsynced, renamed, and the directory fsynced. A lock on the
directory keeps a second agent out. No kernel object expires by itself, so this is what makes a shrink safe against the death of its agent.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from vpa_ippr.actuator.reasons import Reason
from vpa_ippr.api.errors import ActuatorError
from vpa_ippr.api.shrink import Phase

_log = logging.getLogger(__name__)

_SCHEMA = "vpa-ippr/actuator-journal/v1"
_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,62}")
_SUFFIX = ".json"
_LOCK = "lock"
_DIR_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Entry(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What a successor has to know. Limits are bytes, None is ``max``."""

    schema: str = _SCHEMA
    boot_id: str
    shrink_uid: str
    namespace: str
    name: str
    pod_name: str
    pod_uid: str
    container_name: str
    container_id: str
    qos_class: str
    cgroup_identity: int
    original_high_bytes: int | None
    original_max_bytes: int | None
    target_bytes: int
    guard_bytes: int | None
    """The memory.high that is about to be written."""
    previous_guard_bytes: int | None
    """The one before, still in force if death came between journal and kernel."""
    phase: Phase
    started_at: float
    deadline_at: float


class Journal:
    """The entries of one node in one directory.

    Raises:
        ActuatorError: another agent holds the directory (reason ``SecondAgent``), or it cannot be made or locked.
    """

    def __init__(self, directory: Path, boot_id: str) -> None:
        self.boot_id = boot_id
        self._directory = directory
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._directory_fd = os.open(directory, _DIR_FLAGS)
        except OSError as error:
            raise _failed("open", directory, error) from error
        try:
            self._lock_fd = self._lock()
        except BaseException:
            os.close(self._directory_fd)
            raise

    def write(self, entry: Entry) -> None:
        """Put the entry on disk; it is there when this returns."""
        name = _file_name(entry.shrink_uid)
        temporary = f".{name}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(temporary, flags, 0o600, dir_fd=self._directory_fd)
            with os.fdopen(fd, "wb") as file:
                file.write(msgspec.json.encode(entry))
                file.flush()
                os.fsync(file.fileno())
            os.rename(temporary, name, src_dir_fd=self._directory_fd, dst_dir_fd=self._directory_fd)
            os.fsync(self._directory_fd)
        except OSError as error:
            raise _failed("write", self._directory / name, error) from error

    def drop(self, shrink_uid: str) -> None:
        """Forget the entry; one that is not there is no error."""
        name = _file_name(shrink_uid)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._directory_fd)
            os.fsync(self._directory_fd)
        except OSError as error:
            raise _failed("remove", self._directory / name, error) from error

    def entries(self) -> tuple[Entry, ...]:
        """Everything on disk, by name; what cannot be read is logged and left for a person to look at."""
        return tuple(self._read_all())

    def close(self) -> None:
        """Give the lock up."""
        os.close(self._lock_fd)
        os.close(self._directory_fd)

    def _read_all(self) -> Iterator[Entry]:
        for name in sorted(path.name for path in self._directory.iterdir()):
            if not name.endswith(_SUFFIX) or name.startswith("."):
                continue
            try:
                entry = self._read(name)
            except (OSError, msgspec.MsgspecError, ActuatorError) as error:
                _log.error("journal entry cannot be read: look at it and remove it", extra={"file": name, "error": str(error)})
                continue
            yield entry

    def _read(self, name: str) -> Entry:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._directory_fd)
        with os.fdopen(fd, "rb") as file:
            entry = msgspec.json.decode(file.read(), type=Entry)
        if entry.schema != _SCHEMA or _file_name(entry.shrink_uid) != name:
            raise ActuatorError(f"journal entry {name} has schema {entry.schema!r} and shrink {entry.shrink_uid!r}")
        return entry

    def _lock(self) -> int:
        try:
            fd = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self._directory_fd)
        except OSError as error:
            raise _failed("lock", self._directory, error) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(fd)
            message = f"another agent holds {self._directory}: stop it first, one agent a node is the rule"
            raise ActuatorError(message, reason="SecondAgent") from error
        return fd


def read_boot_id(proc: Path = Path("/proc")) -> str:
    """This boot of the machine: after another one every cgroup is new and an entry means nothing."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError as error:
        raise ActuatorError(f"cannot read the boot id under {proc}: {error.strerror}") from error


def _file_name(shrink_uid: str) -> str:
    if not _NAME.fullmatch(shrink_uid):
        raise ActuatorError(f"shrink UID {shrink_uid!r} cannot name a journal file")
    return shrink_uid + _SUFFIX


def _failed(verb: str, path: Path, error: OSError) -> ActuatorError:
    return ActuatorError(f"cannot {verb} the journal {path}: {error.strerror or error}", reason=Reason.WRITE_FAILED)
