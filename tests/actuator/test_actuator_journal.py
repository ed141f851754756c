"""The journal: on disk before the kernel is touched, readable by a successor, for one agent only."""

import json

import msgspec
import pytest

from vpa_ippr.actuator.journal import Entry, Journal, read_boot_id
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
    assert journal.entries() == (msgspec.structs.replace(first, phase=Phase.HOLDING), second)
    journal.drop(first.shrink_uid)
    journal.drop(first.shrink_uid)
    assert journal.entries() == (second,)


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
    with pytest.raises(ActuatorError, match="another agent holds") as caught:
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
    assert journal.entries() == (entry(),)
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
