"""What a test does to the sandbox from outside the Kubernetes API: faults of nodes and of the API server, over plain HTTP.

    GET /_sandbox/nodes/NAME                   settings, faults still to come, whether the kubelet runs
    PUT /_sandbox/nodes/NAME/faults            {"runtime": [{"container": "app", "message": "...", "count": 2, "seconds": 0}],
                                                "usageGaps": [{"container": "app", "count": 1}]}
    PATCH /_sandbox/nodes/NAME/settings        settings as in the file of ``--node-settings``, but for the node's size and version
    POST /_sandbox/nodes/NAME/restart?at=STEP  kill the kubelet now, or when a resize comes to STEP
    GET, PUT /_sandbox/faults                  {"shares": {"409": 0.05, "429": 0.05}, "seed": 1, "users": [...], "resources": [...]}
    POST /_sandbox/api/down?seconds=N          refuse all connections for N seconds of the sandbox's time
    POST /_sandbox/watches/expire              end every watch with 410 and forget the history
    PUT /_sandbox/quota                        {"lagSeconds": 30}

Answers are JSON; 400 and 404 say in one line of text what is wrong.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from vpa_ippr.api.errors import UsageError
from vpa_ippr.sandbox.faults import FaultPlan
from vpa_ippr.sandbox.restarts import RestartStep
from vpa_ippr.sandbox.runtimefaults import ANY_CONTAINER, RuntimeFault, UsageGap

if TYPE_CHECKING:
    from vpa_ippr.sandbox.sandbox import Sandbox

Json = dict[str, Any]
Endpoint = Callable[[Request], Awaitable[Response]]


class _Runtime(msgspec.Struct, forbid_unknown_fields=True):
    message: str = RuntimeFault().message
    container: str = ANY_CONTAINER
    count: int | None = 1
    seconds: float = 0.0


class _Gap(msgspec.Struct, forbid_unknown_fields=True):
    container: str = ANY_CONTAINER
    count: int | None = 1


class _NodeFaults(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    runtime: tuple[_Runtime, ...] = ()
    usage_gaps: tuple[_Gap, ...] = ()


class _Plan(msgspec.Struct, forbid_unknown_fields=True):
    shares: dict[int, float] = msgspec.field(default_factory=dict)
    seed: int = 0
    users: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()


class _Quota(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    lag_seconds: float


class AdminApp:
    """Routes for one sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def routes(self) -> list[Route]:
        """The routes, to be mounted at the root."""
        node = "/_sandbox/nodes/{name}"
        return [
            Route(node, _answering(self._node), methods=["GET"]),
            Route(f"{node}/faults", _answering(self._set_node_faults), methods=["PUT"]),
            Route(f"{node}/settings", _answering(self._set_node_settings), methods=["PATCH"]),
            Route(f"{node}/restart", _answering(self._restart_kubelet), methods=["POST"]),
            Route("/_sandbox/faults", _answering(self._api_faults), methods=["GET"]),
            Route("/_sandbox/faults", _answering(self._set_api_faults), methods=["PUT"]),
            Route("/_sandbox/api/down", _answering(self._take_api_down), methods=["POST"]),
            Route("/_sandbox/watches/expire", _answering(self._expire_watches), methods=["POST"]),
            Route("/_sandbox/quota", _answering(self._set_quota), methods=["PUT"]),
        ]

    async def _node(self, request: Request) -> Json:
        return await run_in_threadpool(self._sandbox.simulation.node_state, request.path_params["name"])

    async def _set_node_faults(self, request: Request) -> Json:
        faults, name = msgspec.json.decode(await request.body(), type=_NodeFaults), request.path_params["name"]
        runtime = [RuntimeFault(**msgspec.structs.asdict(fault)) for fault in faults.runtime]
        gaps = [UsageGap(**msgspec.structs.asdict(gap)) for gap in faults.usage_gaps]
        await run_in_threadpool(self._sandbox.simulation.set_node_faults, name, runtime, gaps)
        return await self._node(request)

    async def _set_node_settings(self, request: Request) -> Json:
        settings, name = msgspec.json.decode(await request.body(), type=Json), request.path_params["name"]
        await run_in_threadpool(self._sandbox.simulation.set_node_settings, name, settings)
        return await self._node(request)

    async def _restart_kubelet(self, request: Request) -> Json:
        step = request.query_params.get("at", RestartStep.NOW.value)
        try:
            wanted = RestartStep(step)
        except ValueError:
            raise UsageError(f"at={step} is no step: choose from {', '.join(known.value for known in RestartStep)}") from None
        await run_in_threadpool(self._sandbox.simulation.restart_kubelet, request.path_params["name"], wanted)
        return await self._node(request)

    async def _api_faults(self, _request: Request) -> Json:
        plan = self._sandbox.api.faults.plan
        shares = {str(code): share for code, share in plan.shares.items()}
        return {"shares": shares, "seed": plan.seed, "users": list(plan.users), "resources": list(plan.resources)}

    async def _set_api_faults(self, request: Request) -> Json:
        plan = msgspec.json.decode(await request.body(), type=_Plan, strict=False)
        self._sandbox.api.faults.set(FaultPlan(**msgspec.structs.asdict(plan)))
        return await self._api_faults(request)

    async def _take_api_down(self, request: Request) -> Json:
        text = request.query_params.get("seconds", "")
        if not text.replace(".", "", 1).isdigit():
            raise UsageError(f"seconds={text} is no number of seconds")
        await run_in_threadpool(self._sandbox.take_api_down, float(text))
        return {"upAgainAt": self._sandbox.simulation.clock.now() + float(text)}

    async def _expire_watches(self, _request: Request) -> Json:
        await run_in_threadpool(self._sandbox.simulation.store.expire_watches)
        return {"revision": self._sandbox.simulation.store.revision}

    async def _set_quota(self, request: Request) -> Json:
        lag = msgspec.json.decode(await request.body(), type=_Quota).lag_seconds
        self._sandbox.simulation.quotas.lag_seconds = lag
        return {"lagSeconds": lag}


def _answering(handle: Callable[[Request], Awaitable[Json]]) -> Endpoint:
    """The endpoint that answers with what ``handle`` returns, and with 400 or 404 when the request cannot be carried out."""

    async def endpoint(request: Request) -> Response:
        try:
            return Response(msgspec.json.encode(await handle(request)), media_type="application/json")
        except (UsageError, msgspec.MsgspecError) as error:
            missing = isinstance(error, UsageError) and error.reason == "NoSuchNode"
            return Response(f"{error}\n", status_code=404 if missing else 400)

    return endpoint
