"""Episodes as training sequences for the policy: loss on what the policy says, none on what the environment says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from dreamgym.core import policy_prompt
from dreamgym.core.action_choices import ActionChooser, ActionRules, token_choices
from dreamgym.core.episodes import Episode, Task
from dreamgym.trainer.action_space import Allowed, allowed_along, forced
from dreamgym.trainer.branch_packing import PackedSequence, pack_branches

Encode = Callable[[str], Sequence[int]]


def pieces_of(episodes: Iterable[Episode], tasks: Iterable[Task], action_format: str) -> Iterator[str]:
    """Every text of these, cut as episodes are encoded: opening, action, what follows an action."""
    yield action_format
    for task in tasks:
        yield policy_prompt.opening(task.instruction, task.initial_state)
    for episode in episodes:
        yield policy_prompt.opening(
            episode.task.instruction, episode.transitions[0].state if episode.transitions else ""
        )
        for transition in episode.transitions:
            yield policy_prompt.said(transition.action)
            yield policy_prompt.after_action(transition.next_state)


def demonstration(episode: Episode, encode: Encode, rules: ActionRules | None = None) -> PackedSequence:
    """A recorded episode for imitation. Refused actions stay in view but carry no loss, and so do forced tokens.

    With `rules`, an action is imitated as a choice among those that were open.
    """
    first = episode.transitions[0].state
    ids = list(encode(policy_prompt.opening(episode.task.instruction, first)))
    chooser = ActionChooser(rules, first) if rules else None
    weights = [0.0] * len(ids)
    allowed: list[Allowed] = []
    for step, transition in enumerate(episode.transitions):
        action = encode(policy_prompt.said(transition.action))
        ids += action
        choices = chooser.choices() if chooser else []
        among = allowed_along(token_choices(choices, lambda choice: encode(policy_prompt.said(choice))), action)
        learnt = [transition.valid_action and not forced(tokens) for tokens in among]
        weights += [1.0 if mark else 0.0 for mark in learnt]
        allowed += [tokens for tokens, mark in zip(among, learnt, strict=True) if mark]
        if chooser:
            chooser.follow(transition.action, transition.next_state)
        if step + 1 < len(episode.transitions):
            state = encode(policy_prompt.after_action(transition.next_state))
            ids += state
            weights += [0.0] * len(state)
    packed = pack_branches(ids, [], weights)
    packed.allowed = allowed
    return packed


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


def sampled_sequence(ids: Sequence[int], learnt: Sequence[bool], allowed: Sequence[Allowed] = ()) -> PackedSequence:
    """A played episode: exactly the ids that were read and sampled, loss on the marked ones.

    `allowed` holds for each marked token those it was chosen from.
    """
    packed = pack_branches(ids, [], [1.0 if mark else 0.0 for mark in learnt])
    packed.allowed = list(allowed)
    return packed
