"""The journal: what must be put back if the agent dies, on disk before the kernel is touched.

One JSON file a shrink, named by the shrink's UID, written to a temporary file, fsynced, renamed, and the directory fsynced. A lock on the
directory keeps a second agent out. No kernel object expires by itself, so this is what makes a shrink safe against the death of its agent.

A disk that is full or read-only refuses the entry, and with it the shrink, before the kernel is touched. What is already on disk stays
whole, and can be recovered from a disk that has become read-only since.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from vpa_ippr.actuator.owner import Owner, this_process
from vpa_ippr.actuator.reasons import Reason
from vpa_ippr.api.clock import Clock, boottime_seconds
from vpa_ippr.api.errors import ActuatorError
from vpa_ippr.api.shrink import Phase

_log = logging.getLogger(__name__)

_SCHEMA = "vpa-ippr/actuator-journal/v1"
_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,62}")
_SUFFIX = ".json"
_TEMPORARY = ".tmp"
_LOCK = "lock"
_DIR_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK_RETRY_SECONDS = 0.2
SECOND_AGENT = "SecondAgent"


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

    # What entries of earlier versions do not have.
    deadline_boottime_seconds: float | None = None
    """The deadline by CLOCK_BOOTTIME, which every process of this boot reads alike."""
    owner_pid: int | None = None
    owner_started_ticks: int | None = None
    owner_pid_namespace: int | None = None
    cgroup_path: str | None = None
    """Below the cgroup root, where the shrink is about a cgroup that is no container of Kubernetes."""
    unit_high: str | None = None
    """What systemd held as MemoryHigh before it was told of a guard: ``max`` or bytes; None where it is not told."""
    may_be_frozen: bool = False
    """The cgroup is about to be frozen, for the moment in which its limit is set."""

    @property
    def owner(self) -> Owner | None:
        """The process that wrote it last; None in an entry that does not say."""
        if self.owner_pid is None or self.owner_started_ticks is None or self.owner_pid_namespace is None:
            return None
        return Owner(self.owner_pid, self.owner_started_ticks, self.owner_pid_namespace)


class Disk(Protocol):
    """The three calls by which an entry reaches the disk."""

    def write(self, fd: int, data: bytes, /) -> int:
        """As ``os.write``."""
        ...

    def fsync(self, fd: int, /) -> None:
        """As ``os.fsync``."""
        ...

    def rename(self, src: str, dst: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        """As ``os.rename``."""
        ...


class Journal:
    """The entries of one node in one directory.

    Args:
        directory: made if it is not there.
        boot_id: of this boot of the machine.
        owner: who writes the entries; this process.
        disk: the operating system.
        boottime: the clock that entries state their deadline by.

    Raises:
        ActuatorError: another agent holds the directory (reason ``SecondAgent``), or it cannot be made or locked.
    """

    def __init__(
        self, directory: Path, boot_id: str, owner: Owner | None = None, disk: Disk = os, boottime: Callable[[], float] = boottime_seconds
    ) -> None:
        self.boot_id = boot_id
        self.boottime = boottime
        self._directory = directory
        self._owner = owner or this_process()
        self._disk = disk
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
        self._sweep()

    def write(self, entry: Entry) -> None:
        """Put the entry on disk in our name; it is there when this returns.

        Raises:
            ActuatorError: it could not be written (reason ``JournalUnwritable``); the entry that was there before is there still.
        """
        name = _file_name(entry.shrink_uid)
        temporary = f".{name}{_TEMPORARY}"
        owner = self._owner
        if owner is not None:
            entry = msgspec.structs.replace(
                entry, owner_pid=owner.pid, owner_started_ticks=owner.started_ticks, owner_pid_namespace=owner.pid_namespace
            )
        try:
            self._write_whole(temporary, msgspec.json.encode(entry))
            self._disk.rename(temporary, name, src_dir_fd=self._directory_fd, dst_dir_fd=self._directory_fd)
            self._disk.fsync(self._directory_fd)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=self._directory_fd)
            raise _failed("write", self._directory / name, error) from error

    def drop(self, shrink_uid: str) -> None:
        """Forget the entry; one that is not there is no error."""
        name = _file_name(shrink_uid)
        try:
            # A read-only disk refuses to remove even what is not there.
            os.stat(name, dir_fd=self._directory_fd, follow_symlinks=False)
            os.unlink(name, dir_fd=self._directory_fd)
            self._disk.fsync(self._directory_fd)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _failed("remove", self._directory / name, error) from error

    def entries(self) -> tuple[Entry, ...]:
        """Everything on disk, by name; what cannot be read is logged and left for a person to look at."""
        return tuple(_read_all(self._directory_fd))

    def close(self) -> None:
        """Give the lock up."""
        os.close(self._lock_fd)
        os.close(self._directory_fd)

    def _write_whole(self, name: str, data: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=self._directory_fd)
        try:
            while data:
                data = data[self._disk.write(fd, data) :]
            self._disk.fsync(fd)
        finally:
            os.close(fd)

    def _sweep(self) -> None:
        """What an owner that was killed in the middle of a write has left; it was never an entry."""
        for name in _names(self._directory_fd):
            if name.startswith(".") and name.endswith(_SUFFIX + _TEMPORARY):
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=self._directory_fd)

    def _lock(self) -> int:
        flags = os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            try:
                fd = os.open(_LOCK, os.O_RDWR | os.O_CREAT | flags, 0o600, dir_fd=self._directory_fd)
            except OSError as error:
                if error.errno != errno.EROFS:
                    raise
                # flock(2) needs no write access, and what is in the journal must be recovered all the same.
                fd = os.open(_LOCK, os.O_RDONLY | flags, dir_fd=self._directory_fd)
        except OSError as error:
            raise _failed("lock", self._directory, error) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(fd)
            message = f"another agent or shrink holds {self._directory}: stop it first, or give this one its own --state-dir"
            raise ActuatorError(message, reason=SECOND_AGENT) from error
        return fd


def open_journal(directory: Path, boot_id: str, clock: Clock, patience_seconds: float = 3.0) -> Journal:
    """The journal, also when the dead-man holds its lock for the moment in which it puts a dead agent's entries back.

    Raises:
        ActuatorError: as ``Journal``.
    """
    until = clock.now() + patience_seconds
    while True:
        try:
            return Journal(directory, boot_id)
        except ActuatorError as error:
            if error.reason != SECOND_AGENT or clock.now() >= until or not clock.wait_until(clock.now() + _LOCK_RETRY_SECONDS):
                raise


def read_entries(directory: Path) -> tuple[Entry, ...]:
    """Everything on disk without the lock; nothing where no journal has been kept yet.

    Raises:
        ActuatorError: the directory cannot be read.
    """
    try:
        fd = os.open(directory, _DIR_FLAGS)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise _failed("open", directory, error) from error
    try:
        return tuple(_read_all(fd))
    finally:
        os.close(fd)


def count_entries(directory: Path) -> int:
    """How many there are on disk, unreadable ones too; OSError when that cannot be seen."""
    try:
        return sum(path.suffix == _SUFFIX and not path.name.startswith(".") for path in directory.iterdir())
    except FileNotFoundError:
        return 0


def _read_all(directory_fd: int) -> Iterator[Entry]:
    for name in _names(directory_fd):
        if not name.endswith(_SUFFIX) or name.startswith("."):
            continue
        try:
            entry = _read(directory_fd, name)
        except FileNotFoundError:
            continue  # its owner was faster
        except (OSError, msgspec.MsgspecError, ActuatorError) as error:
            _log.error("journal entry cannot be read: look at it and remove it", extra={"file": name, "error": str(error)})
            continue
        yield entry


def _names(directory_fd: int) -> list[str]:
    return sorted(os.listdir(directory_fd))


def _read(directory_fd: int, name: str) -> Entry:
    fd = os.open(name, _READ_FLAGS, dir_fd=directory_fd)
    with os.fdopen(fd, "rb") as file:
        entry = msgspec.json.decode(file.read(), type=Entry)
    if entry.schema != _SCHEMA or _file_name(entry.shrink_uid) != name:
        raise ActuatorError(f"journal entry {name} has schema {entry.schema!r} and shrink {entry.shrink_uid!r}")
    return entry


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
    return ActuatorError(f"cannot {verb} the journal {path}: {error.strerror or error}", reason=Reason.JOURNAL_UNWRITABLE)
