"""Variations of seed tasks written by a large language model, behind the same validity gate as `task_generation`.

Used where the experience model is large enough to follow an instruction (engine `vllm`). The prompt asks for a JSON list;
what does not fit its schema is refused item by item, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dreamgym.core.episodes import Task
from dreamgym.core.errors import ModelOutputError
from dreamgym.core.world_sheet import render
from dreamgym.experience.cards import World
from dreamgym.experience.engines import LoadedModel
from dreamgym.experience.task_generation import (
    Candidate,
    Gate,
    Generated,
    GenerationSettings,
    Rejected,
    admit,
    check_count,
    rewritten_criterion,
    template_of,
)
from dreamgym.experience.worlds import WorldBook
from dreamgym.inference.engine import GenerationRequest

MAX_NEW_TOKENS = 1024
WORLDS_SHOWN = 4
TEMPERATURE = 0.7


class _Written(BaseModel):
    model_config = ConfigDict(extra="ignore")

    seed: int = Field(ge=0)
    world: int = Field(ge=0)
    instruction: str = Field(min_length=1, max_length=500)
    criterion: dict[str, Any] | None = None


async def write_tasks(model: LoadedModel, seeds: Sequence[Task], settings: GenerationSettings) -> Generated:
    """Ask the model for variations. Raises ModelOutputError if its answer holds no JSON list."""
    check_count(settings.count)
    result = Generated()
    worlds = _worlds(model.worlds, seeds)
    if not worlds or not seeds:
        return result
    request = GenerationRequest(
        session=f"tasks#{settings.seed}",
        prompt_ids=model.engine.encode(prompt(seeds, worlds, settings)),
        max_new_tokens=MAX_NEW_TOKENS,
        stop=("\n]",),
        temperature=TEMPERATURE,
        seed=settings.seed,
    )
    generation = await model.engine.generate(request)
    await model.engine.release(request.session)
    gate = Gate(model.worlds, seeds, settings.known_instructions)
    for item in read_list(generation.text or model.engine.decode(generation.token_ids)):
        if len(result.tasks) >= settings.count:
            break
        candidate = _candidate(item, model.worlds, seeds, worlds)
        if isinstance(candidate, Rejected):
            result.rejected.append(candidate)
        else:
            admit(result, gate, candidate, settings)
    return result


def prompt(seeds: Sequence[Task], worlds: Sequence[World], settings: GenerationSettings) -> str:
    """Seeds, worlds and the form of the answer; the answer begins inside the list."""
    lines = ["Write new tasks for an agent that acts in text worlds. Vary the seed tasks: same kind, other things."]
    lines += ["Each task must be possible in its world, not yet fulfilled there, and neither trivial nor a repetition."]
    lines += ["", "Seed tasks:"]
    lines += [f"{i}. {orjson.dumps(seed.instruction).decode()}" for i, seed in enumerate(seeds)]
    lines += ["", "Worlds:"]
    lines += [f"{i}. {render(world.sheet)}" for i, world in enumerate(worlds)]
    lines += [
        "",
        f'Answer with a JSON list of {settings.count} objects {{"seed": 0, "world": 0, "instruction": "..."}}:',
    ]
    return "\n".join(lines) + "\n[\n"


def read_list(text: str) -> list[Any]:
    """The JSON list that the prompt opened. A cut list is read up to its last whole object."""
    body = "[" + text.strip().removeprefix("[")
    for candidate in (body, body + "]", body[: body.rfind("}") + 1] + "]"):
        try:
            read = orjson.loads(candidate)
        except orjson.JSONDecodeError:
            continue
        if isinstance(read, list):
            return read
    raise ModelOutputError(
        f"The task generator wrote no JSON list: {text[:200]!r}.", remedy="Retry with another seed, or a larger model."
    )


def _worlds(book: WorldBook, seeds: Sequence[Task]) -> list[World]:
    found = {w.task_id: w for seed in seeds if (w := book.recorded(seed) or book.most_similar(seed)) is not None}
    return list(found.values())[:WORLDS_SHOWN]


def _candidate(item: Any, book: WorldBook, seeds: Sequence[Task], worlds: Sequence[World]) -> Candidate | Rejected:
    try:
        written = _Written.model_validate(item)
        seed, world = seeds[written.seed], worlds[written.world]
    except ValidationError as error:
        return Rejected(str(item)[:200], f"not in the schema: {error.errors()[0]['msg']}")
    except IndexError:
        return Rejected(str(item)[:200], "names a seed or world that was not shown")
    classes = book.thing_classes | book.place_classes
    old, new = template_of(seed.instruction, classes), template_of(written.instruction, classes)
    if written.criterion is not None:
        return Candidate(seed, written.instruction, written.criterion, world)
    if old.text != new.text:
        fault = "" if seed.criterion is None else "another form than its seed, and no criterion of its own"
        return Candidate(seed, written.instruction, None, world, fault)
    changes = {a: b for a, b in zip(old.fillers, new.fillers, strict=True) if a != b}
    criterion, fault = rewritten_criterion(seed, changes)
    return Candidate(seed, written.instruction, criterion, world, fault)
