"""One iteration's update of the policy from played groups (METHOD section 6)."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dreamgym.trainer.action_space import ActionSpace
from dreamgym.trainer.advantages import CreditedStep, group_advantages, policy_loss, step_advantages
from dreamgym.trainer.policy_data import sampled_sequence
from dreamgym.trainer.rollout import PlayedEpisode
from dreamgym.trainer.rows import RowBatch, micro_batches, plan_batches, stack_rows
from dreamgym.trainer.training_state import TrainingState, target_logprobs


@dataclass(frozen=True)
class UpdateSettings:
    """The fields of a stage that shape the loss."""

    kl_coefficient: float
    clip_low: float
    clip_high: float
    normalize_std: bool
    invalid_action_penalty: float
    minibatches: int
    temperature: float
    step_credit: float = 0.0
    discount: float = 0.95
    space: ActionSpace | None = None


@dataclass
class ScoredEpisode:
    """An episode with the advantage of each of its actions."""

    episode: PlayedEpisode
    advantages: list[float]


@dataclass
class Scored:
    """What the groups of an iteration say. Groups without variance carry no signal and leave the loss."""

    episodes: list[ScoredEpisode]
    groups_used: int
    groups_zero_variance: int
    groups_incomplete: int
    mean_reward: float


@dataclass
class _Part:
    """A micro-batch with its per-token columns [N], in the order of the rows' predicted tokens."""

    batch: RowBatch
    advantages_N: Tensor
    sampler_N: Tensor
    old_N: Tensor | None = None
    """Log-probabilities before the update; None: this part belongs to the first step, which starts from them."""
    reference_N: Tensor | None = None


def returns_of(episode: PlayedEpisode, invalid_action_penalty: float) -> float:
    """The outcome, less a penalty for the share of actions that the environment refused."""
    share = episode.invalid_actions / len(episode.transitions) if episode.transitions else 0.0
    return float(episode.success) - invalid_action_penalty * share


def score_groups(groups: Sequence[Sequence[PlayedEpisode]], settings: UpdateSettings) -> Scored:
    """Group advantages over the episodes that count; groups left with fewer than two are incomplete.

    A group whose *outcomes* are all equal leaves the loss, whatever its penalties: scaled to unit deviation, a small
    penalty alone would otherwise drive the policy, toward doing nothing that can be refused.
    """
    scored: list[ScoredEpisode] = []
    used = zero = incomplete = 0
    rewards_seen: list[float] = []
    for group in groups:
        counted = [episode for episode in group if episode.counts]
        if len(counted) < 2:
            incomplete += 1
            continue
        rewards = [returns_of(episode, settings.invalid_action_penalty) for episode in counted]
        rewards_seen += rewards
        if not teaches(counted):
            zero += 1
            continue
        used += 1
        scored += [e for e in _credited(counted, rewards, settings) if any(e.advantages) and any(e.episode.learnt)]
    mean = sum(rewards_seen) / len(rewards_seen) if rewards_seen else 0.0
    return Scored(scored, used, zero, incomplete, mean)


def teaches(group: Sequence[PlayedEpisode]) -> bool:
    """Whether the outcomes of those episodes that count differ: else a group's advantages are all zero."""
    return len({episode.success for episode in group if episode.counts}) == 2


def _credited(
    group: Sequence[PlayedEpisode], rewards: Sequence[float], settings: UpdateSettings
) -> list[ScoredEpisode]:
    """Each action's advantage: its episode's, and, weighed by `step_credit`, its own among those in the same state."""
    whole = group_advantages(rewards, normalize_std=settings.normalize_std)
    alone = [[0.0] * len(episode.transitions) for episode in group]
    if settings.step_credit:
        steps = [_steps_of(episode, settings.invalid_action_penalty) for episode in group]
        alone = step_advantages(steps, discount=settings.discount)
    return [
        ScoredEpisode(episode, [advantage + settings.step_credit * own for own in owns])
        for episode, advantage, owns in zip(group, whole, alone, strict=True)
    ]


