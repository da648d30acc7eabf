"""The curriculum service over gRPC with a real PostgreSQL."""

from __future__ import annotations

import uuid
from argparse import Namespace
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, inspect

from dreamgym.core.episodes import Task
from dreamgym.core.errors import DreamGymError, InvalidInputError, NotFoundError, UnavailableError
from dreamgym.curriculum.generator import VariationRequest, Variations
from dreamgym.curriculum.runs import Curriculum
from dreamgym.curriculum.server import CurriculumServicer
from dreamgym.curriculum.settings import CurriculumSettings
from dreamgym.curriculum.store import CurriculumStore
from dreamgym.embedded.migrate import find_alembic_ini, migrate
from dreamgym.embedded.postgres import EmbeddedPostgres
from dreamgym.v1 import curriculum_pb2 as pb
from dreamgym.v1 import environment_pb2 as env_pb
from dreamgym.v1.curriculum_pb2_grpc import CurriculumStub, add_CurriculumServicer_to_server
from dreamgym.wire.errors import error_from_rpc
from dreamgym.wire.settings import ServiceSettings

if TYPE_CHECKING:
    from dreamgym.v1.curriculum_pb2_grpc import CurriculumAsyncStub

pytestmark = pytest.mark.integration


class Varying:
    """Answers numbered variations of the first seed, or fails."""

    def __init__(self) -> None:
        self.requests: list[VariationRequest] = []
        self.error: DreamGymError | None = None

    async def vary(self, request: VariationRequest) -> Variations:
        self.requests.append(request)
        if self.error is not None:
            raise self.error
        parent = request.seeds[0]
        tasks = [
            Task(f"{parent.id}-v{request.seed}-{n}", f"variation {request.seed} {n}", parent_id=parent.id)
            for n in range(request.count)
        ]
        return Variations(tasks, rejected=2)


@pytest.fixture
def generator() -> Varying:
    return Varying()


@pytest.fixture
async def curriculum(
    service_settings: ServiceSettings, grpc_server: Callable[..., Awaitable[grpc.aio.Channel]], generator: Varying
) -> AsyncIterator[CurriculumAsyncStub]:
    store = CurriculumStore(CurriculumSettings(**service_settings.model_dump()))
    servicer = CurriculumServicer(Curriculum(store, generator))
    channel = await grpc_server(service_settings, lambda server: add_CurriculumServicer_to_server(servicer, server))
    yield CurriculumStub(channel)
    await store.close()


@pytest.fixture
async def run_id(curriculum: CurriculumAsyncStub) -> str:
    request = opening(f"run-{uuid.uuid4()}")
    await curriculum.OpenRun(request)
    return request.run_id


def opening(run_id: str, tasks: int = 12, **fields: object) -> pb.OpenRunRequest:
    base = {
        "environment_id": "home",
        "synthetic_share": 0.25,
        "seed": 5,
        "experience_model": "experience-1",
        "retire_at": 0.9,
    }
    pool = [
        env_pb.Task(id=f"t{n}", instruction=f"task {n}", criterion='{"contains":{"over":"state","text":"x"}}')
        for n in range(tasks)
    ]
    return pb.OpenRunRequest(run_id=run_id, tasks=pool, **{**base, **fields})  # type: ignore[arg-type]


async def next_ids(curriculum: CurriculumAsyncStub, run_id: str, iteration: int, count: int = 8) -> list[str]:
    answer = await curriculum.NextTasks(pb.NextTasksRequest(run_id=run_id, iteration=iteration, count=count))
    return [task.id for task in answer.tasks]


def outcomes(
    run_id: str, iteration: int, ids: Sequence[str], rewards: Sequence[float] = (0, 1)
) -> pb.ReportOutcomesRequest:
    groups = [pb.GroupOutcome(task_id=task_id, rewards=rewards, failed_episodes=1) for task_id in ids]
    return pb.ReportOutcomesRequest(run_id=run_id, iteration=iteration, outcomes=groups)


async def test_opening_a_run_twice_changes_nothing(curriculum: CurriculumAsyncStub, run_id: str) -> None:
    again = await curriculum.OpenRun(opening(run_id, tasks=3, seed=99))
    assert (again.already_open, again.tasks) == (True, 12)
    other = await curriculum.OpenRun(opening(f"run-{uuid.uuid4()}", tasks=3))
    assert (other.already_open, other.tasks) == (False, 3)


async def test_an_iteration_always_answers_the_same_tasks(curriculum: CurriculumAsyncStub, run_id: str) -> None:
    first = await next_ids(curriculum, run_id, 0)
    assert len(set(first)) == 8
    await curriculum.ReportOutcomes(outcomes(run_id, 0, first))
    assert await next_ids(curriculum, run_id, 0, count=3) == first
    twin = opening(f"run-{uuid.uuid4()}")
    await curriculum.OpenRun(twin)
    assert await next_ids(curriculum, twin.run_id, 0) == first
    task = (await curriculum.NextTasks(pb.NextTasksRequest(run_id=run_id, iteration=0, count=8))).tasks[0]
    assert task.criterion


