"""``vpa-ippr sandbox``: an embedded cluster for trials and tests, until it is stopped."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import click

from vpa_ippr.api.errors import EXIT_DONE


class _Address(click.ParamType[tuple[str, int]]):
    """``HOST:PORT``; an IPv6 host is put in brackets."""

    name = "host:port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        host, separator, port = value.rpartition(":")
        if not separator or not host or not port.isdigit() or int(port) > 65_535:
            self.fail(f"{value!r} is not HOST:PORT such as 127.0.0.1:6443", param, ctx)
        return host.strip("[]"), int(port)


@click.command()
@click.option(
    "--listen", type=_Address(), default=("127.0.0.1", 0), show_default="a free port of 127.0.0.1", help="Address of the API server."
)
@click.option("--kubeconfig", type=click.Path(path_type=Path, dir_okay=False), required=True, help="Where to write the kubeconfig.")
@click.option("--kubernetes-version", default="1.36", show_default=True, help="Which Kubernetes to behave like, 1.32 to 1.37.")
@click.option("--nodes", type=click.IntRange(0, 1000), default=2, show_default=True, help="Nodes of 8 CPUs and 32Gi.")
@click.option(
    "--node-settings",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="YAML or JSON: node name, or '*' for all, to settings of its kubelet, such as statsLagSeconds: 30.",
)
@click.option("--quota-lag", type=click.FloatRange(0), default=1.0, show_default=True, help="Seconds until quotas are recounted.")
@click.option("--empty", is_flag=True, help="No nodes and no CustomResourceDefinitions: a client creates everything itself.")
@click.option("--no-kubelet", is_flag=True, help="No kubelets, controllers and scheduler: objects stay as clients make them.")
@click.option("--speed", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True, help="Simulated seconds a second.")
@click.option("--no-tls", is_flag=True, help="Serve plain HTTP.")
def sandbox(
    listen: tuple[str, int],
    kubeconfig: Path,
    kubernetes_version: str,
    nodes: int,
    node_settings: Path | None,
    quota_lag: float,
    empty: bool,
    no_kubelet: bool,
    speed: float,
    no_tls: bool,
) -> int:
    """Run a cluster in this process until stopped; prints one JSON line when it is ready."""
    import msgspec

    from vpa_ippr.sandbox.node import NodeSpec
    from vpa_ippr.sandbox.nodesettings import parse_node_settings, with_settings
    from vpa_ippr.sandbox.sandbox import Sandbox

    specs = [] if empty else [NodeSpec(f"node-{index + 1}") for index in range(nodes)]
    if node_settings is not None:
        specs = with_settings(specs, parse_node_settings(node_settings.read_bytes(), str(node_settings)), str(node_settings))
    stopped = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    cluster = Sandbox(
        version=kubernetes_version,
        nodes=specs,
        crds=not empty,
        kubelet=not no_kubelet,
        rate=speed,
        listen=listen,
        tls=not no_tls,
    )
    cluster.simulation.quotas.lag_seconds = quota_lag
    cluster.start(kubeconfig)
    try:
        ready = {
            "ready": True,
            "server": cluster.api.url,
            "kubeconfig": str(kubeconfig),
            "kubernetes_version": kubernetes_version,
            "prometheus_url": cluster.prometheus_url,
            "clock_url": cluster.clock_url,
            "admin_url": cluster.admin_url,
            "pid": os.getpid(),
        }
        click.echo(msgspec.json.encode(ready).decode())
        stopped.wait()
    finally:
        cluster.stop()
    return EXIT_DONE
