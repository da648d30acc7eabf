from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.trainer.advantages import group_advantages, policy_loss

OPEN = {"clip_low": 0.2, "clip_high": 0.28, "kl_coefficient": 0.0}


def test_known_advantages() -> None:
    assert group_advantages([1, 0]) == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5)])
    assert group_advantages([1, 0, 0, 0]) == pytest.approx([1.5, -0.5, -0.5, -0.5])
    assert group_advantages([1, 0, 0, 0], normalize_std=False) == [0.75, -0.25, -0.25, -0.25]


@pytest.mark.parametrize("rewards", [[0, 0, 0], [1, 1], [0.1 + 0.2, 0.3]])
@pytest.mark.parametrize("normalize", [True, False])
def test_a_group_without_variance_says_nothing(rewards: list[float], normalize: bool) -> None:
    assert group_advantages(rewards, normalize_std=normalize) == [0.0] * len(rewards)


@pytest.mark.parametrize("rewards", [[], [1.0]])
def test_a_group_below_two_is_refused(rewards: list[float]) -> None:
    with pytest.raises(ValueError, match="at least 2"):
        group_advantages(rewards)


@given(st.lists(st.sampled_from([0.0, 0.5, 0.9, 1.0]), min_size=2, max_size=16))
def test_advantages_sum_to_nothing_and_keep_the_order_of_the_rewards(rewards: list[float]) -> None:
    advantages = group_advantages(rewards)
    assert sum(advantages) == pytest.approx(0, abs=1e-9)
    for i, j in zip(range(len(rewards)), range(1, len(rewards)), strict=False):
        assert (rewards[i] - rewards[j]) * (advantages[i] - advantages[j]) >= 0


def plain_loss(
    new: np.ndarray, old: np.ndarray, sampler: np.ndarray, reference: np.ndarray, advantage: np.ndarray
) -> tuple[float, float, float, float]:
    """The formulas of the papers, token by token, in double precision."""
    total = kl = clipped = weights = 0.0
    for n, o, s, r, a in zip(new, old, sampler, reference, advantage, strict=True):
        ratio = math.exp(n - o)
        bounded = min(max(ratio, 0.8), 1.28)
        weight = min(math.exp(o - s), 2.0)
        total -= min(ratio * a, bounded * a) * weight
        kl += math.exp(r - n) - (r - n) - 1
        clipped += ratio != bounded
        weights += weight
    count = len(new)
    return total / count + 0.3 * kl / count, kl / count, clipped / count, weights / count


def test_the_loss_equals_its_formulas_in_double_precision() -> None:
    rng = np.random.default_rng(0)
    new, old, sampler, reference = (rng.normal(-1.5, 0.5, 200) for _ in range(4))
    advantage = rng.normal(0, 1, 200)
    loss, numbers = policy_loss(
        *(torch.tensor(x) for x in (new, old, sampler, reference, advantage)),
        clip_low=0.2,
        clip_high=0.28,
        kl_coefficient=0.3,
    )
    value, kl, clip_fraction, weight = plain_loss(new, old, sampler, reference, advantage)
    assert float(loss) == pytest.approx(value, abs=1e-12)
    assert numbers.kl == pytest.approx(kl, abs=1e-12)
    assert numbers.clip_fraction == pytest.approx(clip_fraction, abs=1e-6)
    assert numbers.sampler_ratio == pytest.approx(weight, abs=1e-12)
    assert kl > 0
    assert 0 < clip_fraction < 1


def test_the_gradient_raises_what_won_and_lowers_what_lost() -> None:
    new = torch.full((2,), -1.0, requires_grad=True)
    old = new.detach()
    loss, _ = policy_loss(new, old, old, None, torch.tensor([1.0, -1.0]), **OPEN)
    (slope,) = torch.autograd.grad(loss, new)
    # At ratio 1 the surrogate's slope is the advantage over the number of tokens.
    assert slope.tolist() == [-0.5, 0.5]


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "moves"),
    [
        (math.log(1.27), 1.0, True),
        (math.log(1.29), 1.0, False),
        (math.log(0.81), -1.0, True),
        (math.log(0.79), -1.0, False),
        # The clip is one-sided: what went the wrong way may always come back.
        (math.log(0.5), 1.0, True),
        (math.log(2.0), -1.0, True),
    ],
)
def test_beyond_the_clip_a_token_moves_no_further(log_ratio: float, advantage: float, moves: bool) -> None:
    old = torch.tensor([-1.0])
    new = (old + log_ratio).requires_grad_()
    loss, _ = policy_loss(new, old, old, None, torch.tensor([advantage]), **OPEN)
    (slope,) = torch.autograd.grad(loss, new)
    assert bool(slope.abs() > 0) is moves


def test_the_kl_is_never_negative_and_pulls_towards_the_reference() -> None:
    new = torch.tensor([-1.0, -2.0, -3.0], requires_grad=True)
    reference = torch.tensor([-2.0, -2.0, -2.0])
    options = {**OPEN, "kl_coefficient": 1.0}
    loss, numbers = policy_loss(new, new.detach(), new.detach(), reference, torch.zeros(3), **options)
    (slope,) = torch.autograd.grad(loss, new)
    assert numbers.kl > 0
    assert slope[0] > 0 > slope[2]
    assert slope[1] == 0


def test_a_sampler_that_disagrees_is_weighed_but_never_above_the_cap() -> None:
    new = torch.tensor([-1.0, -1.0], requires_grad=True)
    sampler = torch.tensor([-1.0 - math.log(1.5), -9.0])
    loss, _ = policy_loss(new, new.detach(), sampler, None, torch.ones(2), **OPEN)
    (slope,) = torch.autograd.grad(loss, new)
    assert slope.tolist() == pytest.approx([-0.75, -1.0])
