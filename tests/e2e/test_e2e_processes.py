"""The real commands as processes of their own: two updaters of which one leads, an API server in trouble, metrics and probes."""

from __future__ import annotations

import itertools
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import urllib3

from support.cli import dead_address
from support.e2e_cluster import NAMESPACE, Town, amounts, container, deployment, recommendation, town, vpa_of
from support.programs import sandbox
from support.updater_process import Proxy, Seen, UpdaterProcess, proxy_to
from vpa_ippr.api.errors import ClusterError
from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.cluster import paths
from vpa_ippr.cluster.connection import connect
from vpa_ippr.cluster.rest import Rest
from vpa_ippr.sandbox.faults import FaultPlan

pytestmark = pytest.mark.integration

Json = dict[str, Any]
WORKLOADS, REPLICAS = 4, 5
LEASE_SECONDS, RETRY_SECONDS = 15.0, 3.0
ONE_IN_TEN = {"409": 0.05, "429": 0.01, "500": 0.04}


class Fleet:
    """Workloads of twenty pods in a sandbox of another process, by its API alone."""

    def __init__(self, ready: Json) -> None:
        self.rest = Rest(connect(ready["kubeconfig"]))
        self._admin, self._http = ready["admin_url"], urllib3.PoolManager()
        self.rest.create(paths.NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}, Json)
        for name in self.names:
            manifest = deployment(name, REPLICAS, container(amounts("100m", "64Mi"), amounts("", "128Mi")))
            self.rest.create(paths.collection("apps/v1", NAMESPACE, "deployments"), manifest, Json)
            vpa = vpa_of(name, "InPlace")
            self.rest.create(paths.collection(vpa["apiVersion"], NAMESPACE, "verticalpodautoscalers"), vpa, Json)

    @property
    def names(self) -> list[str]:
        return [f"web{index}" for index in range(WORKLOADS)]

    def recommend(self, cpu: str, memory: str) -> None:
        for name in self.names:
            status = recommendation(amounts(cpu, memory))
            self.rest.patch(paths.vpa(ObjectKey(NAMESPACE, name), "status"), {"status": status}, Json)

    def pods(self) -> list[Json]:
        found: list[Json] = self.rest.get(paths.collection("v1", NAMESPACE, "pods"), Json)["items"]
        return found

    def all_ready(self) -> bool:
        found = self.pods()
        ready = [pod for pod in found if any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))]
        return len(ready) == WORKLOADS * REPLICAS

    def all_have(self, cpu: str, memory: str) -> bool:
        """In force, not only asked for."""
        return all(pod["status"]["containerStatuses"][0]["resources"]["requests"] == amounts(cpu, memory) for pod in self.pods())

    def generations(self) -> set[int]:
        """A resize that changes something raises the generation by one."""
        return {pod["metadata"]["generation"] for pod in self.pods()}

    def admin(self, method: str, path: str, body: Json | None = None) -> None:
        answer = self._http.request(method, f"{self._admin}/_sandbox/{path}", body=None if body is None else msgspec.json.encode(body))
        assert answer.status == 200, answer.data


class Contender:
    """An updater that takes part in the election, behind its own proxy."""

    def __init__(self, folder: Path, name: str, kubeconfig: Path, proxy: Proxy) -> None:
        self.proxy, self.address = proxy, dead_address()
        election = ("--leader-elect", "--leader-elect-namespace", "kube-system", "--listen", self.address)
        self.process = UpdaterProcess(folder, name, kubeconfig, proxy, "--interval", "1s", *election)
        self._http = urllib3.PoolManager()

    def get(self, path: str) -> tuple[int, str]:
        answer = self._http.request("GET", f"http://{self.address}{path}", retries=False)
        return answer.status, answer.data.decode()

    def metric(self, name: str) -> float:
        lines = self.get("/metrics")[1].splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))


def wait_for(done: Callable[[], bool], seconds: float) -> float:
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        if done():
            return time.monotonic() - began
        time.sleep(0.2)
    raise AssertionError(f"not so after {seconds} s")


@contextmanager
def contenders(folder: Path, ready: Json) -> Iterator[tuple[Contender, Contender]]:
    with ExitStack() as stack:
        made = []
        for name in ("first", "second"):
            proxy = stack.enter_context(proxy_to(ready["server"]))
            contender = Contender(folder, name, Path(ready["kubeconfig"]), proxy)
            contender.process.start()
            stack.callback(contender.process.stop)
            made.append(contender)
            if name == "first":
                wait_for(lambda: any(seen.resource == "leases" and seen.method == "POST" for seen in proxy.requests), 20)  # noqa: B023
        yield made[0], made[1]


