"""``vpa-ippr actuator`` and its tools, on cgroups of plain files."""

import json
import os

import pytest

from support.cgroup_tree import MIB, Node
from support.cli import run


@pytest.fixture
def node(tmp_path, monkeypatch):
    monkeypatch.delenv("NODE_NAME", raising=False)
    return Node(tmp_path)


@pytest.mark.parametrize("tool", ["shrink", "restore", "status", "guard"])
def test_every_tool_explains_itself(tool):
    outcome = run("actuator", tool, "--help")
    assert (outcome.code, outcome.err) == (0, "")


def test_agent_needs_a_node_name(monkeypatch):
    monkeypatch.delenv("NODE_NAME", raising=False)
    outcome = run("actuator")
    assert outcome.code == 2
    assert "--node-name" in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize(
    ("cgroup", "text"),
    [
        ("system.slice/nothing.scope", "there is no cgroup"),
        ("/elsewhere/db", "is not below the cgroup root"),
        (".", "cannot name a cgroup"),
        ("/", "is not below the cgroup root"),
        ("../cgroup/system.slice", "cannot name a cgroup"),
        ("system.slice/../system.slice/db.scope", "cannot name a cgroup"),
        ("link", "there is no cgroup"),
        ("link/db.scope", "there is no cgroup"),
    ],
)
def test_cgroup_that_is_none(node, cgroup, text):
    (node.root / "link").symlink_to(node.root / "system.slice")
    outcome = node.run("shrink", "--cgroup", cgroup, "--target", "300Mi")
    assert outcome.code != 0
    assert text in outcome.err
    assert outcome.err.count("\n") == 1
    assert not node.journal.exists()


def test_root_itself_is_no_target(node):
    outcome = node.run("shrink", "--cgroup", f"{node.root}/", "--target", "300Mi")
    assert (outcome.code, "is the cgroup root itself" in outcome.err) == (2, True)


@pytest.mark.parametrize(
    "path", ["kubepods.slice/kubepods-pod1.slice/cri-containerd-1.scope", "kubelet/kubepods/burstable/pod1/2", "kubepods"]
)
def test_direct_commit_of_a_container_is_refused(node, path):
    node.add(path)
    outcome = node.run("shrink", "--cgroup", path, "--target", "300Mi", "--commit", "direct")
    assert outcome.code == 2
    assert "belongs to Kubernetes" in outcome.err
    assert "/resize" in outcome.err


def test_direct_commit_of_a_container_is_refused_also_below_a_root_of_kubernetes(node):
    node.add("kubepods.slice/pod1/app")
    (node.root / "kubepods.slice/cgroup.controllers").write_text("memory\n")
    (node.root / "kubepods.slice/memory.reclaim").write_text("")
    arguments = ["--cgroup-root", node.root / "kubepods.slice", "--proc", node.proc, "--cgroup", "pod1/app", "--target", "300Mi"]
    outcome = run("actuator", "shrink", *map(str, arguments), "--commit", "direct")
    assert "belongs to Kubernetes" in outcome.err


@pytest.mark.parametrize("option", [("--settle", "0.1s"), ("--stability", "2h"), ("--target", "0"), ("--deadline", "soon")])
def test_bad_values_are_usage_errors(node, option):
    outcome = node.run("shrink", "--cgroup", "system.slice/db.scope", "--target", "300Mi", *option)
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1


def test_dry_run_says_what_would_be_done_and_writes_nothing(node):
    before = {path: path.read_text() for path in node.db.iterdir()}
    outcome = node.run("shrink", "--cgroup", node.db, "--target", "300Mi", "--dry-run", "--observe", "1s", "-o", "json")
    assert outcome.code == 0, outcome.err
    answer = json.loads(outcome.out)
    assert (answer["cgroup"], answer["wouldShrink"], answer["targetBytes"]) == ("system.slice/db.scope", True, 300 * MIB)
    assert answer["goalBytes"] < answer["guardBytes"] < answer["targetBytes"]
    assert {path: path.read_text() for path in node.db.iterdir()} == before
    assert not node.journal.exists()
    assert "Observing" in outcome.err  # not on a terminal: a line for each phase


