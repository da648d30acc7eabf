"""Serves the gateway: REST and the `Jobs` service in one process and one event loop.

python -m dreamgym.gateway.server
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import uvicorn
import uvloop

from dreamgym.gateway.app import create_app
from dreamgym.gateway.jobs_service import JobsService
from dreamgym.gateway.settings import GatewaySettings
from dreamgym.gateway.state import GatewayState, open_state
from dreamgym.v1 import jobs_pb2
from dreamgym.v1.jobs_pb2_grpc import add_JobsServicer_to_server
from dreamgym.wire.logs import configure_logs
from dreamgym.wire.server import serve_until_stopped, start_server

SERVICE = jobs_pb2.DESCRIPTOR.services_by_name["Jobs"].full_name


class _Uvicorn(uvicorn.Server):
    """uvicorn without its own signal handling: one handler stops both servers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass
class RunningGateway:
    """Both servers of a started gateway and where they listen."""

    state: GatewayState
    jobs_server: Any
    jobs_port: int
    http_server: _Uvicorn
    http_port: int
    _http_task: asyncio.Task[None]

    async def stop_http(self) -> None:
        """End event streams, finish open requests, stop listening."""
        self.state.stopping.set()
        self.http_server.should_exit = True
        await self._http_task


@contextlib.asynccontextmanager
async def running_gateway(settings: GatewaySettings) -> AsyncIterator[RunningGateway]:
    """A gateway that serves inside the block. Ports 0 mean any free one."""
    async with open_state(settings) as state:
        config = uvicorn.Config(
            create_app(settings, state),
            host=settings.gateway_host,
            port=settings.gateway_port,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=max(1, int(settings.drain_s)),
            server_header=False,
        )
        http_server = _Uvicorn(config)
        http_task = asyncio.create_task(http_server.serve())
        while not http_server.started:
            if http_task.done():
                raise SystemExit(f"The gateway cannot listen on {settings.gateway_host}:{settings.gateway_port}.")
            await asyncio.sleep(0.01)
        jobs_server, jobs_port = await start_server(
            settings.jobs_address,
            settings,
            [lambda server: add_JobsServicer_to_server(JobsService(state), server)],
            [SERVICE],
        )
        http_port = http_server.servers[0].sockets[0].getsockname()[1]
        gateway = RunningGateway(state, jobs_server, jobs_port, http_server, http_port, http_task)
        try:
            yield gateway
        finally:
            await gateway.stop_http()
            await jobs_server.stop(settings.drain_s)


async def serve(settings: GatewaySettings) -> None:
    """Serve until SIGTERM or SIGINT."""
    async with running_gateway(settings) as gateway:
        await serve_until_stopped(gateway.jobs_server, settings, gateway.stop_http)


def main() -> None:
    settings = GatewaySettings()
    configure_logs("gateway", settings.log_level)
    uvloop.run(serve(settings))


if __name__ == "__main__":
    main()
