"""Group advantages and the policy loss (METHOD section 6). Shapes: N sampled tokens of a batch."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

STD_FLOOR = 1e-6


def group_advantages(rewards: Sequence[float], *, normalize_std: bool = True) -> list[float]:
    """A_i = (R_i - mean R) / std R within one group; without std normalisation it is Dr.GRPO's.

    A group without variance carries no signal: all zeros. Raises ValueError below two rollouts.
    """
    if len(rewards) < 2:
        raise ValueError(f"a group needs at least 2 rollouts, not {len(rewards)}")
    mean = sum(rewards) / len(rewards)
    centred = [reward - mean for reward in rewards]
    # Sample standard deviation, as TRL and verl use it.
    std = (sum(c * c for c in centred) / (len(rewards) - 1)) ** 0.5
    if std < STD_FLOOR:
        return [0.0] * len(rewards)
    return [c / std for c in centred] if normalize_std else centred


@dataclass(frozen=True)
class CreditedStep:
    """One action of a group's episode: the state that it was taken in, and its immediate reward."""

    state: Hashable
    reward: float


def step_advantages(
    episodes: Sequence[Sequence[CreditedStep]], *, discount: float, std_damping: float = 0.1
) -> list[list[float]]:
    """Step-level credit (GiGPO, arXiv 2505.10978): what an action brought, against the group's other actions in its state.

    The discounted return from each step on, less the mean over all steps of the group that were taken in the same state,
    divided by their standard deviation plus `std_damping` (so that returns which hardly differ weigh little). A step alone
    in its state has advantage 0.
    """
    returns: list[list[float]] = []
    siblings: dict[Hashable, list[float]] = {}
    for steps in episodes:
        total, along = 0.0, []
        for step in reversed(steps):
            total = step.reward + discount * total
            along.append(total)
            siblings.setdefault(step.state, []).append(total)
        returns.append(along[::-1])

    def advantage(state: Hashable, value: float) -> float:
        others = siblings[state]
        if len(others) < 2:
            return 0.0
        mean = sum(others) / len(others)
        std: float = (sum((other - mean) ** 2 for other in others) / (len(others) - 1)) ** 0.5
        return (value - mean) / (std + std_damping)

    return [
        [advantage(step.state, value) for step, value in zip(steps, along, strict=True)]
        for steps, along in zip(episodes, returns, strict=True)
    ]


@dataclass(frozen=True)
class LossStatistics:
    """Averages over the sampled tokens of one batch."""

    kl: float
    clip_fraction: float
    sampler_ratio: float


def policy_loss(
    logprobs_N: Tensor,
    old_logprobs_N: Tensor,
    sampler_logprobs_N: Tensor,
    reference_logprobs_N: Tensor | None,
    advantages_N: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    kl_coefficient: float,
    sampler_ratio_cap: float = 2.0,
) -> tuple[Tensor, LossStatistics]:
    """Clipped surrogate with token-level mean, k3 KL to the reference, truncated sampler correction.

    `old` are the trainer's log-probabilities before the iteration's first update, `sampler` those recorded by the engine.
    Clip-higher: DAPO (arXiv 2503.14476). k3: http://joschu.net/blog/kl-approx.html.
    """
    ratio = torch.exp(logprobs_N - old_logprobs_N)
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    sampler_ratio = torch.exp(old_logprobs_N - sampler_logprobs_N).clamp(max=sampler_ratio_cap)
    surrogate = torch.minimum(ratio * advantages_N, clipped * advantages_N) * sampler_ratio
    loss = -surrogate.mean()
    kl = torch.zeros(())
    if reference_logprobs_N is not None:
        difference = reference_logprobs_N - logprobs_N
        kl = (torch.exp(difference) - difference - 1).mean()
        loss = loss + kl_coefficient * kl
    clip_fraction = ((ratio - clipped).abs() > 0).float().mean()
    return loss, LossStatistics(float(kl.detach()), float(clip_fraction), float(sampler_ratio.mean()))
