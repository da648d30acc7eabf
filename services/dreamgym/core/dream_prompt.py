"""How the experience model reads and writes a transition (METHOD section 3), in the plain layout.

The main chain is append-only, so the engine's prefix cache holds:

    World: {place}: {thing}, {thing}; {place}: nothing       (the world sheet; left out where there is none)
    Task: {instruction}
    {initial state}
    > {action}
    {state}

A step branches off it; retrieved demonstrations and the current action come last:

    ~ > {demonstrated action} = {its next state}
    > {action}
    ? {reasoning}
    = {next state}
    # continue | success | failure

After the step only the action and the state join the main chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dreamgym.core.errors import ModelOutputError
from dreamgym.core.policy_prompt import one_line

FLAGS = ("continue", "success", "failure")
END_OF_OUTPUT = "\n"


@dataclass(frozen=True)
class Demonstration:
    """A stored transition shown to the model: what a similar action led to."""

    action: str
    next_state: str


@dataclass(frozen=True)
class Outcome:
    """What the model wrote for one step."""

    reasoning: str
    next_state: str
    flag: str

    @property
    def success(self) -> bool:
        return self.flag == "success"

    @property
    def done(self) -> bool:
        return self.flag != "continue"


def main_chain(instruction: str, initial_state: str, turns: Sequence[tuple[str, str]], world_sheet: str = "") -> str:
    """The stable, append-only part of the prompt."""
    text = f"World: {one_line(world_sheet)}\n" if world_sheet else ""
    text += f"Task: {one_line(instruction)}\n{one_line(initial_state)}\n"
    return text + "".join(turn_text(action, state) for action, state in turns)


def turn_text(action: str, state: str) -> str:
    """What one finished turn adds to the main chain."""
    return f"> {one_line(action)}\n{one_line(state)}\n"


def question(action: str, demonstrations: Sequence[Demonstration] = (), *, reasoning: bool = True) -> str:
    """The branch's prompt: demonstrations, the action, and the prefix of the line that the model writes first."""
    shown = "".join(f"~ > {one_line(d.action)} = {one_line(d.next_state)}\n" for d in demonstrations)
    return f"{shown}> {one_line(action)}\n{'?' if reasoning else '='}"


def answer(outcome: Outcome, *, reasoning: bool = True) -> str:
    """The branch's completion: what training teaches the model to write after `question`."""
    state = one_line(outcome.next_state)
    body = f" {one_line(outcome.reasoning)}\n= {state}\n" if reasoning else f" {state}\n"
    return f"{body}# {outcome.flag}\n"


def is_complete(completion: str) -> bool:
    """True once the flag line is written: the engine may stop there."""
    return completion.endswith("\n") and completion.rstrip("\n").rpartition("\n")[2].startswith("#")


def parse_answer(completion: str, *, reasoning: bool = True) -> Outcome:
    """Read a completion. Repairs what is unambiguous (missing final newline, white space, letter case of the flag).

    Raises ModelOutputError for everything else: malformed output never becomes a state.
    """
    lines = [line.strip() for line in completion.strip().split("\n")]
    # Reasoning may be empty: then the first line is, and stripping has removed it.
    wordless = completion.lstrip(" ").startswith("\n") and lines[0].startswith("=")
    trace = lines.pop(0) if reasoning and not wordless else ""
    if not reasoning:
        lines[0] = "= " + lines[0]
    if len(lines) < 2 or not lines[0].startswith("=") or not lines[-1].startswith("#"):
        raise ModelOutputError(
            f"The experience model wrote no transition: {completion[:200]!r}.",
            remedy="Train the experience model longer, or raise its token limit.",
        )
    flag = lines[-1][1:].strip().casefold()
    if flag not in FLAGS:
        raise ModelOutputError(f"The experience model wrote the unknown flag {flag[:40]!r}.", remedy=f"Known: {FLAGS}.")
    state = " ".join([lines[0][1:].strip(), *lines[1:-1]]).strip()
    if not state:
        raise ModelOutputError("The experience model wrote an empty state.", remedy="Retry with another seed.")
    return Outcome(reasoning=trace, next_state=state, flag=flag)


def sheet_question(instruction: str, initial_state: str) -> str:
    """Prompt that asks the model for a world sheet."""
    return f"Task: {one_line(instruction)}\n{one_line(initial_state)}\nWorld:"
