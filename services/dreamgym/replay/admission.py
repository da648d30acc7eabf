"""Which episodes are stored: seed and real ones always, dreams only where the environment takes them and they hold up.

A dream is what a model wrote: stored, it would ground what the model writes next. So an environment takes none unless
it says so, and then only episodes that came to an end of their own and of which the model was sure at every step (a step
that contradicts what the episode has established counts as unsure).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from dreamgym.core.episodes import Source, TerminationReason
from dreamgym.replay.embedding import HalfVectors
from dreamgym.replay.records import EpisodeRecord, Refusal, RejectionCode
from dreamgym.replay.tables import RejectionRow


@dataclass(frozen=True, slots=True)
class Admission:
    """What an environment takes of dreams; `dream_transitions_max` 0 means no limit."""

    enrich: bool = False
    minimum_confidence: float = 0.0
    dream_transitions_max: int = 0


@dataclass(frozen=True, slots=True)
class Offer:
    """An episode that a caller wants stored, and the policy of its environment."""

    episode: EpisodeRecord
    admission: Admission = Admission()


def refused(offer: Offer) -> Refusal | None:
    """Why a new episode is not taken, as far as the episode alone can say; None if it is."""
    episode, admission = offer.episode, offer.admission
    if episode.source is not Source.DREAM:
        return None
    if not admission.enrich:
        return _refusal(episode, RejectionCode.REAL_ONLY, "The environment takes no dream episodes.")
    if not episode.termination or not TerminationReason(episode.termination).is_outcome:
        ended = episode.termination or "without a reason"
        return _refusal(episode, RejectionCode.UNFINISHED, f"It ended {ended}: that is no outcome.")
    unsure = min(episode.transitions, key=lambda transition: transition.confidence, default=None)
    if unsure is not None and unsure.confidence < admission.minimum_confidence:
        return _refusal(
            episode,
            RejectionCode.LOW_CONFIDENCE,
            f"Step {unsure.step} has confidence {unsure.confidence:.3g}, below {admission.minimum_confidence:g}.",
        )
    return None


def within_limits(
    offers: Sequence[Offer], vectors: HalfVectors, dream_transitions: int
) -> tuple[list[EpisodeRecord], HalfVectors, list[Refusal]]:
    """The episodes for which there is room, with their rows of `vectors`, and the refusals of the others.

    `vectors` has a row for each transition of `offers`, in order; `dream_transitions` is what the environment holds.
    """
    kept: list[EpisodeRecord] = []
    full: list[Refusal] = []
    rows: list[int] = []
    end = 0
    for offer in offers:
        episode, limit = offer.episode, offer.admission.dream_transitions_max
        start, end = end, end + len(episode.transitions)
        if episode.source is Source.DREAM:
            if limit and dream_transitions + len(episode.transitions) > limit:
                reason = f"The environment holds {dream_transitions} dream transitions of at most {limit}."
                full.append(_refusal(episode, RejectionCode.DREAM_FULL, reason))
                continue
            dream_transitions += len(episode.transitions)
        kept.append(episode)
        rows += range(start, end)
    return kept, vectors if not full else vectors[np.array(rows, dtype=int)], full


async def count_refusals(connection: AsyncConnection, environment_id: str, refusals: Iterable[Refusal]) -> None:
    """Add to the environment's counts by code."""
    counts: dict[str, tuple[int, int]] = {}
    for refusal in refusals:
        episodes, transitions = counts.get(refusal.code.value, (0, 0))
        counts[refusal.code.value] = (episodes + 1, transitions + refusal.transitions)
    for code, (episodes, transitions) in sorted(counts.items()):
        row = insert(RejectionRow).values(
            environment_id=environment_id, code=code, episodes=episodes, transitions=transitions
        )
        await connection.execute(
            row.on_conflict_do_update(
                index_elements=["environment_id", "code"],
                set_={
                    "episodes": RejectionRow.episodes + row.excluded.episodes,
                    "transitions": RejectionRow.transitions + row.excluded.transitions,
                },
            )
        )


def _refusal(episode: EpisodeRecord, code: RejectionCode, reason: str) -> Refusal:
    return Refusal(episode.episode_id, code, f"Episode {episode.episode_id!r}: {reason}", len(episode.transitions))
