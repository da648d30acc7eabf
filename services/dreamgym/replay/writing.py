"""Writes what the store answers as messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dreamgym.replay.records import EpisodeRecord, Found, Hit, Statistics, TransitionRecord
from dreamgym.v1 import replay_pb2 as pb
from dreamgym.wire.convert import dump_json, source_to_proto


def transition_message(record: TransitionRecord) -> pb.StoredTransition:
    return pb.StoredTransition(
        id=record.id,
        step=record.step,
        state=record.state,
        action=record.action,
        reasoning=record.reasoning,
        next_state=record.next_state,
        reward=record.reward,
        done=record.done,
        success=record.success,
        confidence=record.confidence,
        valid_action=record.valid_action,
    )


def episode_message(record: EpisodeRecord) -> pb.StoredEpisode:
    return pb.StoredEpisode(
        episode_id=record.episode_id,
        environment_id=record.environment_id,
        task_id=record.task_id,
        instruction=record.instruction,
        source=source_to_proto(record.source),
        split=record.split,
        termination=record.termination,
        success=record.success,
        job_id=record.job_id,
        policy_version=record.policy_version,
        model_version=record.model_version,
        transitions=[transition_message(transition) for transition in record.transitions],
        metadata=dump_json(record.metadata) if record.metadata else "",
    )


def search_response(results: Iterable[Sequence[Hit]]) -> pb.SearchResponse:
    return pb.SearchResponse(
        results=[
            pb.SearchHits(
                hits=[
                    pb.SearchHit(
                        transition=transition_message(hit.transition),
                        similarity=hit.similarity,
                        source=source_to_proto(hit.source),
                        episode_id=hit.episode_id,
                        instruction=hit.instruction,
                    )
                    for hit in hits
                ]
            )
            for hits in results
        ]
    )


def found_messages(found: Iterable[Found]) -> list[pb.FoundTransition]:
    return [
        pb.FoundTransition(
            transition=transition_message(one.transition),
            source=source_to_proto(one.source),
            episode_id=one.episode_id,
            instruction=one.instruction,
        )
        for one in found
    ]


def statistics_response(statistics: Statistics) -> pb.StatisticsResponse:
    return pb.StatisticsResponse(
        counts=[
            pb.SourceCount(
                source=source_to_proto(count.source),
                split=count.split,
                episodes=count.episodes,
                transitions=count.transitions,
                successes=count.successes,
            )
            for count in statistics.counts
        ],
        cursor=statistics.cursor,
        encoder=statistics.encoder,
        rejections=[
            pb.RejectionCount(code=count.code, episodes=count.episodes, transitions=count.transitions)
            for count in statistics.rejections
        ],
    )
