"""How an episode is written for the policy.

The plain layout, for small models of the platform's own base:

    Task: {instruction}
    {initial state}
    > {action}
    {state}
    > ...

Each turn's prompt extends the previous one, so that sampled token ids stay the training record; an action ends with a
newline, which is sampled (and trained) too. Every text of an environment takes exactly one line, so that it cannot imitate
another line of the layout. Layouts for chat models build on the tokenizer's own chat template and live
beside the engine.
"""

from __future__ import annotations

from collections.abc import Sequence

ACTION_PREFIX = ">"
"""A prompt ends here, without a space: in byte-pair vocabularies a space belongs to the word after it."""
END_OF_ACTION = "\n"


def opening(instruction: str, initial_state: str) -> str:
    """Text before the first action, up to and including the action prefix."""
    return f"Task: {one_line(instruction)}\n{one_line(initial_state)}\n{ACTION_PREFIX}"


def after_action(state: str) -> str:
    """Text that follows a sampled action (whose end-of-turn is already there), up to the next action."""
    return f"{one_line(state)}\n{ACTION_PREFIX}"


def transcript(instruction: str, initial_state: str, turns: Sequence[tuple[str, str]]) -> str:
    """A whole episode of (action, state) turns as the policy sees it."""
    text = f"Task: {one_line(instruction)}\n{one_line(initial_state)}\n"
    return text + "".join(f"{ACTION_PREFIX}{said(action)}{one_line(state)}\n" for action, state in turns)


def said(action: str) -> str:
    """An action as the policy writes it after the prefix, end of turn included."""
    return f" {one_line(action)}{END_OF_ACTION}"


def one_line(text: str) -> str:
    """Collapse white space, so that no text of an environment can imitate a line of the layout."""
    return " ".join(text.split())
