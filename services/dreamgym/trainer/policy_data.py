"""Episodes as training sequences for the policy: loss on what the policy says, none on what the environment says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dreamgym.core import policy_prompt
from dreamgym.core.episodes import Episode
from dreamgym.trainer.branch_packing import PackedSequence, pack_branches

Encode = Callable[[str], list[int]]


def demonstration(episode: Episode, encode: Encode) -> PackedSequence:
    """A recorded episode for imitation. Refused actions stay in view but carry no loss."""
    ids = encode(policy_prompt.opening(episode.task.instruction, episode.transitions[0].state))
    weights = [0.0] * len(ids)
    for step, transition in enumerate(episode.transitions):
        action = encode(policy_prompt.said(transition.action))
        ids += action
        weights += [1.0 if transition.valid_action else 0.0] * len(action)
        if step + 1 < len(episode.transitions):
            state = encode(policy_prompt.after_action(transition.next_state))
            ids += state
            weights += [0.0] * len(state)
    return pack_branches(ids, [], weights)


def choose_demonstrations(episodes: Iterable[Episode], count: int) -> list[Episode]:
    """Successful episodes, those with the fewest refused actions and the shortest first, spread over tasks.

    The choice is stable for the same data.
    """

    def waste(episode: Episode) -> tuple[int, int, str]:
        return sum(not t.valid_action for t in episode.transitions), len(episode.transitions), episode.id

    by_task: dict[str, list[Episode]] = {}
    for episode in episodes:
        if episode.success and episode.transitions:
            by_task.setdefault(episode.task.id, []).append(episode)
    queues = [sorted(group, key=waste) for _, group in sorted(by_task.items())]
    chosen: list[Episode] = []
    for place in range(max((len(queue) for queue in queues), default=0)):
        chosen += [queue[place] for queue in queues if place < len(queue)]
    return chosen[:count]


def sampled_sequence(ids: Sequence[int], sampled: Sequence[bool]) -> PackedSequence:
    """A played episode: exactly the ids that were read and sampled, loss on the sampled ones."""
    return pack_branches(ids, [], [1.0 if mark else 0.0 for mark in sampled])
