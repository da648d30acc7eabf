"""What the trainer writes beside an experience model: its card (`dreamgym.json`) and the worlds that it recorded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dreamgym.core.consistency import Consistency
from dreamgym.core.errors import ModelMissingError
from dreamgym.core.world_sheet import Sheet, parse

CARD = "dreamgym.json"
WORLDS = "worlds.jsonl"


class ModelCard(BaseModel):
    """How an experience model was trained and therefore how it must be prompted."""

    model_config = ConfigDict(extra="allow", frozen=True)

    role: str = "experience"
    layout: str = "plain"
    engine: str = "local"
    retrieved_per_step: int = Field(0, ge=0)
    reasoning: bool = True
    world_sheet: bool = True
    context_window: int = Field(2048, ge=16)
    parameters: int = 0
    max_new_tokens: int = Field(192, ge=8)
    """Longest answer to one step, in tokens."""
    max_steps: int = Field(50, ge=1)
    """Length of an episode whose reset names none."""
    world_keep: float = Field(0.6, ge=0, le=1)
    """Probability that a thing stays where it was recorded, in a world drawn with a seed other than 0."""
    refusals: tuple[str, ...] = ()
    """States with which the environment refuses an action, collected from refused seed steps."""
    consistency: Consistency = Consistency()
    """Rules by which the tracked world refuses an action, validated on the training episodes; none: the model decides."""
    retrieval_sources: tuple[str, ...] = ("seed", "real")
    retrieval_splits: tuple[str, ...] = ("train",)
    """Splits that may ground a step; test trajectories never do."""
    description: str = ""
    action_format: str = ""


@dataclass(frozen=True)
class World:
    """A recorded world: where its task began and what its episodes revealed in hindsight."""

    task_id: str
    instruction: str
    initial_state: str
    sheet: Sheet
    fixed: bool = False


def load_card(path: Path) -> ModelCard:
    """Read a model folder's card. Raises ModelMissingError if it is absent, unreadable or not an experience model's."""
    file = path / CARD
    if not file.exists():
        raise ModelMissingError(f"{path.name} has no {CARD}.", remedy="Train the experience model again.")
    try:
        card = ModelCard.model_validate(orjson.loads(file.read_bytes()))
    except (orjson.JSONDecodeError, ValidationError) as error:
        raise ModelMissingError(f"The card of {path.name} is not valid: {error}.", remedy="Train it again.") from error
    if card.role != "experience":
        raise ModelMissingError(f"{path.name} is a {card.role} model.", remedy="Name an experience model.")
    if card.layout != "plain":
        raise ModelMissingError(f"{path.name} has the unknown layout {card.layout!r}.", remedy="Known: plain.")
    return card


def load_worlds(path: Path) -> list[World]:
    """Read a model folder's worlds; none if the file is absent. Raises ModelMissingError naming a faulty line."""
    file = path / WORLDS
    worlds: list[World] = []
    if not file.exists():
        return worlds
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                record = orjson.loads(line)
                sheet = parse(str(record.get("sheet", "")))
                task_id, instruction, state = (
                    str(record[name]) for name in ("task_id", "instruction", "initial_state")
                )
                worlds.append(World(task_id, instruction, state, sheet, bool(record.get("fixed", False))))
            except (orjson.JSONDecodeError, KeyError, AttributeError) as error:
                raise ModelMissingError(
                    f"{WORLDS} of {path.name}, line {number}, is not a world: {error!r}.", remedy="Train it again."
                ) from error
    return worlds