def _steps_of(episode: PlayedEpisode, invalid_action_penalty: float) -> list[CreditedStep]:
    """The actions of an episode. A refused one changed nothing: what follows it was taken in the same state."""
    steps: list[CreditedStep] = []
    state = episode.transitions[0].state if episode.transitions else ""
    for number, transition in enumerate(episode.transitions, 1):
        won = episode.success and number == len(episode.transitions)
        penalty = 0.0 if transition.valid_action else invalid_action_penalty
        steps.append(CreditedStep(state, float(won) - penalty))
        state = transition.next_state if transition.valid_action else state
    return steps


def update_policy(
    state: TrainingState, reference: Any | None, scored: Scored, settings: UpdateSettings, rng: random.Random
) -> dict[str, float]:
    """Optimise on one iteration's episodes; answers averages of the loss's parts. No signal, no step."""
    if not scored.episodes:
        return {
            "loss": 0.0,
            "kl": 0.0,
            "entropy": 0.0,
            "gradient_norm": 0.0,
            "clip_fraction": 0.0,
            "sampler_ratio": 1.0,
        }
    sequences = [sampled_sequence(s.episode.ids, s.episode.learnt, s.episode.allowed_learnt) for s in scored.episodes]
    lengths = [len(sequence) for sequence in sequences]
    per_step = max(1024, math.ceil(sum(lengths) / settings.minibatches))
    steps = [
        [_part(scored, stack_rows(sequences, rows, 0, settings.space)) for rows in micro_batches(batch, lengths)]
        for batch in plan_batches(lengths, per_step, rng)
    ]
    totals = dict.fromkeys(("loss", "kl", "entropy", "gradient_norm", "clip_fraction", "sampler_ratio"), 0.0)
    sampled_tokens = sum(sum(s.episode.learnt) for s in scored.episodes)
    with torch.no_grad():
        for number, part in ((number, part) for number, parts in enumerate(steps) for part in parts):
            if number:  # the first step's policy is the one before the update: its own pass gives these
                part.old_N, entropy = target_logprobs(state.model, part.batch, settings.temperature)
                totals["entropy"] += float(entropy.sum()) / sampled_tokens
            if reference is not None and settings.kl_coefficient > 0:
                part.reference_N, _ = target_logprobs(reference, part.batch, settings.temperature)
    for parts in steps:
        tokens = sum(part.advantages_N.numel() for part in parts)
        statistics: list[tuple[float, float, float]] = []

        def loss_of(part: _Part, tokens: int = tokens, statistics: list[Any] = statistics) -> Tensor:
            logprobs, entropy = state.target_logprobs(part.batch, settings.temperature)
            if part.old_N is None:
                totals["entropy"] += float(entropy.sum()) / sampled_tokens
            value, numbers = policy_loss(
                logprobs,
                logprobs.detach() if part.old_N is None else part.old_N,
                part.sampler_N,
                part.reference_N,
                part.advantages_N,
                clip_low=settings.clip_low,
                clip_high=settings.clip_high,
                kl_coefficient=settings.kl_coefficient,
            )
            share = part.advantages_N.numel() / tokens
            statistics.append((numbers.kl * share, numbers.clip_fraction * share, numbers.sampler_ratio * share))
            return value * share

        loss, norm = state.apply([lambda part=part: loss_of(part) for part in parts])  # type: ignore[misc]
        totals["loss"] += loss / len(steps)
        totals["gradient_norm"] += norm / len(steps)
        for name, place in (("kl", 0), ("clip_fraction", 1), ("sampler_ratio", 2)):
            totals[name] += sum(row[place] for row in statistics) / len(steps)
    return totals


def _part(scored: Scored, batch: RowBatch) -> _Part:
    advantages: list[float] = []
    sampler: list[float] = []
    for members in batch.members:
        for index in members:
            item = scored.episodes[index]
            sampler += [p for p, mark in zip(item.episode.logprobs, item.episode.learnt, strict=True) if mark]
            advantages += [item.advantages[turn] for turn in item.episode.turns_learnt]
    return _Part(batch, torch.tensor(advantages), torch.tensor(sampler))