async def test_a_repeated_report_counts_once_and_generates_once(
    curriculum: CurriculumAsyncStub, run_id: str, generator: Varying
) -> None:
    ids = await next_ids(curriculum, run_id, 0)
    first = await curriculum.ReportOutcomes(outcomes(run_id, 0, ids))
    again = await curriculum.ReportOutcomes(outcomes(run_id, 0, ids, rewards=(1, 1, 1)))
    assert (first.recorded, first.generated, first.rejected) == (8, 2, 2)
    assert (again.recorded, again.generated, again.rejected) == (0, 2, 2)
    assert len(generator.requests) == 1
    assert len(generator.requests[0].known_instructions) == 12


async def test_generated_tasks_keep_their_ancestry_and_their_share(
    curriculum: CurriculumAsyncStub, run_id: str
) -> None:
    for iteration in range(4):
        ids = await next_ids(curriculum, run_id, iteration)
        assert sum("-v" in name for name in ids) <= 2
        await curriculum.ReportOutcomes(outcomes(run_id, iteration, ids))
    lineage = (await curriculum.Lineage(pb.LineageRequest(run_id=run_id))).tasks
    generated = [item for item in lineage if item.generation > 0]
    assert generated
    assert all(item.task.parent_id for item in generated)
    played = [item for item in lineage if item.attempts]
    assert {item.standing for item in played} == {"learning"}
    assert {item.reward_variance for item in played} == {0.25}
    assert {item.success_rate for item in played} == {0.5}


async def test_a_generator_that_fails_never_fails_the_run(
    curriculum: CurriculumAsyncStub, run_id: str, generator: Varying
) -> None:
    generator.error = UnavailableError("The experience service does not answer.")
    ids = await next_ids(curriculum, run_id, 0)
    report = await curriculum.ReportOutcomes(outcomes(run_id, 0, ids))
    assert (report.recorded, report.generated) == (8, 0)
    generator.error = None
    retried = await curriculum.ReportOutcomes(outcomes(run_id, 0, ids))
    assert (retried.recorded, retried.generated) == (0, 2)


async def test_after_a_rewind_the_run_goes_on_as_if_it_had_never_been_further(
    curriculum: CurriculumAsyncStub, run_id: str
) -> None:
    first = await next_ids(curriculum, run_id, 0)
    await curriculum.ReportOutcomes(outcomes(run_id, 0, first))
    second = await next_ids(curriculum, run_id, 1)
    await curriculum.ReportOutcomes(outcomes(run_id, 1, second))
    third = await next_ids(curriculum, run_id, 2)
    rewound = await curriculum.Rewind(pb.RewindRequest(run_id=run_id, iteration=1))
    assert rewound.outcomes_discarded == 8
    assert await next_ids(curriculum, run_id, 1) == second
    await curriculum.ReportOutcomes(outcomes(run_id, 1, second))
    assert await next_ids(curriculum, run_id, 2) == third


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda stub: stub.NextTasks(pb.NextTasksRequest(run_id="none", iteration=0, count=1)), NotFoundError),
        (lambda stub: stub.OpenRun(pb.OpenRunRequest(run_id="empty")), InvalidInputError),
        (lambda stub: stub.OpenRun(opening("share", synthetic_share=2.0)), InvalidInputError),
        (lambda stub: stub.NextTasks(pb.NextTasksRequest(run_id="none", iteration=-1, count=1)), InvalidInputError),
    ],
)
async def test_faulty_calls_are_typed_errors(
    curriculum: CurriculumAsyncStub,
    call: Callable[[CurriculumAsyncStub], Awaitable[object]],
    error: type[DreamGymError],
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(curriculum)
    assert isinstance(error_from_rpc(caught.value, service="curriculum"), error)


async def test_outcomes_of_foreign_tasks_are_refused(curriculum: CurriculumAsyncStub, run_id: str) -> None:
    for request in (outcomes(run_id, 0, ["foreign"]), outcomes(run_id, 0, ["t1"], rewards=[float("nan")])):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await curriculum.ReportOutcomes(request)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_the_migrations_make_the_tables_of_the_models_and_take_them_away(
    embedded_postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    name = f"migrated_{uuid.uuid4().hex[:8]}"
    embedded_postgres.ensure_database(name)
    url = embedded_postgres.url(name)
    migrate(url, find_alembic_ini(), tmp_path / "alembic.log")
    configuration = Config(str(find_alembic_ini()), cmd_opts=Namespace(x=["schema=curriculum"]))
    configuration.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    command.check(configuration)
    command.downgrade(configuration, "curriculum@base")
    engine = create_engine(url)
    assert inspect(engine).get_table_names(schema="curriculum") == []
    engine.dispose()
