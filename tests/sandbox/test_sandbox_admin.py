"""The sandbox's own paths over HTTP, the settings of nodes in a file, and the command's options for them."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from vpa_ippr.api.errors import UsageError
from vpa_ippr.cli.sandbox import sandbox as sandbox_command
from vpa_ippr.sandbox.node import GIB, KubeletSettings, NodeSpec
from vpa_ippr.sandbox.nodesettings import SETTINGS, parse_node_settings, shown_settings, with_settings
from vpa_ippr.sandbox.podfit import NodeSettings
from vpa_ippr.sandbox.runtimefaults import MemoryCheck
from vpa_ippr.sandbox.sandbox import Sandbox

Json = dict[str, Any]
START = 1_800_000_000.0


class Admin:
    """A sandbox in which time passes when the test waits."""

    def __init__(self) -> None:
        self.sandbox = Sandbox(start_time=START, nodes=[NodeSpec("n1")], rate=None, tls=False, crds=False)
        self.sandbox.simulation.keeper.register("test")
        self.clock = self.sandbox.simulation.keeper.local_clock("test")
        self.sandbox.start()
        self.run(1)

    def run(self, seconds: float) -> None:
        assert self.clock.wait_until(self.clock.now() + seconds)

    def send(self, method: str, path: str, body: Json | None = None) -> tuple[int, Any]:
        request = urllib.request.Request(  # noqa: S310 - the sandbox's own address
            f"{self.sandbox.admin_url}/_sandbox/{path}", method=method, data=None if body is None else json.dumps(body).encode()
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def api_answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.sandbox.api.url}/healthz", timeout=10) as answer:  # noqa: S310
                return bool(answer.status == 200)
        except OSError:
            return False


@pytest.fixture
def admin() -> Iterator[Admin]:
    running = Admin()
    try:
        yield running
    finally:
        running.sandbox.stop()


class TestPaths:
    def test_faults_of_a_node(self, admin: Admin) -> None:
        runtime = [{"container": "app", "message": "no", "count": 3, "seconds": 1.5}]
        body = {"runtime": runtime, "usageGaps": [{"container": "*", "count": None}]}
        assert admin.send("PUT", "nodes/n1/faults", body)[0] == 200
        admin.run(1)
        code, state = admin.send("GET", "nodes/n1")
        assert (code, state["faults"], state["kubeletIsUp"]) == (200, body, True)

    def test_settings_of_a_node(self, admin: Admin) -> None:
        assert admin.send("PATCH", "nodes/n1/settings", {"statsLagSeconds": 30, "runtimeMemoryCheck": "runc"})[0] == 200
        admin.run(1)
        settings = admin.send("GET", "nodes/n1")[1]["settings"]
        assert (settings["statsLagSeconds"], settings["runtimeMemoryCheck"], settings["swap"]) == (30, "runc", False)
        assert settings.keys() == SETTINGS - {"cpu", "memory", "kubeletVersion"}

    def test_restart_of_a_kubelet(self, admin: Admin) -> None:
        assert admin.send("POST", "nodes/n1/restart?at=before-cri-call")[0] == 200
        admin.run(1)
        assert admin.send("GET", "nodes/n1")[1]["kubeletIsUp"]
        admin.send("POST", "nodes/n1/restart")
        admin.run(1)
        assert not admin.send("GET", "nodes/n1")[1]["kubeletIsUp"]
        admin.run(10)
        assert admin.send("GET", "nodes/n1")[1]["kubeletIsUp"]

    def test_faults_of_the_api(self, admin: Admin) -> None:
        plan = {"shares": {"409": 0.25, "500": 0.5}, "seed": 7, "users": ["u"], "resources": ["pods/resize"]}
        assert admin.send("PUT", "faults", plan) == (200, plan)
        assert admin.send("GET", "faults") == (200, plan)
        assert admin.sandbox.api.faults.plan.shares == {409: 0.25, 500: 0.5}

    def test_an_api_that_is_down_for_a_minute(self, admin: Admin) -> None:
        assert admin.api_answers()
        assert admin.send("POST", "api/down?seconds=60")[0] == 200
        assert not admin.api_answers()
        admin.run(59)
        assert not admin.api_answers()
        admin.run(2)
        assert admin.api_answers()

    def test_watches_that_expire(self, admin: Admin) -> None:
        assert admin.send("POST", "watches/expire")[0] == 200
        assert admin.sandbox.simulation.store.expiries == 1

    def test_lag_of_the_quota_controller(self, admin: Admin) -> None:
        assert admin.send("PUT", "quota", {"lagSeconds": 300}) == (200, {"lagSeconds": 300})
        assert admin.sandbox.simulation.quotas.lag_seconds == 300

    @pytest.mark.parametrize(
        ("method", "path", "body", "code", "words"),
        [
            ("GET", "nodes/n2", None, 404, "there is no node n2"),
            ("PUT", "nodes/n1/faults", {"runtme": []}, 400, "unknown field"),
            ("PATCH", "nodes/n1/settings", {"swop": True}, 400, "swop is no setting of a node"),
            ("POST", "nodes/n1/restart?at=noon", None, 400, "at=noon is no step: choose from now, before-allocation-checkpoint"),
            ("PUT", "faults", {"shares": {"418": 0.1}}, 400, "cannot answer requests with 418"),
            ("POST", "api/down", None, 400, "is no number of seconds"),
        ],
        ids=lambda value: value if isinstance(value, str) and "/" in value else None,
    )
    def test_what_cannot_be_done(self, admin: Admin, method: str, path: str, body: Json | None, code: int, words: str) -> None:
        answer = admin.send(method, path, body)
        assert answer[0] == code
        assert words in answer[1]


FILE = """
"*":
  statsLagSeconds: 30
  staticCpuManager: true
