"""The journal: on disk before the kernel is touched, readable by a successor, for one agent only."""

import contextlib
import errno
import json
import os
import subprocess

import msgspec
import pytest
from actuator_fakes import FakeClock

from vpa_ippr.actuator.journal import Entry, Journal, open_journal, read_boot_id, read_entries
from vpa_ippr.actuator.owner import this_process
from vpa_ippr.api.errors import ActuatorError
from vpa_ippr.api.shrink import Phase


def entry(**changes) -> Entry:
    fields = {
        "boot_id": "b",
        "shrink_uid": "11111111-2222-3333-4444-555555555555",
        "namespace": "default",
        "name": "web",
        "pod_name": "web-1",
        "pod_uid": "0",
        "container_name": "app",
        "container_id": "containerd://1",
        "qos_class": "Burstable",
        "cgroup_identity": 5,
        "original_high_bytes": None,
        "original_max_bytes": 1 << 29,
        "target_bytes": 1 << 28,
        "guard_bytes": 300 << 20,
        "previous_guard_bytes": None,
        "phase": Phase.SHRINKING,
        "started_at": 1.5,
        "deadline_at": 901.5,
    }
    return Entry(**fields | changes)


OWNER = this_process()


def signed(written: Entry) -> Entry:
    """As it comes back from a journal of this process."""
    return msgspec.structs.replace(
        written, owner_pid=OWNER.pid, owner_started_ticks=OWNER.started_ticks, owner_pid_namespace=OWNER.pid_namespace
    )


@pytest.fixture
def journal(tmp_path):
    opened = Journal(tmp_path / "state" / "journal", "b")
    yield opened
    opened.close()


def test_what_is_written_is_read_and_what_is_dropped_is_gone(journal):
    first, second = entry(), entry(shrink_uid="99999999", guard_bytes=None)
    journal.write(first)
    journal.write(second)
    journal.write(msgspec.structs.replace(first, phase=Phase.HOLDING))
    assert journal.entries() == (signed(msgspec.structs.replace(first, phase=Phase.HOLDING)), signed(second))
    journal.drop(first.shrink_uid)
    journal.drop(first.shrink_uid)
    assert journal.entries() == (signed(second),)
    assert journal.entries()[0].owner == OWNER


def test_no_temporary_file_is_left(journal, tmp_path):
    journal.write(entry())
    assert sorted(path.name for path in (tmp_path / "state/journal").iterdir()) == [entry().shrink_uid + ".json", "lock"]


@pytest.mark.parametrize("uid", ["", "../evil", "a/b", ".", "..", "a" * 64, "x\n", "-x"])
def test_names_that_could_leave_the_directory_are_refused(journal, uid):
    with pytest.raises(ActuatorError, match="cannot name a journal file"):
        journal.write(entry(shrink_uid=uid))
    with pytest.raises(ActuatorError):
        journal.drop(uid)


def test_second_agent_is_kept_out_until_the_first_is_gone(tmp_path):
    first = Journal(tmp_path, "b")
    with pytest.raises(ActuatorError, match="another agent or shrink holds") as caught:
        Journal(tmp_path, "b")
    assert caught.value.reason == "SecondAgent"
    first.close()
    Journal(tmp_path, "b").close()


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", json.dumps({"schema": "vpa-ippr/actuator-journal/v9"}).encode(), msgspec.json.encode(entry(schema="v2"))],
    ids=["empty", "cut", "list", "future", "other-schema"],
)
def test_unreadable_entry_is_reported_and_the_others_are_read(journal, tmp_path, caplog, content):
    journal.write(entry())
    (tmp_path / "state/journal" / "bad.json").write_bytes(content)
    assert journal.entries() == (signed(entry()),)
    assert "journal entry cannot be read" in caplog.text
    assert (tmp_path / "state/journal" / "bad.json").exists()


def test_symlink_is_not_followed(journal, tmp_path, caplog):
    target = tmp_path / "elsewhere.json"
    target.write_bytes(msgspec.json.encode(entry(shrink_uid="1")))
    (tmp_path / "state/journal" / "1.json").symlink_to(target)
    assert journal.entries() == ()
    assert "cannot be read" in caplog.text


def test_directory_that_cannot_be_made_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ActuatorError, match="cannot open the journal"):
        Journal(tmp_path / "file" / "journal", "b")


def test_boot_id(tmp_path):
    path = tmp_path / "sys/kernel/random"
    path.mkdir(parents=True)
    (path / "boot_id").write_text("abc\n")
    assert read_boot_id(tmp_path) == "abc"
    with pytest.raises(ActuatorError, match="boot id"):
        read_boot_id(tmp_path / "nowhere")


