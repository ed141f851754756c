"""The sandbox's time over HTTP, for components in other processes: see ``vpa_ippr.cluster.remote_clock`` for the protocol.

A component registers with its first request and counts as working until it waits; ``register`` beforehand keeps time from passing
without it while it starts.
"""

from __future__ import annotations

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from vpa_ippr.sandbox.timekeeper import TimeKeeper


class _Wait(msgspec.Struct):
    until: float


class ClockApp:
    """Routes for one keeper; names that are registered may wait."""

    def __init__(self, keeper: TimeKeeper) -> None:
        self._keeper = keeper
        self._registered: set[str] = set()

    def register(self, name: str) -> None:
        """Let time wait for the component of that name from now on."""
        if name not in self._registered:
            self._keeper.register(name)
            self._registered.add(name)

    def drop(self, name: str) -> None:
        """Let time go on without the component, because it has ended."""
        if name in self._registered:
            self._registered.discard(name)
            self._keeper.drop(name)

    def app(self) -> Starlette:
        """The routes, to be mounted at the root."""
        return Starlette(
            routes=[
                Route("/clock", self._now, methods=["GET"]),
                Route("/clock/{name}", self._join, methods=["POST"]),
                Route("/clock/{name}/wait", self._wait, methods=["POST"]),
            ]
        )

    async def _now(self, _request: Request) -> Response:
        return self._answer(self._keeper.now())

    async def _join(self, request: Request) -> Response:
        self.register(request.path_params["name"])
        return self._answer(self._keeper.now())

    async def _wait(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._registered:
            return Response("register first: POST /clock/<name>\n", status_code=409)
        try:
            moment = msgspec.json.decode(await request.body(), type=_Wait).until
        except msgspec.DecodeError as error:
            return Response(f'expected {{"until": seconds}}: {error}\n', status_code=400)
        return self._answer(await run_in_threadpool(self._keeper.handle_wait, name, moment))

    @staticmethod
    def _answer(now: float) -> Response:
        return Response(msgspec.json.encode({"now": now}), media_type="application/json")
