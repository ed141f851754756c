"""What a kernel can do, found by trying it out on stand-ins."""

import errno
import os
from pathlib import Path

import pytest
from cgroup_tree import make_node

from vpa_ippr.actuator import features as features_module
from vpa_ippr.actuator.cgroup_files import CgroupFiles
from vpa_ippr.actuator.features import honours_nonblocking, probe

MIB = 1 << 20


@pytest.mark.parametrize(("code", "answer"), [(None, True), (errno.EINVAL, False), (errno.EPERM, None)])
def test_file_only_reclaim_is_tried_with_nothing_to_reclaim(tmp_path, monkeypatch, code, answer):
    asked = []

    def write(_fd, data):
        asked.append(data)
        if code is not None:
            raise OSError(code, os.strerror(code))

    root, proc = make_node(tmp_path)
    monkeypatch.setattr(features_module.os, "write", write)
    assert probe(root, proc).file_only_reclaim is answer
    assert asked == [b"0 swappiness=0"]


def test_features_of_a_node_without_cgroup_v2_are_said_not_raised(tmp_path):
    seen = probe(tmp_path, tmp_path)
    assert seen.as_fields() == {
        "unified": False,
        "memory_controller": False,
        "reclaim": False,
        "pressure": False,
        "file_only_reclaim": None,
        "kernel_release": "of unknown release",
    }


class SelfTest:
    """A kernel for the self-test: page cache of a cgroup before and after its limit was set."""

    def __init__(self, root: Path, monkeypatch, before: int, after: int, code: int = 0) -> None:
        self.root = root
        self.before, self.after, self.code = before, after, code
        self.puts: list[tuple[str, str, bool]] = []
        self.procs = ""
        real_mkdir, real_rmdir = Path.mkdir, Path.rmdir

        def mkdir(path: Path, *args, **kwargs) -> None:
            real_mkdir(path, *args, **kwargs)
            (path / "cgroup.procs").write_text("")
            (path / "memory.stat").write_text("active_file 0\ninactive_file 0\n")
            (path / "cgroup.events").write_text("populated 0\n")

        def put(files: CgroupFiles, name: str, text: str, *, nonblocking: bool = False) -> None:
            self.puts.append((name, text, nonblocking))
            self._show(files, self.after)

        def rmdir(path: Path) -> None:
            for file in path.iterdir():
                file.unlink()
            real_rmdir(path)

        monkeypatch.setattr(Path, "mkdir", mkdir)
        monkeypatch.setattr(Path, "rmdir", rmdir)
        monkeypatch.setattr(CgroupFiles, "put", put)

    def fill(self, procs_fd: int, fd: int, amount_bytes: int) -> int:
        os.write(procs_fd, b"0")
        directory = Path(f"/proc/self/fd/{procs_fd}").readlink().parent
        (directory / "memory.stat").write_text(f"active_file 0\ninactive_file {self.before}\n")
        assert os.write(fd, b"x") == 1
        assert amount_bytes == 8 * MIB
        return self.code

    def _show(self, files: CgroupFiles, amount: int) -> None:
        Path(files.path, "memory.stat").write_text(f"active_file {amount // 2}\ninactive_file {amount - amount // 2}\n")


@pytest.mark.parametrize(
    ("before", "after", "code", "answer"),
    [
        pytest.param(8 * MIB, 8 * MIB, 0, True, id="honoured"),
        pytest.param(8 * MIB, MIB, 0, False, id="ignored: reclaimed at once"),
        pytest.param(8 * MIB, 6 * MIB, 0, None, id="neither"),
        pytest.param(MIB, MIB, 0, None, id="on a tmpfs: no page cache"),
        pytest.param(8 * MIB, 8 * MIB, errno.ENOSPC, None, id="scratch full"),
    ],
)
def test_nonblocking_limits_are_believed_only_when_seen(tmp_path, monkeypatch, before, after, code, answer):
    root, scratch = tmp_path / "root", tmp_path / "scratch"
    root.mkdir()
    scratch.mkdir()
    kernel = SelfTest(root, monkeypatch, before, after, code)
    assert honours_nonblocking(root, scratch, kernel) is answer
    assert kernel.puts == ([("memory.high", str(MIB), True)] if code == 0 and before == 8 * MIB else [])
    assert list(root.iterdir()) == list(scratch.iterdir()) == []


def test_nonblocking_limits_are_not_known_where_no_cgroup_can_be_made(tmp_path):
    assert honours_nonblocking(tmp_path / "nowhere", tmp_path) is None
    # A directory in which no files of a cgroup appear.
    assert honours_nonblocking(tmp_path, tmp_path) is None
    assert list(tmp_path.iterdir()) == []
