"""The whole sandbox: a simulated cluster, its API server, and beside it the metrics endpoint and the clock."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from starlette.applications import Starlette
from starlette.routing import Mount

from vpa_ippr.api.crd import definitions
from vpa_ippr.sandbox.adminapp import AdminApp
from vpa_ippr.sandbox.background import BackgroundServer
from vpa_ippr.sandbox.clockapp import ClockApp
from vpa_ippr.sandbox.node import NodeSpec
from vpa_ippr.sandbox.promserver import prometheus_app
from vpa_ippr.sandbox.server import ApiServer
from vpa_ippr.sandbox.simulation import Simulation

_CRDS = "customresourcedefinitions.apiextensions.k8s.io"


class Sandbox:
    """A cluster that any Kubernetes client can talk to.

    Args:
        version: the Kubernetes minor version that it behaves like.
        start_time: the first moment (seconds since the epoch); None for now.
        nodes: the nodes that are there from the start.
        crds: install the CustomResourceDefinitions of this project.
        kubelet: False leaves out kubelets, controllers and scheduler.
        rate: simulated seconds for each second of the wall clock; None for as fast as all participants allow.
        listen: host and port of the API server; port 0 takes a free one. Metrics and clock get a free port on the same host.
        tls: serve the API over HTTPS.
    """

    def __init__(
        self,
        *,
        version: str = "1.36",
        start_time: float | None = None,
        nodes: Sequence[NodeSpec] = (),
        crds: bool = True,
        kubelet: bool = True,
        rate: float | None = 1.0,
        listen: tuple[str, int] = ("127.0.0.1", 0),
        tls: bool = True,
    ) -> None:
        self.simulation = Simulation(version=version, start_time=start_time, nodes=nodes, kubelet=kubelet, rate=rate)
        self._api_lock = threading.Lock()
        self._api_is_up = False
        self._stopped = False
        self.clocks = ClockApp(self.simulation.keeper)
        self.api = ApiServer(self.simulation.store, listen=listen, tls=tls)
        metrics = prometheus_app(self.simulation.tsdb, self.simulation.clock)
        beside = Starlette(routes=[*self.clocks.app().routes, *AdminApp(self).routes(), Mount("/", metrics)])
        self._beside = BackgroundServer(beside, listen[0], 0)
        if crds:
            for definition in definitions().values():
                self.simulation.store.create(_CRDS, definition)

    @property
    def prometheus_url(self) -> str:
        """Base address of the metrics endpoint."""
        return self._beside.url

    @property
    def clock_url(self) -> str:
        """Base address of the clock."""
        return self._beside.url

    @property
    def admin_url(self) -> str:
        """Base address of ``/_sandbox``, see ``adminapp``."""
        return self._beside.url

    def take_api_down(self, seconds: float) -> None:
        """Refuse all connections to the API server, and cut those there are, for so many seconds of the cluster's time.

        Nodes and controllers go on meanwhile: they use the store directly. While it is down already, this changes nothing.
        """
        with self._api_lock:
            if not self._api_is_up:
                return
            self._api_is_up = False
            self.api.stop()
        self.simulation.call_later(seconds, self._bring_api_up)

    def _bring_api_up(self) -> None:
        with self._api_lock:
            if not self._stopped:
                self.api.start()
                self._api_is_up = True

    def start(self, kubeconfig: Path | None = None) -> None:
        """Serve, write the kubeconfig, and let time begin."""
        self.serve(kubeconfig)
        self.simulation.start()

    def serve(self, kubeconfig: Path | None = None) -> None:
        """Serve and write the kubeconfig; time stands still until ``simulation.start``."""
        self.api.start()
        self._api_is_up = True
        self._beside.start()
        if kubeconfig is not None:
            self.api.write_kubeconfig(kubeconfig)

    def stop(self) -> None:
        """End time and stop serving."""
        with self._api_lock:
            self._stopped = True
        self.simulation.stop()
        self._beside.stop()
        self.api.stop()
