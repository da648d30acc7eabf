"""One transition written by the experience model: prompt, generation, one retry, reading."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from prometheus_client import Counter

from dreamgym.core.consistency import TrackedWorld
from dreamgym.core.dream_prompt import Demonstration, Outcome, parse_answer, question
from dreamgym.core.errors import ContextOverflowError, ModelOutputError
from dreamgym.core.policy_prompt import one_line
from dreamgym.experience.engines import LoadedModel
from dreamgym.inference.engine import Engine, Generation, GenerationRequest

STOP = ("# continue\n", "# success\n", "# failure\n", "\n>", "\n~")
"""The flags end an answer; the last two end one that has run on into another turn, which is malformed anyhow."""
RETRY_TEMPERATURE = 0.3
REFUSAL_WORDS = ("impossible", "invalid")
CONTRADICTED_TRUST = 0.5
"""Factor on the confidence of a step that contradicts what its episode has established."""
CONTRADICTIONS = Counter(
    "dreamgym_dream_contradictions", "Steps that contradict what their episode has established, twice in a row."
)


@dataclass(frozen=True)
class Predicted:
    """A read answer with what it cost.

    `confidence` is the geometric mean probability of the state's tokens, less for a contradiction.
    """

    outcome: Outcome
    confidence: float
    valid_action: bool
    prompt_tokens: int
    completion_tokens: int


class MainChain:
    """Token ids of the prompt's stable part: they are only appended to, until the window forces the oldest turns out.

    Truncation keeps the opening (sheet, task, first state) and drops a block of turns from the middle, so that it happens
    seldom and the engine's prefix cache is lost seldom.
    """

    def __init__(self, engine: Engine, opening: str) -> None:
        self._engine = engine
        self._opening = engine.encode(opening)
        self._turns: list[list[int]] = []
        self._first = 0
        self._ids = list(self._opening)

    def append(self, turn: str) -> None:
        ids = self._engine.encode(turn)
        self._turns.append(ids)
        self._ids += ids

    def fitting(self, room: int) -> list[int]:
        """The chain's ids in at most `room` tokens. Raises ContextOverflowError if the opening alone is longer."""
        if len(self._ids) > room:
            target = len(self._opening) + (room - len(self._opening)) * 3 // 4
            while self._first < len(self._turns) and self._length() > target:
                self._first += 1
            self._ids = [*self._opening, *(token for turn in self._turns[self._first :] for token in turn)]
        if len(self._ids) > room:
            raise ContextOverflowError(
                f"The opening of this episode has {len(self._opening)} tokens; the experience model has room for {room}.",
                remedy="Use a model with a longer context window, or fewer retrieved transitions.",
            )
        return self._ids

    def _length(self) -> int:
        return len(self._opening) + sum(len(turn) for turn in self._turns[self._first :])


async def predict(
    model: LoadedModel,
    session: str,
    chain: MainChain,
    action: str,
    demonstrations: Sequence[Demonstration],
    *,
    seed: int,
    world: TrackedWorld | None = None,
) -> Predicted:
    """Ask the model for one transition, greedily; a malformed answer is asked for once more with another seed.

    So is one whose listing contradicts the tracked world; if the second does too, the first one counts, is counted as a
    contradiction and is trusted less. An action that the
    tracked world refuses is not asked at all: the answer is the environment's refusal.

    Raises ModelOutputError if the second answer is malformed too, ContextOverflowError, EngineError.
    """
    engine, card = model.engine, model.card
    why = world.refuses(action) if world else ""
    if why:
        return Predicted(Outcome(f"impossible: {why}.", card.refusals[0], "continue"), 1.0, False, 0, 0)
    asked = engine.encode(question(action, demonstrations, reasoning=card.reasoning))
    window = min(card.context_window, engine.context_window)
    prompt = [*chain.fitting(window - len(asked) - card.max_new_tokens), *asked]
    first = GenerationRequest(session, prompt, card.max_new_tokens, STOP, 0.0, seed)
    second = GenerationRequest(session, prompt, card.max_new_tokens, STOP, RETRY_TEMPERATURE, seed + 1)
    spent = 0
    fault: ModelOutputError | None = None
    kept: Predicted | None = None
    for request in (first, second):
        generation = await engine.generate(request)
        spent += len(generation.token_ids)
        text = generation.text or engine.decode(generation.token_ids)
        try:
            outcome = parse_answer(text, reasoning=card.reasoning)
        except ModelOutputError as error:
            fault = error
            continue
        valid = not is_refusal(outcome, card.refusals)
        read = Predicted(outcome, state_confidence(model, generation), valid, len(prompt), spent)
        if world is None or not valid or not world.contradicts(action, outcome):
            return read
        kept = kept or read
    if kept is not None:
        CONTRADICTIONS.inc()
        return replace(kept, completion_tokens=spent, confidence=CONTRADICTED_TRUST * kept.confidence)
    assert fault is not None
    raise fault


def is_refusal(outcome: Outcome, refusals: Sequence[str]) -> bool:
    """True if the predicted state is the environment's refusal, or the reasoning says that the action is impossible."""
    first = outcome.reasoning.partition(" ")[0].strip(":;,.").casefold()
    return one_line(outcome.next_state) in {one_line(text) for text in refusals} or first in REFUSAL_WORDS


def state_confidence(model: LoadedModel, generation: Generation) -> float:
    """exp(mean log-probability) of the tokens between the state's `=` and the flag's `#`."""
    pieces = [model.piece(token) for token in generation.token_ids]
    text = "".join(pieces)
    start = text.find("\n=") + 1 if "\n=" in text else 0
    end = text.rfind("\n#")
    at, chosen = 0, []
    for piece, logprob in zip(pieces, generation.logprobs, strict=False):
        if at >= start and (end < 0 or at <= end):
            chosen.append(logprob)
        at += len(piece)
    return math.exp(sum(chosen) / len(chosen)) if chosen else 0.0
