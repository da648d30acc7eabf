"""Runs a job's stages in order. Finished stages are kept: an attempt goes on where the last one stopped."""

from __future__ import annotations

import logging
from typing import Any

from dreamgym.core.errors import DreamGymError
from dreamgym.core.jobs import (
    Evaluate,
    MeasureFidelity,
    Reembed,
    SimToReal,
    TrainExperienceModel,
    TrainPolicy,
    parse_stage,
)
from dreamgym.inference.model_store import ModelStore
from dreamgym.trainer.session import JobSession
from dreamgym.trainer.settings import TrainerSettings
from dreamgym.trainer.stages import (
    evaluate,
    experience_model,
    expert_iteration,
    fidelity,
    reembed,
    reinforce,
    warm_start,
)
from dreamgym.trainer.stages.context import StageContext
from dreamgym.wire.convert import load_json
from dreamgym.wire.logs import bound

log = logging.getLogger(__name__)


async def run_stages(session: JobSession, settings: TrainerSettings) -> dict[str, Any]:
    """Run every stage that has not succeeded yet; answers the job's result: each stage's result by index."""
    store = ModelStore(settings.object_store)
    environment = await session.environment()
    results: dict[int, dict[str, Any]] = {}
    for record in session.stages:
        if record.state == "succeeded":
            results[record.index] = load_json(record.result) if record.result else {}
            continue
        session.check()
        context = StageContext(session, settings, store, record.index, environment, results)
        await session.start_stage(record.index)
        try:
            with bound(stage=str(record.index)):
                result = await run_stage(context, parse_stage(load_json(record.spec)))
        except DreamGymError as error:
            failure = {"error": {"code": error.code, "message": error.message, "remedy": error.remedy}}
            await session.finish_stage(record.index, "failed", failure)
            raise
        finally:
            await context.close()
        results[record.index] = result
        await session.finish_stage(record.index, "succeeded", result)
    return {"stages": {str(index): result for index, result in results.items()}}


async def run_stage(context: StageContext, spec: Any) -> dict[str, Any]:
    match spec:
        case TrainExperienceModel():
            return await experience_model.run(context, spec)
        case MeasureFidelity():
            return await fidelity.run(context, spec)
        case TrainPolicy(algorithm="sft"):
            return await warm_start.run(context, spec)
        case TrainPolicy(algorithm="expert_iteration"):
            return await expert_iteration.run(context, spec)
        case TrainPolicy() | SimToReal():
            return await reinforce.run(context, spec)
        case Evaluate():
            return await evaluate.run(context, spec)
        case Reembed():
            return await reembed.run(context)
    raise AssertionError(f"no stage runs {type(spec).__name__}")
