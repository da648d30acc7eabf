"""Recorded episodes as training sequences for the experience model (METHOD section 3).

One sequence an episode: the main chain, and a branch for each step with its demonstrations, action, reasoning and outcome.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from dreamgym.core import dream_prompt
from dreamgym.core.dream_prompt import Demonstration, Outcome
from dreamgym.core.episodes import Episode
from dreamgym.trainer.branch_packing import PackedSequence, pack_branches
from dreamgym.trainer.relabelling import renumbering, texts_of, with_texts

Encode = Callable[[str], list[int]]


@dataclass(frozen=True)
class AnnotatedEpisode:
    """An episode with what the annotator wrote, and the demonstrations retrieved for each step."""

    episode: Episode
    reasoning: tuple[str, ...]
    world_sheet: str
    demonstrations: tuple[tuple[Demonstration, ...], ...]


def outcome_of(episode: Episode, step: int, reasoning: str) -> Outcome:
    """What the model should write for a recorded step."""
    transition = episode.transitions[step]
    flag = "success" if transition.success else "failure" if transition.done else "continue"
    return Outcome(reasoning=reasoning, next_state=transition.next_state, flag=flag)


def experience_sequence(
    annotated: AnnotatedEpisode,
    encode: Encode,
    rng: random.Random,
    *,
    reasoning: bool = True,
    keep_demonstrations: float = 0.75,
) -> PackedSequence:
    """Pack an episode. Demonstrations are dropped for some steps, so that the model does not depend on them alone."""
    episode = annotated.episode
    main = encode(
        dream_prompt.main_chain(episode.task.instruction, episode.transitions[0].state, [], annotated.world_sheet)
    )
    branches: list[tuple[int, list[int], list[float]]] = []
    for step, transition in enumerate(episode.transitions):
        demonstrations = annotated.demonstrations[step] if rng.random() < keep_demonstrations else ()
        question = encode(dream_prompt.question(transition.action, demonstrations, reasoning=reasoning))
        outcome = outcome_of(episode, step, annotated.reasoning[step])
        answer = encode(dream_prompt.answer(outcome, reasoning=reasoning))
        branches.append((len(main), question + answer, [0.0] * len(question) + [1.0] * len(answer)))
        main += encode(dream_prompt.turn_text(transition.action, transition.next_state))
    return pack_branches(main, branches)


def renumbered_annotation(annotated: AnnotatedEpisode, rng: random.Random) -> AnnotatedEpisode:
    """The same episode in a world whose entities bear other numbers; demonstrations, from other episodes, stay."""
    changed = renumbering([*texts_of(annotated.episode), annotated.world_sheet, *annotated.reasoning], rng)
    return replace(
        annotated,
        episode=with_texts(annotated.episode, changed),
        reasoning=tuple(changed(line) for line in annotated.reasoning),
        world_sheet=changed(annotated.world_sheet),
    )


def split_heldout(episodes: Sequence[Episode], share: float) -> tuple[list[Episode], list[Episode]]:
    """Keep whole tasks out (never single episodes of a task that is trained on); stable for the same data."""
    tasks = sorted({episode.task.id for episode in episodes})
    random.Random(0).shuffle(tasks)
    heldout = set(tasks[: round(share * len(tasks))])
    return (
        [episode for episode in episodes if episode.task.id not in heldout],
        [episode for episode in episodes if episode.task.id in heldout],
    )


def worlds_of(annotated: Sequence[AnnotatedEpisode]) -> list[Mapping[str, str]]:
    """The recorded worlds, one a task and first state, for `worlds.jsonl` of the model."""
    seen: dict[tuple[str, str], Mapping[str, str]] = {}
    for item in annotated:
        task = item.episode.task
        first = item.episode.transitions[0].state
        seen.setdefault(
            (task.id, first),
            {
                "task_id": task.id,
                "instruction": task.instruction,
                "initial_state": first,
                "sheet": item.world_sheet,
            },
        )
    return list(seen.values())
