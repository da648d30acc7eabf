from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dreamgym.core.consistency import LISTING, RULES, Consistency
from dreamgym.core.dream_prompt import Demonstration
from dreamgym.core.episodes import Task, TerminationReason
from dreamgym.core.errors import ConflictError, ContextOverflowError, InvalidInputError, ModelOutputError
from dreamgym.experience.engines import LoadedModel
from dreamgym.experience.episode import DreamEpisode, EpisodeRequest, Step
from dreamgym.experience.retrieval import Hit

ALL_RULES = Consistency(rules=(*RULES, LISTING), verbs=("go", "take", "move", "look", "open"))
WINNING = ("go to shelf 1", "take mug 1 from shelf 1", "go to desk 1", "move mug 1 to desk 1")
Make = Callable[..., LoadedModel]


def request(task: Task, **fields: Any) -> EpisodeRequest:
    return EpisodeRequest("household", task, "e1", **fields)


async def play(episode: DreamEpisode, *actions: str) -> list[Step]:
    return [await episode.act(action) for action in actions]


async def test_the_step_that_meets_the_criterion_gets_the_reward_and_ends_the_episode(
    make_model: Make, retriever: Any, mug_task: Task
) -> None:
    steps = await play(DreamEpisode(make_model(), retriever, request(mug_task)), *WINNING)
    assert [step.reward for step in steps] == [0, 0, 0, 1]
    assert [step.done for step in steps] == [False, False, False, True]
    assert steps[-1].termination is TerminationReason.SUCCESS


async def test_the_models_own_success_flag_is_ignored_where_there_is_a_criterion(
    make_model: Make, retriever: Any, mug_task: Task
) -> None:
    claims = make_model(lambda prompt, seed: " valid.\n= You win.\n# success\n")
    step = await DreamEpisode(claims, retriever, request(mug_task)).act("go to shelf 1")
    assert not step.success
    assert not step.done
    judged = await DreamEpisode(claims, retriever, request(mug_task, self_judged=True)).act("go to shelf 1")
    assert judged.success
    assert judged.reward == 1


async def test_a_task_without_a_criterion_is_judged_by_the_model(
    make_model: Make, retriever: Any, mug_task: Task
) -> None:
    task = replace(mug_task, criterion=None)
    loses = make_model(lambda prompt, seed: " valid.\n= You lost.\n# failure\n")
    step = await DreamEpisode(loses, retriever, request(task)).act("go to shelf 1")
    assert step.termination is TerminationReason.FAILURE


async def test_a_refused_action_is_marked_invalid_and_never_a_success(
    make_model: Make, retriever: Any, mug_task: Task
) -> None:
    episode = DreamEpisode(make_model(), retriever, request(replace(mug_task, criterion=None), self_judged=True))
    step = await episode.act("go to shelf 1")
    assert step.valid_action
    boast = make_model(lambda prompt, seed: " impossible: no such thing.\n= You shrug.\n# success\n")
    refused = await DreamEpisode(boast, retriever, request(mug_task, self_judged=True)).act("fly")
    assert not refused.valid_action
    assert not refused.success


async def test_a_malformed_answer_is_asked_for_once_more_and_then_a_typed_error(
    make_model: Make, retriever: Any, mug_task: Task
) -> None:
    answers = iter(["garbage", "garbage", "garbage", " valid.\n= You arrive.\n# continue\n"])
    model = make_model(lambda prompt, seed: next(answers))
    episode = DreamEpisode(model, retriever, request(mug_task))
    with pytest.raises(ModelOutputError):
        await episode.act("go to shelf 1")
    assert episode.state == mug_task.initial_state
    step = await episode.act("go to shelf 1")
    assert step.state == "You arrive."
    requests = model.engine.requests  # type: ignore[attr-defined]
    assert [r.temperature for r in requests] == [0.0, 0.3, 0.0, 0.3]
    assert requests[0].seed != requests[1].seed


async def test_the_step_limit_ends_an_episode(make_model: Make, retriever: Any, mug_task: Task) -> None:
    episode = DreamEpisode(make_model(), retriever, request(mug_task, max_steps=2))
    steps = await play(episode, "go to shelf 1", "go to shelf 2")
    assert steps[-1].termination is TerminationReason.STEP_LIMIT
    with pytest.raises(ConflictError):
        await episode.act("go to desk 1")


