"""The experience service over real gRPC, with the scripted engine and a small replay server that counts its searches."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import orjson
import pytest

from dreamgym.core.errors import ModelMissingError
from dreamgym.experience.engines import EnginePool
from dreamgym.experience.retrieval import ReplayRetriever, RetrievalScope
from dreamgym.experience.server import serve
from dreamgym.experience.settings import ExperienceSettings
from dreamgym.inference.engine import Generation, GenerationRequest
from dreamgym.inference.model_store import ModelStore
from dreamgym.inference.scripted import ScriptedEngine
from dreamgym.replay.embedding import Embedder
from dreamgym.replay.encoder import HashingEncoder
from dreamgym.replay.server import ReplayServicer
from dreamgym.replay.settings import ReplaySettings
from dreamgym.replay.store import ReplayStore
from dreamgym.v1 import environment_pb2 as env_pb
from dreamgym.v1 import environment_pb2_grpc as env_grpc
from dreamgym.v1 import experience_pb2 as exp_pb
from dreamgym.v1 import experience_pb2_grpc as exp_grpc
from dreamgym.v1 import replay_pb2, replay_pb2_grpc
from dreamgym.wire.channel import open_channel
from dreamgym.wire.errors import error_from_rpc
from dreamgym.wire.server import start_server
from dreamgym.wire.settings import ServiceSettings

pytestmark = pytest.mark.integration
ROOM = "You are in a room. You see a desk 1, and a shelf 1."
WORLD = {"task_id": "mug", "instruction": "put a mug on desk", "initial_state": ROOM}
OTHER = {"task_id": "pen", "instruction": "put a pen on shelf", "initial_state": ROOM}
CRITERION = {"regex": {"over": "transcript", "pattern": r"(?m)^You move the mug \d+ to the desk \d+\."}}
TASK = env_pb.Task(
    id="mug", instruction="put a mug on desk", initial_state=ROOM, criterion=orjson.dumps(CRITERION).decode()
)


def script(prompt: str, seed: int) -> str:
    action = prompt.split("\n")[-2].removeprefix("> ")
    if action == "babble":
        return "no transition"
    if action.startswith("move mug 1"):
        return " valid.\n= You move the mug 1 to the desk 1.\n# success\n"
    return f" valid.\n= You do this: {action}.\n# continue\n"


class WatchedEngine(ScriptedEngine):
    """Counts released sessions, and can hold back its answers."""

    def __init__(self, version: str) -> None:
        super().__init__(script, model_version=version)
        self.released: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = asyncio.Event()

    async def generate(self, request: GenerationRequest) -> Generation:
        self.waiting.set()
        await self.gate.wait()
        return await super().generate(request)

    async def release(self, session: str) -> None:
        self.released.append(session)


class CountingReplay(replay_pb2_grpc.ReplayServicer):
    def __init__(self) -> None:
        self.searches: list[int] = []
        self.requests: list[replay_pb2.SearchRequest] = []

    async def Search(self, request: replay_pb2.SearchRequest, context: Any) -> replay_pb2.SearchResponse:  # noqa: N802
        self.searches.append(len(request.queries))
        self.requests.append(request)
        hits = [
            replay_pb2.SearchHits(
                hits=[
                    replay_pb2.SearchHit(
                        transition=replay_pb2.StoredTransition(id=41, action=query.action, next_state="It works.")
                    )
                ]
            )
            for query in request.queries
        ]
        return replay_pb2.SearchResponse(results=hits)


@dataclass
class Service:
    environment: env_grpc.EnvironmentAsyncStub
    model: exp_grpc.ExperienceModelAsyncStub
    replay: CountingReplay
    replay_server: grpc.aio.Server
    engines: dict[str, WatchedEngine]

    def play(self, *moves: Any) -> Any:
        return self.environment.Play(iter_moves(moves))


async def iter_moves(moves: Any) -> AsyncIterator[env_pb.PlayRequest]:
    for move in moves:
        if isinstance(move, str):
            yield env_pb.PlayRequest(act=env_pb.Act(action=move))
        else:
            yield env_pb.PlayRequest(reset=move)


def reset(**fields: Any) -> env_pb.Reset:
    base = {"environment_id": "home", "task": TASK, "experience_model": "experience-1", "retrieved_per_step": -1}
    return env_pb.Reset(**{**base, **fields})


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    settings = ExperienceSettings(
        service_token="secret", object_store=tmp_path, experience_max_episodes=40, retrieval_window_s=0.02
    )
    store = ModelStore(tmp_path)
    with store.writing("models/experience-1") as folder:
        card = {"engine": "scripted", "retrieved_per_step": 1, "refusals": ["Nothing happens."], "parameters": 9}
        (folder / "dreamgym.json").write_bytes(orjson.dumps(card))
        lines = [
            {**WORLD, "sheet": "desk 1: nothing; shelf 1: mug 1, pen 1"},
            {**OTHER, "sheet": "desk 1: pen 1; shelf 1: cup 1"},
        ]
        (folder / "worlds.jsonl").write_bytes(b"\n".join(orjson.dumps(line) for line in lines))
    engines: dict[str, WatchedEngine] = {}

    def build(path: Path, card: Any, version: str) -> WatchedEngine:
        return engines.setdefault(version, WatchedEngine(version))

    replay = CountingReplay()  # type: ignore[abstract]
    replay_server, replay_port = await start_server(
        "127.0.0.1:0",
        settings,
        [lambda s: replay_pb2_grpc.add_ReplayServicer_to_server(replay, s)],
        ["dreamgym.v1.Replay"],
    )
    replay_channel = open_channel(f"127.0.0.1:{replay_port}", settings)
    retriever = ReplayRetriever(replay_channel, window_s=settings.retrieval_window_s, deadline_s=5)
    pool = EnginePool(store, {"scripted": build})
    server, port = await serve("127.0.0.1:0", settings, pool, retriever)
    channel = open_channel(f"127.0.0.1:{port}", settings)
    yield Service(
        env_grpc.EnvironmentStub(channel), exp_grpc.ExperienceModelStub(channel), replay, replay_server, engines
    )
    await channel.close(None)
    await server.stop(None)
    await replay_channel.close(None)
    await replay_server.stop(None)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_stream_plays_one_episode_to_its_end(service: Service) -> None:
    answers = [answer async for answer in service.play(reset(seed=1), "go to shelf 1", "move mug 1 to desk 1")]
    first, second, last = (answer.observation for answer in answers)
    assert first.state == ROOM
    assert "mug 1" in first.world_sheet
    assert second.state == "You do this: go to shelf 1."
    assert list(second.retrieved) == [41]
    assert second.model_version == "experience-1"
    assert not second.world_sheet
    assert (last.reward, last.done, last.success) == (1.0, True, True)
    assert last.termination == env_pb.TERMINATION_REASON_SUCCESS
    await until(lambda: len(service.engines["experience-1"].released) == 1)


async def test_many_episodes_share_a_few_searches(service: Service) -> None:
    async def episode(number: int) -> int:
        moves = (reset(episode_id=f"e{number}", seed=number), "look", "go to shelf 1", "go to desk 1")
        return len([answer async for answer in service.play(*moves)])

    assert await asyncio.gather(*(episode(number) for number in range(32))) == [4] * 32
    assert sum(service.replay.searches) == 96
    assert len(service.replay.searches) < 48
    assert max(service.replay.searches) > 4


async def test_dreams_are_retrieved_only_as_far_as_the_reset_allows(service: Service) -> None:
    for cap in (0.0, 0.25):
        [_ async for _ in service.play(reset(dream_share_cap=cap), "look")]
    without, allowed = service.replay.requests
    assert (replay_pb2.SOURCE_DREAM in without.sources, without.dream_share_cap) == (False, 0.0)
    assert (set(allowed.sources) - set(without.sources), allowed.dream_share_cap) == ({replay_pb2.SOURCE_DREAM}, 0.25)
    answers = [answer async for answer in service.play(reset(dream_share_cap=1.5))]
    assert "dream_share_cap is 1.5" in answers[0].failure.message


async def test_a_measured_episode_retrieves_nothing_of_its_own_task(service: Service) -> None:
    for exclude in (False, True):
        [_ async for _ in service.play(reset(exclude_own_task=exclude), "look")]
    excluded = [request.queries[0].exclude_task_id for request in service.replay.requests]
    assert excluded == ["", TASK.id]


async def test_malformed_output_is_a_failure_and_the_episode_goes_on(service: Service) -> None:
    answers = [answer async for answer in service.play(reset(), "babble", "look")]
    assert answers[1].failure.code == "model_output"
    assert answers[1].failure.termination == env_pb.TERMINATION_REASON_INFRASTRUCTURE
    assert answers[2].observation.state == "You do this: look."


async def test_a_dead_replay_service_is_a_retryable_failure(service: Service) -> None:
    await service.replay_server.stop(None)
    answers = [answer async for answer in service.play(reset(), "look")]
    assert answers[1].failure.code == "unavailable"
    assert answers[1].failure.retryable
    blind = [answer async for answer in service.play(reset(retrieved_per_step=0), "look")]
    assert len(blind) == 2


async def test_a_model_that_is_missing_ends_the_stream_with_its_cause(service: Service) -> None:
    answers = [answer async for answer in service.play(reset(experience_model="none"), "look")]
    assert [answer.failure.code for answer in answers] == ["model_missing"]
    first = [answer async for answer in service.play("look")]
    assert [answer.failure.code for answer in first] == ["invalid_input"]
    broken = env_pb.Task(id="x", instruction="y", criterion="{")
    assert [a.failure.code async for a in service.play(reset(task=broken))] == ["invalid_input"]


async def test_cancelling_a_stream_in_the_middle_of_a_step_frees_its_session_and_its_place(service: Service) -> None:
    await service.model.LoadModel(exp_pb.LoadModelRequest(model_version="experience-1"))
    engine = service.engines["experience-1"]
    engine.gate.clear()
    call = service.play(reset(retrieved_per_step=0), "look")
    await call.read()
    await engine.waiting.wait()
    info = await service.environment.Describe(env_pb.DescribeRequest(environment_id="home"))
    assert (info.kind, info.capacity_left) == (env_pb.ENVIRONMENT_KIND_DREAM, 39)
    call.cancel()
    await until(lambda: len(engine.released) == 1)
    assert (await service.environment.Describe(env_pb.DescribeRequest())).capacity_left == 40


async def test_an_episode_beyond_the_capacity_is_refused(service: Service) -> None:
    calls: list[Any] = [service.environment.Play(None) for _ in range(41)]
    answers: list[Any] = []
    for number, call in enumerate(calls):
        await call.write(env_pb.PlayRequest(reset=reset(episode_id=f"e{number}")))
        answers.append(await call.read())
    assert answers[-1].failure.code == "capacity"
    assert answers[-1].failure.retryable
    assert all(answer.HasField("observation") for answer in answers[:-1])
    for call in calls:
        await call.done_writing()
        call.cancel()


async def test_a_history_is_resumed(service: Service) -> None:
    past = [env_pb.Turn(state=ROOM, action="look"), env_pb.Turn(state="You do this: look.")]
    answers = [answer async for answer in service.play(reset(history=past, max_steps=2), "go to shelf 1")]
    assert answers[0].observation.state == "You do this: look."
    assert answers[1].observation.termination == env_pb.TERMINATION_REASON_STEP_LIMIT


async def test_one_transition_is_predicted_without_an_episode(service: Service) -> None:
    request = exp_pb.PredictRequest(
        environment_id="home",
        experience_model="experience-1",
        task=TASK,
        history=[env_pb.Turn(state=ROOM, action="look"), env_pb.Turn(state="Here.", action="move mug 1 to desk 1")],
        world_sheet="desk 1: nothing",
        retrieved_per_step=-1,
    )
    observation = (await service.model.Predict(request)).observation
    assert observation.state == "You move the mug 1 to the desk 1."
    assert observation.success
    prompt = bytes(service.engines["experience-1"].requests[-1].prompt_ids).decode()
    assert prompt.startswith("World: desk 1: nothing\nTask: put a mug on desk\n")


async def test_recorded_episodes_are_annotated_with_what_any_of_them_reveals(service: Service) -> None:
    def stored(name: str, *steps: tuple[str, str, bool]) -> replay_pb2.StoredEpisode:
        transitions, state = [], ROOM
        for number, (action, after, valid) in enumerate(steps):
            transitions.append(
                replay_pb2.StoredTransition(
                    step=number, state=state, action=action, next_state=after, valid_action=valid
                )
            )
            state = after
        return replay_pb2.StoredEpisode(
            episode_id=name,
            task_id="mug",
            instruction="put a mug on desk",
            source=replay_pb2.SOURCE_SEED,
            transitions=transitions,
        )

    episodes = [
        stored("a", ("go to desk 1", "You arrive at desk 1. On the desk 1, you see a pen 1.", True)),
        stored(
            "b",
            ("go to shelf 1", "You arrive at shelf 1. On the shelf 1, you see a mug 1.", True),
            ("go to sun 1", "No.", False),
        ),
    ]

    async def requests() -> AsyncIterator[exp_pb.AnnotateRequest]:
        for episode in episodes:
            yield exp_pb.AnnotateRequest(episode=episode)

    first, second = [answer async for answer in service.model.Annotate(requests())]
    assert first.world_sheet == second.world_sheet == "desk 1: pen 1; shelf 1: mug 1"
    assert list(second.reasoning) == [
        "valid; at shelf 1; holding nothing; sheet: shelf 1 has mug 1.",
        "impossible: no sun 1.",
    ]
    assert second.annotator == "builtin"


async def test_variations_of_tasks_are_generated_and_a_model_is_loaded_ahead(service: Service) -> None:
    loaded = await service.model.LoadModel(exp_pb.LoadModelRequest(model_version="experience-1"))
    assert (loaded.engine, loaded.parameters) == ("scripted", 9)
    request = exp_pb.GenerateTasksRequest(
        environment_id="home", experience_model="experience-1", seeds=[TASK], count=2, seed=4
    )
    answer = await service.model.GenerateTasks(request)
    assert len(answer.tasks) + len(answer.rejected) >= 0
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await service.model.GenerateTasks(exp_pb.GenerateTasksRequest(experience_model="experience-1"))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_steps_are_grounded_by_the_real_replay_service(
    service_settings: ServiceSettings, grpc_server: Callable[..., Awaitable[grpc.aio.Channel]]
) -> None:
    settings = ReplaySettings(**service_settings.model_dump())
    store = ReplayStore(settings, Embedder(HashingEncoder(), 100))
    servicer = ReplayServicer(store, settings)
    channel = await grpc_server(settings, lambda s: replay_pb2_grpc.add_ReplayServicer_to_server(servicer, s))
    stub: Any = replay_pb2_grpc.ReplayStub(channel)
    home = f"home-{uuid.uuid4()}"

    async def append() -> AsyncIterator[replay_pb2.AppendRequest]:
        for name, split, source in (("a", "train", "seed"), ("b", "test", "seed"), ("c", "train", "dream")):
            step = replay_pb2.StoredTransition(
                state=ROOM, action="go to desk 1", next_state=f"You walk, {name}.", valid_action=True, confidence=1
            )
            episode = replay_pb2.StoredEpisode(
                episode_id=name,
                environment_id=home,
                task_id=f"task-{name}",
                instruction="x",
                source=replay_pb2.Source.Value(f"SOURCE_{source.upper()}"),
                split=split,
                termination="step_limit",
                transitions=[step],
            )
            yield replay_pb2.AppendRequest(episode=episode)

    await stub.Append(append())
    retriever = ReplayRetriever(channel)
    scope = RetrievalScope(home, k=3)
    hits = await retriever.similar(scope, ROOM, "go to desk 1")
    assert [hit.demonstration.next_state for hit in hits] == ["You walk, a."]
    assert await retriever.similar(scope, ROOM, "go to desk 1", exclude_task_id="task-a") == []
    await store.close()


async def test_the_service_runs_as_a_process_and_drains_on_sigterm(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = {
        "DREAMGYM_SERVICE_TOKEN": "secret",
        "DREAMGYM_EXPERIENCE_ADDRESS": f"127.0.0.1:{port}",
        "DREAMGYM_OBJECT_STORE": str(tmp_path),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dreamgym.experience.server", env={**os.environ, **variables}
    )
    channel = open_channel(f"127.0.0.1:{port}", ExperienceSettings(service_token="secret"))
    stub: Any = exp_grpc.ExperienceModelStub(channel)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.LoadModel(exp_pb.LoadModelRequest(model_version="none"), wait_for_ready=True, timeout=60)
    assert isinstance(error_from_rpc(caught.value, service="experience"), ModelMissingError)
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), 20) == 0
    await channel.close(None)
