from __future__ import annotations

from dataclasses import replace

import pytest

from dreamgym.core.criteria import Evidence, is_met
from dreamgym.core.episodes import Task
from dreamgym.core.errors import InvalidInputError, ModelOutputError
from dreamgym.experience.cards import ModelCard, World
from dreamgym.experience.engines import LoadedModel
from dreamgym.experience.task_generation import GenerationSettings, generate_tasks, substitute, template_of
from dreamgym.experience.task_writer import read_list, write_tasks
from dreamgym.experience.worlds import WorldBook
from dreamgym.inference.scripted import ScriptedEngine


def settings(count: int = 4, known: tuple[str, ...] = ()) -> GenerationSettings:
    return GenerationSettings("home", count, seed=1, known_instructions=known)


def test_a_variation_is_another_task_that_a_recorded_world_holds(worlds: list[World], mug_task: Task) -> None:
    book = WorldBook(worlds)
    generated = generate_tasks(book, [mug_task], settings(16)).tasks
    assert generated
    assert "put a cup on table" in {task.instruction for task in generated}
    for task in generated:
        assert task.parent_id == task.metadata["generated_from"] == "mug-on-desk"
        assert "game" not in task.metadata
        world = book.recorded(task)
        assert world is not None
        assert world.initial_state == task.initial_state
        thing, place = task.instruction.split()[2], task.instruction.split()[4]
        assert any(name.startswith(f"{thing} ") for things in world.sheet.values() for name in things)
        assert f"a {place} 1" in world.initial_state
        assert task.criterion is not None
        assert is_met(task.criterion, Evidence([("move", f"You move the {thing} 3 to the {place} 1.")]))
        if (thing, place) != ("mug", "desk"):
            assert not is_met(task.criterion, Evidence([("move", "You move the mug 1 to the desk 1.")]))


def test_generation_is_repeatable_and_never_repeats_what_is_known(worlds: list[World], mug_task: Task) -> None:
    book = WorldBook(worlds)
    first = generate_tasks(book, [mug_task], settings(16))
    assert first == generate_tasks(book, [mug_task], settings(16))
    known = tuple(task.instruction.replace("put a", "Put the") + "." for task in first.tasks)
    again = generate_tasks(book, [mug_task], settings(16, known))
    assert again.tasks == []
    assert {rejected.reason for rejected in again.rejected} >= {"duplicate of a known instruction"}


def test_every_refusal_has_its_reason(worlds: list[World], mug_task: Task) -> None:
    book = WorldBook(worlds)
    vague = replace(mug_task, criterion={"contains": {"over": "state", "text": "well done"}})
    refused = generate_tasks(book, [vague], settings())
    assert not refused.tasks
    assert {r.reason.rpartition(" ")[0] for r in refused.rejected} == {"the seed's criterion does not name"}
    wordless = generate_tasks(book, [replace(mug_task, instruction="be good")], settings())
    assert [r.reason for r in wordless.rejected] == ["its instruction names no known class"]
    with pytest.raises(InvalidInputError):
        generate_tasks(book, [mug_task], settings(0))


def test_a_tool_that_only_the_criterion_names_must_be_in_the_world(worlds: list[World], mug_task: Task) -> None:
    needs_fridge = {
        "all": [{"contains": {"over": "transcript", "text": "using the fridge"}}, dict(mug_task.criterion or {})]
    }
    generated = generate_tasks(WorldBook(worlds), [replace(mug_task, criterion=needs_fridge)], settings(16))
    assert {task.initial_state for task in generated.tasks} == {worlds[3].initial_state}


def test_classes_are_replaced_as_whole_words_and_all_at_once() -> None:
    pattern = {"regex": {"over": "state", "pattern": r"\bmug \d+ to mugholder, pen\b"}}
    swapped = substitute(pattern, {"mug": "pen", "pen": "mug"})
    assert swapped["regex"]["pattern"] == r"\bpen \d+ to mugholder, mug\b"
    assert template_of("put a mug on desk {1}", {"mug", "desk"}).filled(("pen", "shelf")) == "put a pen on shelf {1}"


async def test_a_language_models_list_passes_the_same_gate(worlds: list[World], mug_task: Task) -> None:
    answer = (
        '{"seed": 0, "world": 0, "instruction": "put a book on desk"},'
        '{"seed": 0, "world": 0, "instruction": "put a unicorn on desk"},'
        '{"seed": 0, "world": 7, "instruction": "put a pen on desk"},'
        '{"seed": 0, "world": 0, "instruction": "put a mug on desk"},'
        '{"instruction": 3}\n]'
    )
    engine = ScriptedEngine(lambda prompt, seed: answer)
    model = LoadedModel("v", ModelCard(engine="vllm"), WorldBook(worlds), engine)
    result = await write_tasks(model, [mug_task], settings())
    assert [task.instruction for task in result.tasks] == ["put a book on desk"]
    assert "book" in str(result.tasks[0].criterion)
    assert len(result.rejected) == 4
    assert all(rejected.reason for rejected in result.rejected)


def test_a_cut_list_is_read_up_to_its_last_whole_object() -> None:
    assert read_list('{"a": 1}, {"a": 2}, {"a"') == [{"a": 1}, {"a": 2}]
    with pytest.raises(ModelOutputError):
        read_list("Sure! Here are some tasks")
