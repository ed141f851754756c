"""Connections made by the kubernetes package: kubeconfig files with every kind of credential it knows.

The only module that may import the kubernetes package (import-linter holds it): it knows contexts, exec plugins, token refresh and
certificates; the requests themselves go through ``rest``.
"""

from __future__ import annotations

import math
import os
import ssl
import time
from pathlib import Path

from vpa_ippr.api.errors import UsageError
from vpa_ippr.cluster.rest import Connection, in_cluster_connection

# Short against the life of any token (the shortest are of an hour), long against a request.
_TOKEN_SECONDS = 30.0


def connect(kubeconfig: str | None = None, context: str | None = None) -> Connection:
    """The connection that kubectl would use: the file given, else $KUBECONFIG, else ~/.kube/config, else the pod's ServiceAccount.

    Raises:
        UsageError: a file was named and cannot be used, or nothing was found at all.
    """
    named = kubeconfig or os.environ.get("KUBECONFIG")
    default = Path("~/.kube/config").expanduser()
    if named:
        return _from_kubeconfig(named, context)
    if default.is_file():
        return _from_kubeconfig(str(default), context)
    return in_cluster_connection()


def _from_kubeconfig(path: str, context: str | None) -> Connection:
    import yaml
    from kubernetes.client import Configuration
    from kubernetes.config import ConfigException, load_kube_config

    settings = Configuration()
    first = path.split(os.pathsep)[0]
    if not any(Path(part).expanduser().is_file() for part in path.split(os.pathsep)):
        raise UsageError(f"kubeconfig {first}: no such file")
    try:
        load_kube_config(config_file=path, context=context, client_configuration=settings)  # type: ignore[no-untyped-call]
    except (KeyError, TypeError, AttributeError) as error:
        # The package takes the form for granted: what it stumbles over would tell a person nothing.
        raise UsageError(f"kubeconfig {path} cannot be used: it has not the form of a kubeconfig") from error
    except (ConfigException, yaml.YAMLError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"kubeconfig {path} cannot be used: {reason}") from error
    if not settings.host.startswith(("http://", "https://")):
        raise UsageError(f"kubeconfig {path} cannot be used: server {settings.host!r} is not an http:// or https:// address")
    return Connection(
        base_url=settings.host,
        tls=_tls(settings, path) if settings.host.startswith("https:") else None,
        bearer_token=_Token(settings),
        server_hostname=getattr(settings, "tls_server_name", None),
    )


def _tls(settings: object, path: str) -> ssl.SSLContext:
    ca_file = getattr(settings, "ssl_ca_cert", None)
    cert_file, key_file = getattr(settings, "cert_file", None), getattr(settings, "key_file", None)
    try:
        context = ssl.create_default_context(cafile=ca_file)
        if cert_file:
            context.load_cert_chain(cert_file, key_file)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"kubeconfig {path}: certificate or key cannot be read: {error}") from error
    if not getattr(settings, "verify_ssl", True):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class _Token:
    """The token of a kubeconfig. Asking for it may run a program or read a file, so it is kept for a little while."""

    def __init__(self, settings: object) -> None:
        self._settings = settings
        self._value: str | None = None
        self._keep_until = -math.inf

    def __call__(self) -> str | None:
        if time.monotonic() >= self._keep_until:
            hook = getattr(self._settings, "refresh_api_key_hook", None)
            if hook is not None:
                hook(self._settings)
            keys: dict[str, str] = getattr(self._settings, "api_key", {})
            value = keys.get("authorization") or keys.get("BearerToken") or ""
            self._value = value.removeprefix("Bearer ").strip() or None
            self._keep_until = time.monotonic() + _TOKEN_SECONDS
        return self._value