def test_two_updaters_of_which_one_leads_and_an_api_server_in_trouble(tmp_path: Path) -> None:
    with sandbox(tmp_path / "kubeconfig", "--nodes", "3", "--no-tls") as ready:
        fleet = Fleet(ready)
        wait_for(fleet.all_ready, 30)
        with contenders(tmp_path, ready) as (first, second):
            # One leads, and it alone writes.
            fleet.recommend("200m", "96Mi")
            wait_for(lambda: fleet.all_have("200m", "96Mi"), 20)
            assert fleet.generations() == {2}
            assert second.proxy.writes == []
            wait_for(lambda: _answers(second), 20)
            for contender, leads in ((first, 1.0), (second, 0.0)):
                assert contender.get("/healthz")[0] == 200
                assert contender.get("/readyz")[0] == 200
                assert contender.metric("vpa_ippr_leading") == leads
            assert first.metric("vpa_ippr_resize_attempts_total") == WORKLOADS * REPLICAS
            assert first.metric("vpa_ippr_updater_last_cycle_timestamp_seconds") > time.time() - 30

            # It is killed in the middle of its work: the other takes over within the time of the lease, and nothing is done twice.
            _kill_at(first, resizes=7)
            fleet.recommend("300m", "128Mi")
            took = wait_for(lambda: bool(second.proxy.writes), LEASE_SECONDS + RETRY_SECONDS + 10.0)
            assert took > 5.0
            wait_for(lambda: fleet.all_have("300m", "128Mi"), 20)
            assert fleet.generations() == {3}
            asked = Counter(seen.name for one in (first, second) for seen in one.proxy.writes if seen.resource == "pods/resize")
            assert set(asked.values()) == {2}
            assert first.process.exit_code == -signal.SIGKILL
            assert second.metric("vpa_ippr_leading") == 1.0
            first.process.start()
            wait_for(lambda: _answers(first), 20)

            # Every tenth request fails, and the history of all watches is gone.
            fleet.admin("PUT", "faults", {"shares": ONE_IN_TEN, "seed": 4})
            fleet.admin("POST", "watches/expire")
            _insist(lambda: fleet.recommend("400m", "160Mi"))
            wait_for(lambda: _insist(lambda: fleet.all_have("400m", "160Mi")), 40)
            fleet.admin("PUT", "faults", {})
            assert fleet.generations() == {4}

            # The API server is gone for longer than anybody may lead without having renewed the lease.
            fleet.recommend("500m", "192Mi")
            fleet.admin("POST", "api/down?seconds=12")
            wait_for(lambda: _insist(lambda: fleet.all_have("500m", "192Mi")), 70)
            assert fleet.generations() == {5}
            assert (first.process.lives, second.process.lives) == (2, 1)
            assert first.process.exit_code is None
            assert second.process.exit_code is None
            assert first.process.stop() == 0
            assert second.process.stop() == 0
        for name in ("first", "second"):
            assert "Traceback" not in (tmp_path / f"{name}.log").read_text()


def _kill_at(contender: Contender, *, resizes: int) -> None:
    """From now on it dies of its so manieth resize, which is carried out."""
    count = itertools.count(1)

    def kill(seen: Seen) -> None:
        if seen.resource == "pods/resize" and next(count) == resizes:
            contender.process.kill()
            raise ConnectionAbortedError

    contender.proxy.after = kill


def _answers(contender: Contender) -> bool:
    try:
        return contender.get("/healthz")[0] == 200
    except urllib3.exceptions.HTTPError:
        return False


def _insist(act: Callable[[], Any]) -> Any:
    """What it gives, once the server lets it through."""
    for _ in range(100):
        try:
            return act()
        except ClusterError:
            time.sleep(0.2)
    raise AssertionError("refused a hundred times")


def _down_for_a_minute(found: Town, proxy: Proxy) -> None:
    """From the first resize on: it is carried out, and its answer is cut off."""
    left = [1]
    proxy.after = lambda seen: found.sandbox.take_api_down(60) if seen.resource == "pods/resize" and left and left.pop() else None


def _one_in_ten_fails(found: Town, _proxy: Proxy) -> None:
    found.sandbox.api.faults.set(FaultPlan({int(code): share for code, share in ONE_IN_TEN.items()}, seed=9))


def _answers_are_lost(_found: Town, proxy: Proxy) -> None:
    """Every fifth write is carried out, and nobody hears of it."""
    count = itertools.count(1)

    def lose(_seen: Seen) -> None:
        if next(count) % 5 == 0:
            raise ConnectionAbortedError

    proxy.after = lose


@pytest.mark.parametrize("trouble", [_down_for_a_minute, _one_in_ten_fails, _answers_are_lost], ids=lambda act: act.__name__.strip("_"))
def test_a_fleet_is_resized_through_trouble_of_the_api_server(trouble: Callable[[Town, Proxy], None], tmp_path: Path) -> None:
    with town(tmp_path, nodes=3) as found, proxy_to(found.sandbox.api.url) as proxy:
        names = [f"web{index}" for index in range(WORKLOADS)]
        for name in names:
            found.workload(deployment(name, REPLICAS, container(amounts("500m", "64Mi"), amounts("1", "128Mi"))))
        arguments = ("--clock-url", found.sandbox.clock_url, "--soak", "2m")
        ended = partial(found.sandbox.clocks.drop, "updater")
        process = UpdaterProcess(tmp_path, "updater", found.kubeconfig, proxy, *arguments, on_end=ended)
        found.sandbox.clocks.register("updater")
        process.start()
        try:
            found.run(90)
            for name in names:
                found.recommend(name, "200m", "96Mi")
            trouble(found, proxy)
            for _ in range(60):
                found.run(60)
                if set(found.requests(where="status")) == {("200m", "96Mi")}:
                    break
            found.run(180)
        finally:
            code = process.stop()
        assert code == 0
        assert found.requests(where="status") == [("200m", "96Mi")] * (WORKLOADS * REPLICAS)
        # The growth of memory may go before the decrease of CPU; whatever went has changed something, so nothing went twice.
        steps = {pod["metadata"]["name"]: pod["metadata"]["generation"] - 1 for pod in found.pods()}
        assert max(steps.values()) <= 2
        assert found.writes() == steps
        assert "Traceback" not in (tmp_path / "updater.log").read_text()
