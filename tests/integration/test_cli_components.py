"""The components as processes of their own, as they run in a cluster, against ``vpa-ippr sandbox`` as a process."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.cli import FakePrometheus
from support.http import scripted_server
from support.sandbox import vpa_spec
from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.vpa import Vpa
from vpa_ippr.cluster import paths
from vpa_ippr.cluster.connection import connect
from vpa_ippr.cluster.rest import ApiError, Rest

pytestmark = pytest.mark.integration

PROGRAM = (sys.executable, "-m", "vpa_ippr.cli")
SECONDS = 60
HEAVY = ("numpy", "kubernetes", "pyarrow", "requests", "rich", "jinja2", "pandas", "yaml", "starlette", "uvicorn", "cryptography")


def clean_environment(folder: Path) -> dict[str, str]:
    ours = ("KUBECONFIG", "PROMETHEUS_URL", "KUBERNETES_SERVICE_HOST")
    kept = {name: value for name, value in os.environ.items() if name not in ours and not name.startswith("VPA_IPPR_")}
    return kept | {"HOME": str(folder)}


def run(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [*PROGRAM, *map(str, arguments)]
    return subprocess.run(command, env=clean_environment(folder), capture_output=True, text=True, timeout=SECONDS, check=False)


@contextmanager
def started(folder: Path, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*PROGRAM, *map(str, arguments)], env=clean_environment(folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def end(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> tuple[int, str, str, float]:
    """Exit code, the rest of both streams, and how long it took."""
    begun = time.monotonic()
    process.send_signal(number)
    out, err = process.communicate(timeout=SECONDS)
    return process.returncode, out, err, time.monotonic() - begun


@contextmanager
def sandbox(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    kubeconfig = folder / "cluster" / "config"
    with started(folder, "sandbox", "--kubeconfig", kubeconfig, "--listen", "127.0.0.1:0", *options) as process:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())


def create_workload(rest: Rest) -> None:
    """StatefulSet ``web`` in ``shop`` with its VPA, and a VPA of nothing."""
    labels = {"app": "web"}
    container = {"name": "app", "image": "app:1", "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"replicas": 1, "serviceName": "web", "selector": {"matchLabels": labels}, "template": template}
    rest.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}, dict)
    workload = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "web"}, "spec": spec}
    rest.create(paths.collection("apps/v1", "shop", "statefulsets"), workload, dict)
    for name, target in (("web", "web"), ("astray", "nobody")):
        vpa = {"apiVersion": "autoscaling.k8s.io/v1", "kind": "VerticalPodAutoscaler", "metadata": {"name": name}}
        vpa["spec"] = vpa_spec("StatefulSet", target, updatePolicy={"updateMode": "InPlace"})
        rest.create(paths.collection("autoscaling.k8s.io/v1", "shop", "verticalpodautoscalers"), vpa, dict)


def wait_for_running(rest: Rest) -> None:
    """Follow the pod until its container runs."""
    deadline = time.monotonic() + SECONDS
    for event in rest.watch("/api/v1/namespaces/shop/pods", Pod, "0", timeout_seconds=SECONDS):
        assert time.monotonic() < deadline
        status = event.object.container_status("app") if event.object else None
        if status is not None and status.state.running is not None and status.resources is not None:
            return
    raise AssertionError("the pod did not start")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Rest]]:
    folder = tmp_path_factory.mktemp("components")
    with sandbox(folder) as (_, ready):
        rest = Rest(connect(ready["kubeconfig"]))
        create_workload(rest)
        wait_for_running(rest)
        yield Path(ready["kubeconfig"]), rest


def test_the_sandbox_says_when_it_is_ready_and_ends_on_sigterm(tmp_path: Path) -> None:
    with sandbox(tmp_path, "--kubernetes-version", "1.35", "--empty", "--no-kubelet") as (process, ready):
        assert ready["ready"] is True
        assert (ready["pid"], ready["kubernetes_version"]) == (process.pid, "1.35")
        assert ready["server"].startswith("https://127.0.0.1:")
        kubeconfig = Path(ready["kubeconfig"])
        assert stat.S_IMODE(kubeconfig.stat().st_mode) == 0o600
        rest = Rest(connect(str(kubeconfig)))
        assert rest.list(paths.NODES, dict).items == []
        with pytest.raises(ApiError) as caught:
            rest.list(paths.VPAS, dict)
        assert caught.value.status == 404
        code, out, err, seconds = end(process)
    assert (code, out, err) == (0, "", "")
    assert seconds < 10


@pytest.mark.parametrize(
    ("options", "line"),
    [(("--kubernetes-version", "1.2"), "1.2"), (("--listen", "203.0.113.7:0"), "cannot listen on 203.0.113.7:0")],
    ids=["version", "address"],
)
def test_a_sandbox_that_cannot_start_says_why(tmp_path: Path, options: tuple[str, ...], line: str) -> None:
    done = run(tmp_path, "sandbox", "--kubeconfig", tmp_path / "config", *options)
    assert done.returncode in (1, 2)
    (said,) = done.stderr.splitlines()
    assert said.startswith("vpa-ippr: ")
    assert line in said


def test_one_cycle_of_recommender_and_updater(tmp_path: Path, cluster: tuple[Path, Rest]) -> None:
    kubeconfig, rest = cluster
    with scripted_server(FakePrometheus()) as prometheus:
        flags = ("--profile", "vpa-classic", "--kubeconfig", kubeconfig, "--prometheus-url", prometheus.url)
        once = run(tmp_path, "recommender", "--once", *flags)
    assert (once.returncode, once.stdout) == (3, "")
    (told,) = [line for line in once.stderr.splitlines() if "shop/astray" in line]
    assert "TargetNotFound" in told
    recommended = rest.get(paths.vpa(ObjectKey("shop", "web")), Vpa).recommendation_for("app")
    assert recommended is not None
    assert recommended.target["cpu"] == "587m"

    resized = run(tmp_path, "updater", "--once", "--min-pod-age", "1s", "--kubeconfig", kubeconfig)
    assert (resized.returncode, resized.stdout) == (0, ""), resized.stderr
    assert rest.get(paths.pod(ObjectKey("shop", "web-0")), Pod).desired("app").requests.cpu_millicores == 587


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_updater_runs_cycle_after_cycle_until_it_is_told_to_stop(tmp_path: Path, cluster: tuple[Path, Rest], number: int) -> None:
    kubeconfig, _ = cluster
    with started(tmp_path, "updater", "--interval", "1s", "--kubeconfig", kubeconfig) as process:
        assert process.stderr is not None
        cycles = [next(line for line in process.stderr if "updater cycle done" in line) for _ in range(2)]
        code, out, err, seconds = end(process, number)
    assert [" pods=1" in line for line in cycles] == [True, True]
    assert (code, out) == (0, "")
    assert all("updater cycle done" in line for line in err.splitlines())
    assert seconds < 10


def test_the_recommender_keeps_a_report_and_leaves_its_checkpoints_behind(tmp_path: Path, cluster: tuple[Path, Rest]) -> None:
    kubeconfig, rest = cluster
    report = tmp_path / "report.json"
    with scripted_server(FakePrometheus()) as prometheus:
        flags = ("--kubeconfig", kubeconfig, "--prometheus-url", prometheus.url, "--interval", "1s", "--report-file", report)
        with started(tmp_path, "recommender", *flags) as process:
            assert process.stderr is not None
            assert next(line for line in process.stderr if "report written" in line)
            code, out, err, seconds = end(process)
    assert (code, out, "Traceback" in err) == (0, "", False)
    assert seconds < 10
    assert json.loads(report.read_text())["items"][0]["workload"] == {"kind": "StatefulSet", "name": "web"}
    (checkpoint,) = rest.list(paths.CHECKPOINTS, dict).items
    assert checkpoint["metadata"]["name"] == "web-app"


def test_a_component_goes_on_when_a_cycle_fails(tmp_path: Path) -> None:
    with (
        sandbox(tmp_path, "--empty", "--no-kubelet") as (_, ready),
        started(tmp_path, "updater", "--interval", "1s", "--kubeconfig", ready["kubeconfig"]) as process,
    ):
        assert process.stderr is not None
        failed = [next(line for line in process.stderr if "job failed job=cycle" in line) for _ in range(2)]
        code, _, err, _ = end(process)
    assert all("reason=" in line for line in failed)
    assert (code, "Traceback" in err) == (0, False)


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["recommend", "--help"], ["recommender", "--help"], ["actuator", "--help"]], ids=" ".join
)
def test_help_loads_nothing_heavy(tmp_path: Path, arguments: list[str]) -> None:
    program = (
        "import sys\n"
        f"sys.argv = ['vpa-ippr', *{arguments!r}]\n"
        "from vpa_ippr.cli.main import _exit_code\n"
        "code = _exit_code()\n"
        f"loaded = sorted({{name.partition('.')[0] for name in sys.modules}} & set({HEAVY!r}))\n"
        "print(loaded, file=sys.stderr)\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=clean_environment(tmp_path), capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert (done.returncode, done.stderr) == (0, "[]\n")
    assert done.stdout