def test_dry_run_of_what_would_be_refused(node):
    (node.db / "memory.stat").write_text(f"anon {390 * MIB}\n")
    outcome = node.run("shrink", "--cgroup", node.db, "--target", "300Mi", "--dry-run", "--observe", "1s")
    assert outcome.code == 1
    assert "would not be shrunk (UnreclaimableAnonymous)" in outcome.out


def test_refusal_is_a_plain_verdict_and_leaves_no_journal(node):
    outcome = node.run("shrink", "--cgroup", node.db, "--target", "600Mi")
    assert outcome.code == 1
    assert outcome.out.startswith("system.slice/db.scope: Refused (LimitNotAbove): ")
    assert outcome.out.count("\n") == 1
    assert node.entries() == []


def test_second_shrink_of_a_journal_is_told_what_to_do(node):
    holder = node.leave()
    outcome = node.run("shrink", "--cgroup", node.db, "--target", "300Mi")
    holder.close()
    assert (outcome.code, "--state-dir" in outcome.err) == (1, True)


def test_shrink_first_puts_back_what_one_before_it_has_left(node):
    node.leave().close()
    outcome = node.run("shrink", "--cgroup", node.db, "--target", "600Mi")
    assert "left by an earlier shrink: system.slice/db.scope: memory.high is back at max" in outcome.err
    assert (node.high(), node.entries()) == ("max", [])


def test_restore(node):
    node.leave(may_be_frozen=True).close()
    (node.db / "cgroup.freeze").write_text("1\n")
    outcome = node.run("restore")
    assert (outcome.code, outcome.out, outcome.err) == (0, "system.slice/db.scope: memory.high is back at max\n", "")
    assert (node.high(), node.entries()) == ("max", [])
    assert (node.db / "cgroup.freeze").read_text() == "0\n"
    assert node.run("restore").out == "nothing to put back\n"


def test_restore_of_a_container_is_done_also_without_pressure_files(node):
    container_id = "ab" * 32
    path = f"kubepods/burstable/pod0a/{container_id}"
    directory = node.add(path)
    node.leave("s2", path, cgroup_path=None, pod_uid="0a", container_id=f"containerd://{container_id}", qos_class="Burstable").close()
    (directory / "memory.pressure").unlink()
    (node.proc / "pressure/memory").unlink()
    assert node.run("restore").code == 0
    assert (directory / "memory.high").read_text().splitlines()[0] == "max"
    assert node.entries() == []


@pytest.mark.parametrize("everything", [False, True])
def test_restore_beside_a_live_owner(node, everything):
    holder = node.leave()
    outcome = node.run("restore", *(["--all"] if everything else []))
    holder.close()
    assert outcome.code == 0
    assert ("(its owner lives)" in outcome.out) is everything
    assert (node.high() == "max") is everything
    assert node.entries() == ["s1.json"]


def test_restore_that_fails_says_so(node):
    node.leave(path="system.slice/db.scope", cgroup_path="..").close()
    outcome = node.run("restore")
    assert (outcome.code, "cannot be put back yet" in outcome.out) == (1, True)
    assert node.entries() == ["s1.json"]


def test_status_as_a_table(node):
    holder = node.leave()
    outcome = node.run("status")
    holder.close()
    header, row = outcome.out.splitlines()
    assert header.split() == ["SHRINK", "PHASE", "TARGET", "GUARD", "USAGE", "MEMORY.HIGH", "MEMORY.MAX", "LEFT", "OWNER"]
    for word in ("system.slice/db.scope", "Shrinking", "256.0 MiB", "300.0 MiB", "400.0 MiB", "512.0 MiB", "its owner lives"):
        assert word in row


def test_status_as_json(node):
    node.leave().close()
    (row,) = json.loads(node.run("status", "-o", "json").out)
    assert (row["phase"], row["targetBytes"], row["guardBytes"], row["usageBytes"]) == ("Shrinking", 256 * MIB, 300 * MIB, 400 * MIB)
    assert (row["owner"], row["ownerPid"], row["cgroup"]) == ("gone", os.getpid(), "there")
    assert 590 <= row["secondsLeft"] <= 600


def test_status_of_what_has_gone_and_of_nothing(node):
    assert "no shrink is under way" in node.run("status").out
    assert json.loads(node.run("status", "-o", "json").out) == []
    node.leave(cgroup_identity=1).close()
    assert "  gone " in node.run("status").out
