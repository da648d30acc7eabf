"""What one update does to a tiny policy."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dreamgym.core.episodes import Task, TerminationReason, Transition
from dreamgym.inference.local_model import load_model
from dreamgym.trainer.policy_data import sampled_sequence
from dreamgym.trainer.policy_update import UpdateSettings, returns_of, score_groups, update_policy
from dreamgym.trainer.rollout import PlayedEpisode
from dreamgym.trainer.rows import stack_rows
from dreamgym.trainer.training_state import TrainingState, target_logprobs

SETTINGS = UpdateSettings(
    kl_coefficient=0.0,
    clip_low=0.2,
    clip_high=0.28,
    normalize_std=True,
    invalid_action_penalty=0.1,
    minibatches=1,
    temperature=1.0,
)
TASK = Task("t", "open the door")
MakeState = Callable[..., TrainingState]


def played(
    name: str, termination: TerminationReason = TerminationReason.FAILURE, said: str = "look\n", refused: int = 0
) -> PlayedEpisode:
    """Two turns in which the policy says the same thing."""
    episode = PlayedEpisode(name, TASK, termination, success=termination is TerminationReason.SUCCESS)
    for text, mark in (("A room.\n>", False), (said, True), ("The same room.\n>", False), (said, True)):
        episode.ids += text.encode()
        episode.sampled += [mark] * len(text)
        episode.logprobs += [-5.5 if mark else 0.0] * len(text)
    episode.transitions = [Transition("s", said, "s", valid_action=i >= refused) for i in range(2)]
    return episode


def own_logprobs(model: torch.nn.Module, episode: PlayedEpisode) -> Tensor:
    batch = stack_rows([sampled_sequence(episode.ids, episode.sampled)], [[0]], pad_id=0)
    with torch.no_grad():
        return target_logprobs(model, batch)[0]


WON = played("won", TerminationReason.SUCCESS, "open it\n")
LOST = played("lost", said="sit\n")


def test_what_won_becomes_more_likely_and_what_lost_less(make_state: MakeState) -> None:
    state = make_state(warmup_steps=0, learning_rate=0.003)
    before = [float(own_logprobs(state.model, e).sum()) for e in (WON, LOST)]
    numbers = update_policy(state, None, score_groups([[WON, LOST]], SETTINGS), SETTINGS, random.Random(0))
    after = [float(own_logprobs(state.model, e).sum()) for e in (WON, LOST)]
    assert after[0] > before[0]
    assert after[1] < before[1]
    assert state.step == 1
    assert math.isfinite(numbers["loss"])
    assert numbers["gradient_norm"] > 0


def test_the_loss_has_one_term_for_each_sampled_token_end_of_turn_included(make_state: MakeState) -> None:
    assert len(own_logprobs(make_state().model, WON)) == 2 * len("open it\n")


def test_environment_tokens_carry_no_gradient_of_their_own(make_state: MakeState) -> None:
    """A perturbed last state changes nothing, for no sampled token follows it; a perturbed action does."""

    def gradient(episode: PlayedEpisode) -> Tensor:
        state = make_state()
        batch = stack_rows([sampled_sequence(episode.ids, episode.sampled)], [[0]], pad_id=0)
        logprobs, _ = state.target_logprobs(batch)
        (-logprobs.mean()).backward()
        return torch.cat([p.grad.flatten() for p in state.model.parameters() if p.grad is not None])

    def with_tail(text: str, sampled: bool) -> PlayedEpisode:
        return replace(
            WON, ids=[*WON.ids, *text.encode()], sampled=[*WON.sampled, *([sampled] * len(text))], logprobs=[]
        )

    one, other = gradient(with_tail("The end.", False)), gradient(with_tail("Zzz Zzz!", False))
    torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-2)
    said = gradient(with_tail("The end.", True))
    assert float((said - one).norm()) > 0.05 * float(one.norm())


def test_a_group_without_variance_leaves_the_loss() -> None:
    same = [played("a"), played("b")]
    scored = score_groups([same, [WON, LOST]], SETTINGS)
    assert {s.episode.id for s in scored.episodes} == {"won", "lost"}
    assert (scored.groups_used, scored.groups_zero_variance, scored.groups_incomplete) == (1, 1, 0)
    assert scored.mean_reward == 0.25


def test_penalties_alone_drive_no_update() -> None:
    lost = [played("a", refused=2), played("b")]
    scored = score_groups([lost], SETTINGS)
    assert (scored.episodes, scored.groups_zero_variance) == ([], 1)


@pytest.mark.parametrize("reason", [r for r in TerminationReason if not r.is_outcome])
def test_a_failed_episode_leaves_the_group_and_is_no_zero(reason: TerminationReason) -> None:
    failed = played("failed", reason)
    scored = score_groups([[WON, failed, LOST], [WON, failed]], SETTINGS)
    assert {s.episode.id for s in scored.episodes} == {"won", "lost"}
    assert [s.advantages for s in scored.episodes] == [pytest.approx([a, a]) for a in (math.sqrt(0.5), -math.sqrt(0.5))]
    assert (scored.groups_used, scored.groups_incomplete, scored.mean_reward) == (1, 1, 0.5)


def test_refused_actions_cost_their_share_of_the_penalty() -> None:
    assert returns_of(played("a", TerminationReason.SUCCESS, refused=1), 0.1) == pytest.approx(0.95)
    assert returns_of(played("a", refused=2), 0.1) == pytest.approx(-0.1)
    assert returns_of(PlayedEpisode("empty", TASK, TerminationReason.FAILURE), 0.1) == 0.0


def test_an_action_is_credited_against_the_others_in_its_state() -> None:
    """Both start in `s`; a refused action stays there, so the second chance counts in the same state."""
    settings = replace(SETTINGS, step_credit=2.0, discount=0.5)
    won, lost = played("won", TerminationReason.SUCCESS), played("lost", refused=1)
    won.transitions = [Transition("s", "a", "t"), Transition("t", "b", "u")]
    lost.transitions = [Transition("s", "x", "no", valid_action=False), Transition("no", "y", "v")]
    plain = [s.advantages[0] for s in score_groups([[won, lost]], SETTINGS).episodes]
    scored = {s.episode.id: s.advantages for s in score_groups([[won, lost]], settings).episodes}
    in_s = [0.5, -0.1, 0.0]  # discounted returns of a, x, y
    mean = sum(in_s) / 3
    std = math.sqrt(sum((r - mean) ** 2 for r in in_s) / 2)
    own = [2 * (r - mean) / (std + 0.1) for r in in_s]
    assert scored["won"] == pytest.approx([plain[0] + own[0], plain[0]]), "b was alone in its state"
    assert scored["lost"] == pytest.approx([plain[1] + own[1], plain[1] + own[2]])


def test_each_token_bears_the_advantage_of_its_turn() -> None:
    episode = played("e", said="ab")
    assert episode.turns_learnt == [0, 0, 1, 1]
    episode.allowed = [(97, 98), (98,), (97,), (98, 99)]  # one token of each turn was forced
    assert episode.turns_learnt == [0, 1]
    assert episode.allowed_learnt == [(97, 98), (98, 99)]


def test_without_a_signal_no_step_is_made(make_state: MakeState) -> None:
    state = make_state()
    before = [p.clone() for p in state.model.parameters()]
    numbers = update_policy(state, None, score_groups([[LOST, LOST]], SETTINGS), SETTINGS, random.Random(0))
    assert (state.step, numbers["loss"]) == (0, 0.0)
    assert all(torch.equal(a, b) for a, b in zip(before, state.model.parameters(), strict=True))


def test_the_kl_to_a_policys_own_copy_starts_at_nothing(make_state: MakeState, tiny_model: Path) -> None:
    settings = replace(SETTINGS, kl_coefficient=0.1)
    state, reference = make_state(), load_model(tiny_model).eval()
    scored = score_groups([[WON, LOST]], settings)
    first = update_policy(state, reference, scored, settings, random.Random(0))
    second = update_policy(state, reference, scored, settings, random.Random(0))
    assert first["kl"] == pytest.approx(0, abs=1e-6)
    assert second["kl"] > 1e-4


def test_averages_do_not_depend_on_how_the_tokens_are_split(
    make_state: MakeState, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = [
        played(str(i), TerminationReason.SUCCESS if i % 3 else TerminationReason.FAILURE, "walk on " * 20 + "\n")
        for i in range(8)
    ]
    scored = score_groups([long], SETTINGS)
    settings = replace(SETTINGS, minibatches=2)
    whole = update_policy(make_state(), None, scored, settings, random.Random(0))
    monkeypatch.setattr("dreamgym.trainer.rows.MICRO_BATCH_TOKENS", 800)
    split = update_policy(make_state(), None, scored, settings, random.Random(0))
    assert split == pytest.approx(whole, rel=0.02, abs=1e-3)
    assert 0 < split["entropy"] <= math.log(256)
