"""Stage `reembed`: the replay service embeds what it holds of the environment anew. A stage that is stopped goes on there."""

from __future__ import annotations

from typing import Any

import grpc

from dreamgym.trainer.stages.context import StageContext, Stopwatch
from dreamgym.v1 import replay_pb2, replay_pb2_grpc
from dreamgym.wire.errors import error_from_rpc

DEADLINE_S = 24 * 3600.0


async def run(context: StageContext) -> dict[str, Any]:
    watch = Stopwatch()
    stub = replay_pb2_grpc.ReplayStub(context.channel("replay"))
    stream = stub.Reembed(replay_pb2.ReembedRequest(environment_id=context.environment_id), timeout=DEADLINE_S)
    progress = replay_pb2.ReembedProgress()
    try:
        async for progress in stream:
            context.check()
            context.progress(progress.done / max(1, progress.total))
    except grpc.RpcError as error:
        raise error_from_rpc(error, service="replay") from error
    finally:
        stream.cancel()
    return {"encoder": progress.encoder, "transitions": progress.done, "seconds": watch.seconds}
