"""Stage `train_experience_model`: seeds -> annotations -> leak-free demonstrations -> SFT -> a registered model."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc

from dreamgym.core import world_sheet
from dreamgym.core.consistency import refusals_of
from dreamgym.core.dream_prompt import Demonstration
from dreamgym.core.episodes import Episode, Source
from dreamgym.core.errors import InvalidInputError
from dreamgym.core.jobs import TrainExperienceModel
from dreamgym.inference.local_model import load_tokenizer
from dreamgym.trainer.checkpoints import StageCheckpoints
from dreamgym.trainer.experience_data import (
    AnnotatedEpisode,
    experience_sequence,
    renumbered_annotation,
    split_heldout,
    worlds_of,
)
from dreamgym.trainer.model_files import hash_of
from dreamgym.trainer.rows import TREE_ROW_TOKENS
from dreamgym.trainer.stages.context import StageContext
from dreamgym.trainer.supervised import train_supervised
from dreamgym.v1 import experience_pb2, experience_pb2_grpc, replay_pb2, replay_pb2_grpc
from dreamgym.wire.convert import episode_to_proto, load_json
from dreamgym.wire.errors import error_from_rpc

SEARCH_BATCH = 64


async def run(context: StageContext, spec: TrainExperienceModel) -> dict[str, Any]:
    parent = await context.resolve(spec.base, "experience")
    seeds = [e for e in await context.episodes(Source.SEED, Source.REAL, splits=("train",)) if e.transitions]
    if spec.max_episodes is not None:
        seeds = seeds[: spec.max_episodes]
    training, heldout = split_heldout(seeds, spec.heldout_share)
    if not training:
        raise InvalidInputError(
            f"The environment {context.environment.name!r} has no seed episodes of split `train`.",
            remedy="Upload trajectories first: POST /v1/environments/{env}/trajectories.",
        )
    context.session.event("stage.note", stage=context.stage, text=f"annotating {len(training)} seed episodes")
    annotated, annotator, consistency = await annotate(context, training, spec.annotator)
    if spec.retrieved_per_step:
        annotated = await with_demonstrations(context, annotated, spec.retrieved_per_step)
    if not spec.world_sheet:
        annotated = [AnnotatedEpisode(a.episode, a.reasoning, "", a.demonstrations) for a in annotated]

    tokenizer = load_tokenizer(parent.path)

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    rng = random.Random(f"{context.session.seed}:demonstrations")
    count = max(1, min(spec.renumbered_copies, round(spec.epochs)))
    sequences = [
        experience_sequence(copy, encode, rng, reasoning=spec.reasoning)
        for item in annotated
        for copy in [item, *(renumbered_annotation(item, rng) for _ in range(1, count))]
    ]
    trained = await train_supervised(
        context,
        parent,
        sequences,
        spec.optimizer,
        epochs=spec.epochs / count,
        pad_id=0,
        time_limit_s=spec.time_limit_s,
        name="experience_loss",
        row_tokens=TREE_ROW_TOKENS,
    )
    card = {
        "layout": "plain",
        "retrieved_per_step": spec.retrieved_per_step,
        "reasoning": spec.reasoning,
        "world_sheet": spec.world_sheet,
        "refusals": refusals_of(training),
        "consistency": consistency if spec.consistency else {},
        "heldout_tasks": sorted({episode.task.id for episode in heldout}),
    }
    manifest = {
        "config": spec.model_dump(mode="json"),
        "data": hash_of([episode.id for episode in training]),
        "episodes": len(training),
        "annotator": annotator,
    }
    named = await context.publish(
        "experience", trained.state.model, parent, card=card, manifest=manifest, worlds=list(worlds_of(annotated))
    )
    StageCheckpoints(context.store, context.session.job_id, context.stage).clear()
    return {
        **named,
        **trained.summary(),
        "episodes": len(training),
        "transitions": sum(len(episode.transitions) for episode in training),
        "heldout_episodes": len(heldout),
        "annotator": annotator,
        "real_transitions": 0,
    }


async def annotate(
    context: StageContext, episodes: Sequence[Episode], annotator: str
) -> tuple[list[AnnotatedEpisode], str, dict[str, Any]]:
    """Reasoning for each step, and one world sheet a task and first state: what all its episodes reveal together.

    Also the annotator's name, and the consistency rules that these episodes support (for the model's card).
    """
    stub = experience_pb2_grpc.ExperienceModelStub(context.channel("experience"))

    async def requests() -> AsyncIterator[experience_pb2.AnnotateRequest]:
        for episode in episodes:
            stored = episode_to_proto(episode, environment_id=context.environment_id)
            yield experience_pb2.AnnotateRequest(episode=stored, annotator=annotator)

    answers: dict[str, experience_pb2.Annotation] = {}
    try:
        async for annotation in stub.Annotate(requests(), timeout=3600):
            context.check()
            answers[annotation.episode_id] = annotation
    except grpc.RpcError as error:
        raise error_from_rpc(error, service="experience") from error

    sheets: dict[tuple[str, str], list[world_sheet.Sheet]] = {}
    for episode in episodes:
        key = (episode.task.id, episode.transitions[0].state)
        sheets.setdefault(key, []).append(world_sheet.parse(answers[episode.id].world_sheet))
    merged = {
        key: world_sheet.render(world_sheet.merge(parts, world_sheet.entities(key[1]))) for key, parts in sheets.items()
    }
    result = []
    for episode in episodes:
        annotation = answers[episode.id]
        if len(annotation.reasoning) != len(episode.transitions):
            raise InvalidInputError(
                f"The annotator wrote {len(annotation.reasoning)} traces for the {len(episode.transitions)} steps of "
                f"{episode.id}.",
                remedy="Retry, or use the built-in annotator.",
            )
        result.append(
            AnnotatedEpisode(
                episode,
                tuple(annotation.reasoning),
                merged[(episode.task.id, episode.transitions[0].state)],
                tuple(() for _ in episode.transitions),
            )
        )
    any_answer = next(iter(answers.values()), experience_pb2.Annotation(annotator=annotator))
    consistency: dict[str, Any] = load_json(any_answer.consistency) if any_answer.consistency else {}
    return result, any_answer.annotator, consistency


async def with_demonstrations(
    context: StageContext, annotated: Sequence[AnnotatedEpisode], k: int
) -> list[AnnotatedEpisode]:
    """Retrieve each step's most similar stored transitions, never from an episode of the same task (leakage)."""
    stub = replay_pb2_grpc.ReplayStub(context.channel("replay"))
    queries = [
        replay_pb2.SearchQuery(state=t.state, action=t.action, exclude_task_id=item.episode.task.id)
        for item in annotated
        for t in item.episode.transitions
    ]
    hits: list[tuple[Demonstration, ...]] = []
    for start in range(0, len(queries), SEARCH_BATCH):
        context.check()
        request = replay_pb2.SearchRequest(
            environment_id=context.environment_id,
            queries=queries[start : start + SEARCH_BATCH],
            top_k=k,
            sources=[replay_pb2.SOURCE_SEED, replay_pb2.SOURCE_REAL],
            splits=["train"],
        )
        try:
            answer = await stub.Search(request, timeout=context.settings.call_deadline_s)
        except grpc.RpcError as error:
            raise error_from_rpc(error, service="replay") from error
        for result in answer.results:
            # The most similar one comes last, next to the question.
            hits.append(
                tuple(Demonstration(h.transition.action, h.transition.next_state) for h in reversed(result.hits))
            )
    place = 0
    filled = []
    for item in annotated:
        steps = len(item.episode.transitions)
        filled.append(
            AnnotatedEpisode(item.episode, item.reasoning, item.world_sheet, tuple(hits[place : place + steps]))
        )
        place += steps
    return filled