def test_entry_of_an_earlier_version_is_read(journal, tmp_path):
    """Written before entries had an owner, a boot-time deadline or a path: a new agent has to recover it after its own update."""
    old = msgspec.to_builtins(entry())
    for name in ("deadlineBoottimeSeconds", "ownerPid", "ownerStartedTicks", "ownerPidNamespace", "cgroupPath", "mayBeFrozen", "unitHigh"):
        del old[name]
    (tmp_path / "state/journal" / f"{entry().shrink_uid}.json").write_text(json.dumps(old))
    assert journal.entries() == (entry(),)
    assert entry().owner is None


class FailingDisk:
    """The operating system until the given call, which the disk refuses."""

    def __init__(self, call: str, code: int) -> None:
        self.fails_at = call
        self.code = code

    def _answer(self, call: str) -> None:
        if self.fails_at == call:
            raise OSError(self.code, os.strerror(self.code))

    def write(self, fd: int, data: bytes, /) -> int:
        os.write(fd, data[:10])  # part of it fits
        self._answer("write")
        return 10 if data else 0

    def fsync(self, fd: int, /) -> None:
        self._answer("fsync")
        os.fsync(fd)

    def rename(self, src: str, dst: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        self._answer("rename")
        os.rename(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)


@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO], ids=errno.errorcode.get)
def test_disk_that_refuses_leaves_the_entries_as_they_were(tmp_path, call, code):
    with_room = Journal(tmp_path, "b")
    with_room.write(entry())
    with_room.write(entry(shrink_uid="other"))
    with_room.close()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    full = Journal(tmp_path, "b", disk=FailingDisk(call, code))
    for uid in (entry().shrink_uid, "new"):
        with pytest.raises(ActuatorError, match=os.strerror(code)) as caught:
            full.write(entry(shrink_uid=uid, guard_bytes=1 << 20))
        assert caught.value.reason == "JournalUnwritable"
    full.close()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_short_writes_are_completed(tmp_path):
    journal = Journal(tmp_path, "b", disk=FailingDisk("", 0))
    journal.write(entry())
    assert journal.entries() == (signed(entry()),)
    journal.close()


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of a few pages that root may mount; else the test is skipped, aloud."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k,mode=700", "vpa-ippr-test", place], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small disk: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def test_real_disk_that_is_full_and_then_read_only(small_disk):
    journal = Journal(small_disk / "journal", "b")
    journal.write(entry())
    with (small_disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(bytes(4096))
    with pytest.raises(ActuatorError, match="No space left") as caught:
        journal.write(entry(shrink_uid="new"))
    assert caught.value.reason == "JournalUnwritable"
    assert journal.entries() == (signed(entry()),)
    journal.close()

    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    later = Journal(small_disk / "journal", "b")
    assert later.entries() == (signed(entry()),)
    with pytest.raises(ActuatorError, match="Read-only file system"):
        later.write(entry(shrink_uid="new"))
    later.drop("never-written")
    with pytest.raises(ActuatorError, match="Read-only file system"):
        later.drop(entry().shrink_uid)
    with pytest.raises(ActuatorError, match="another agent or shrink"):
        Journal(small_disk / "journal", "b")
    later.close()
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)


def test_half_written_file_of_a_killed_owner_is_swept_away(tmp_path):
    (tmp_path / ".1234.json.tmp").write_text("{half")
    journal = Journal(tmp_path, "b")
    assert journal.entries() == ()
    journal.close()
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_entries_are_read_without_the_lock(journal, tmp_path):
    journal.write(entry())
    assert read_entries(tmp_path / "state/journal") == (signed(entry()),)
    assert read_entries(tmp_path / "nowhere") == ()


class Impatient(FakeClock):
    """Lets the holder go once somebody waits."""

    def __init__(self, holder: Journal | None) -> None:
        super().__init__()
        self.holder = holder

    def wait_until(self, moment: float) -> bool:
        if self.holder is not None:
            self.holder.close()
            self.holder = None
        return super().wait_until(moment)


def test_agent_waits_for_a_dead_man_that_is_at_work(tmp_path):
    clock = Impatient(Journal(tmp_path, "b"))
    open_journal(tmp_path, "b", clock).close()
    assert clock.time - FakeClock().time < 1.0


def test_agent_does_not_wait_for_another_agent_for_long(tmp_path):
    holder, clock = Journal(tmp_path, "b"), Impatient(None)
    with pytest.raises(ActuatorError, match="another agent or shrink"):
        open_journal(tmp_path, "b", clock)
    assert 3.0 <= clock.time - FakeClock().time < 4.0
    holder.close()