async def test_episodes_of_one_seed_share_a_world_and_other_seeds_give_others(
    make_model: Make, retriever: Any, mug_task: Task
) -> None:
    model = make_model(world_keep=0.3)
    sheets = {seed: DreamEpisode(model, retriever, request(mug_task, seed=seed)).world_sheet for seed in range(12)}
    again = {seed: DreamEpisode(model, retriever, request(mug_task, seed=seed)).world_sheet for seed in range(12)}
    assert sheets == again
    assert len(set(sheets.values())) > 1
    assert sheets[0] == "desk 1: pen 1; shelf 1: book 1, mug 1; shelf 2: nothing"


async def test_resuming_from_a_history_gives_the_prompts_of_never_stopping(
    make_model: Make, retriever: Any, mug_task: Task
) -> None:
    whole, resumed = make_model(), make_model()
    first = DreamEpisode(whole, retriever, request(mug_task, seed=3))
    steps = await play(first, "go to shelf 1", "go to shelf 2", "go to desk 1")
    past = tuple(zip(("go to shelf 1", "go to shelf 2"), (step.state for step in steps), strict=False))
    second = DreamEpisode(resumed, retriever, request(mug_task, seed=3, turns=past))
    assert second.first().state == steps[1].state
    assert await second.act("go to desk 1") == steps[2]
    assert whole.engine.requests[-1].prompt_ids == resumed.engine.requests[-1].prompt_ids  # type: ignore[attr-defined]
    assert whole.engine.requests[-1].seed == resumed.engine.requests[-1].seed  # type: ignore[attr-defined]


async def test_the_prompt_only_grows_before_its_branch(make_model: Make, retriever: Any, mug_task: Task) -> None:
    model = make_model(retrieved_per_step=1)
    retriever.hits = [Hit(7, Demonstration("go to sofa 1", "You arrive at sofa 1."))]
    steps = await play(DreamEpisode(model, retriever, request(mug_task)), "go to shelf 1", "go to shelf 2")
    texts = [model.engine.decode(r.prompt_ids) for r in model.engine.requests]  # type: ignore[attr-defined]
    stable = texts[0].partition("~ > ")[0]
    assert texts[1].startswith(stable + f"> go to shelf 1\n{steps[0].state}\n~ > ")
    assert steps[0].retrieved == (7,)
    assert "valid; at" not in texts[1]


async def test_a_full_window_drops_the_middle_and_keeps_the_opening(
    make_model: Make, retriever: Any, mug_task: Task
) -> None:
    model = make_model(context_window=900, max_new_tokens=200)
    episode = DreamEpisode(model, retriever, request(mug_task))
    for _ in range(20):
        await episode.act("go to shelf 1")
    last = model.engine.decode(model.engine.requests[-1].prompt_ids)  # type: ignore[attr-defined]
    assert last.startswith("World: desk 1: pen 1")
    assert len(last.encode()) <= 900 - 200
    with pytest.raises(ContextOverflowError):
        await DreamEpisode(make_model(context_window=100), retriever, request(mug_task)).act("go to shelf 1")


async def test_a_task_without_an_initial_state_begins_in_the_most_similar_recorded_world(
    make_model: Make, retriever: Any
) -> None:
    episode = DreamEpisode(make_model(), retriever, request(Task("new", "put an egg on table")))
    assert episode.first().state.startswith("You are in a kitchen.")
    empty = LoadedModel("v", make_model().card, type(make_model().worlds)([]), make_model().engine)
    with pytest.raises(InvalidInputError):
        DreamEpisode(empty, retriever, request(Task("new", "put an egg on table")))


async def test_an_episode_refuses_without_asking_the_model_and_asks_twice_about_a_contradiction(
    make_model: Callable[..., LoadedModel], retriever: Any, mug_task: Task
) -> None:
    grants = make_model(lambda prompt, seed: " valid.\n= You see a sun 1.\n# continue\n", consistency=ALL_RULES)
    episode = DreamEpisode(grants, retriever, EpisodeRequest("home", mug_task))
    step = await episode.act("take mug 1 from shelf 1")
    assert (step.state, step.valid_action, step.prompt_tokens) == ("Nothing happens.", False, 0)
    assert step.reasoning == "impossible: not at shelf 1."
    assert grants.engine.requests == []  # type: ignore[attr-defined]
    invented = await episode.act("go to shelf 2")
    assert invented.state == "You see a sun 1."
    agreeing = make_model(lambda prompt, seed: " valid.\n= You see a sun 1.\n# continue\n")
    trusted = await DreamEpisode(agreeing, retriever, EpisodeRequest("home", mug_task)).act("go to shelf 2")
    assert invented.confidence == pytest.approx(0.5 * trusted.confidence)
    assert len(grants.engine.requests) == 2  # type: ignore[attr-defined]