n2:
  statsLagSeconds: 0
  cpu: "2"
  memory: 4Gi
  kubeletVersion: "1.33"
  raisesPodCgroupOfStopped: true
  runtimeMemoryCheck: crio
"""


class TestFile:
    def test_one_node_goes_before_all(self) -> None:
        nodes = with_settings([NodeSpec("n1"), NodeSpec("n2")], parse_node_settings(FILE, "f"), "f")
        static = NodeSettings(static_cpu_manager=True)
        assert nodes[0] == NodeSpec("n1", kubelet=KubeletSettings(stats_lag_seconds=30, node=static))
        special = KubeletSettings(
            stats_lag_seconds=0, node=static, raises_pod_cgroup_of_stopped=True, runtime_memory_check=MemoryCheck.CRIO
        )
        assert nodes[1] == NodeSpec("n2", 2000, 4 * GIB, kubelet=special, kubelet_version="1.33")

    def test_json_is_read_too_and_what_is_shown_can_be_set(self) -> None:
        shown = json.dumps({"n1": shown_settings(NodeSpec("n1"))})
        assert with_settings([NodeSpec("n1")], parse_node_settings(shown, "f"), "f") == [NodeSpec("n1")]

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("n1: {statsLag: 3}", "f: n1: statsLag is no setting of a node: choose from backoffSeconds, cpu"),
            ("n1: {swap: 3}", "f: n1: swap: Expected `bool`, got `int`"),
            ("n1: {statsLagSeconds: -1}", "f: n1: statsLagSeconds: -1.0 is below 0"),
            ("n1: {memory: lots}", "f: n1: memory: cannot read 'lots' as a quantity"),
            ("n1: {kubeletVersion: '1.20'}", "Kubernetes version '1.20' is not known"),
            ("n1: {runtimeMemoryCheck: docker}", "f: n1: runtimeMemoryCheck: Invalid enum value 'docker'"),
            ("[n1]", "f: expected node names (or '*') with their settings"),
            ("n1: {", "f: expected node names (or '*') with their settings"),
        ],
    )
    def test_what_is_wrong_with_it(self, text: str, words: str) -> None:
        with pytest.raises(UsageError, match=re.escape(words)):
            parse_node_settings(text, "f")

    def test_the_command_refuses_a_node_that_is_not_there(self, tmp_path: Path) -> None:
        settings = tmp_path / "nodes.yaml"
        settings.write_text("node-3: {swap: true}")
        arguments = ["--kubeconfig", str(tmp_path / "k"), "--node-settings", str(settings), "--nodes", "2"]
        result = CliRunner().invoke(sandbox_command, arguments)
        assert isinstance(result.exception, UsageError)
        assert str(result.exception) == f"{settings}: there is no node node-3: the nodes are node-1, node-2"
