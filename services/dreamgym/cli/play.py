"""`dreamgym play`: walk through the dream, or through the real environment, by hand."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from dreamgym.cli.connection import connect
from dreamgym.cli.output import AsJson, print_json
from dreamgym.client import DreamGym, PlaySession
from dreamgym.client.values import Observation
from dreamgym.core.errors import InvalidInputError, NotFoundError

_HELP = (
    ":sheet shows the dream's hidden facts, :similar the stored steps that grounded the last one, :actions what is possible, "
    ":task the task, :quit ends."
)
_CHOICE = 100
"""How many tasks the default choice is made from."""


def play(
    context: typer.Context,
    environment: Annotated[str, typer.Argument(help="Name or id of the environment.")],
    real: Annotated[bool, typer.Option("--real", help="Act in the real environment instead of the dream.")] = False,
    task: Annotated[str | None, typer.Option(help="Id of the task (default: one of the split by chance).")] = None,
    split: Annotated[str, typer.Option(help="Split to choose a task from.")] = "test",
    instruction: Annotated[str, typer.Option(help="A task of your own instead, with --initial-state.")] = "",
    initial_state: Annotated[str, typer.Option(help="The first state of your own task.")] = "",
    seed: Annotated[int | None, typer.Option(help="Fixes the choice of the task and the world.")] = None,
    experience_model: Annotated[str, typer.Option(help="Which dream: latest, an id or a version.")] = "latest",
    budget: Annotated[int, typer.Option(min=1, help="Real steps that may be taken, with --real.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Play an environment by hand. Actions come from the terminal, or line by line from standard input."""
    seed = random.randrange(2**31) if seed is None else seed
    with connect(context) as client:
        if not instruction:
            task = task or _choose(client, environment, split, seed)
        elif not initial_state:
            raise InvalidInputError(
                "--instruction needs --initial-state.", remedy="Describe what the agent sees at first."
            )
        session = client.play(
            environment,
            real=real,
            task_id=None if instruction else task,
            instruction=instruction,
            initial_state=initial_state,
            seed=seed,
            experience_model=experience_model,
            transition_budget=budget,
        )
        with session:
            view = _JsonView() if as_json else _TextView(real, partial(client.environments.transitions, environment))
            view.start(session)
            for line in _lines(prompt="" if as_json else "> "):
                if _turn(session, line, view):
                    break
            view.end(session)


def _turn(session: PlaySession, line: str, view: _TextView | _JsonView) -> bool:
    """Obey one line; True when the episode is over."""
    if line in (":quit", ":q", ":exit"):
        return True
    if line.startswith(":"):
        view.aside(session, line)
        return False
    if not line:
        return False
    view.step(line, session.act(line))
    return session.observation.done


def _choose(client: DreamGym, environment: str, split: str, seed: int) -> str:
    ids = [str(task["id"]) for task in client.environments.tasks(environment, split=split, limit=_CHOICE)]
    if not ids:
        raise NotFoundError(
            f"The environment {environment!r} has no task of split {split!r}.",
            remedy="Name another --split, upload tasks with `dreamgym task add`, or give --instruction.",
        )
    return random.Random(seed).choice(ids)


def _lines(prompt: str) -> Iterator[str]:
    """Lines of a person at a terminal, with a prompt, or of a pipe, echoed so that the transcript reads whole."""
    person = sys.stdin.isatty()
    while True:
        try:
            line = input(prompt if person else "").strip()
        except EOFError:
            if person:
                print()
            return
        if not person and prompt:
            print(f"{prompt}{line}")
        yield line


class _TextView:
    """Shows an episode to a person."""

    def __init__(self, real: bool, stored: Callable[[list[int]], list[dict[str, Any]]]) -> None:
        """`stored` answers stored steps by their ids."""
        self._real = real
        self._stored = stored
        self._console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)

    def start(self, session: PlaySession) -> None:
        start = session.start
        place = "the real environment" if self._real else f"the dream ({start.model_version})".replace(" ()", "")
        self._console.print(Text(f"You are in {place}. {_HELP}", style="dim"))
        self._console.print(Text("Task: ", style="bold").append(start.instruction, style="not bold"))
        if start.action_format:
            self._console.print(Text(start.action_format, style="dim"))
        self._console.print(Text(start.state))

    def step(self, action: str, seen: Observation) -> None:
        if seen.reasoning:
            self._console.print(Text(f"  ({seen.reasoning})", style="dim italic"))
        self._console.print(Text(seen.state, style="" if seen.valid_action else "yellow"))
        facts = [f"reward {seen.reward:g}"]
        if not self._real and seen.confidence is not None:
            facts.append(f"confidence {seen.confidence:.0%}")
        if not seen.valid_action:
            facts.append("the action was refused")
        if seen.retrieved:
            facts.append(f"grounded in {len(seen.retrieved)} stored steps")
        if seen.done:
            facts.append(f"the episode is over: {seen.termination or ('success' if seen.success else 'failure')}")
        self._console.print(Text(f"  {', '.join(facts)}", style="green" if seen.success else "cyan"))

    def aside(self, session: PlaySession, command: str) -> None:
        if command == ":sheet":
            sheet = session.start.world_sheet or "There is no world sheet here."
            self._console.print(Text(sheet.replace("; ", "\n"), style="magenta"))
        elif command == ":similar":
            for step in self._stored(session.observation.retrieved):
                self._console.print(Text(f"[{step['source']}] > {step['action']}", style="magenta"))
                self._console.print(Text(f"  {step['next_state']}", style="" if step["valid_action"] else "yellow"))
            if not session.observation.retrieved:
                self._console.print(Text("No stored step grounded this one."))
        elif command == ":actions":
            actions = session.observation.admissible_actions
            self._console.print(Text("\n".join(actions) or "This environment does not list its actions."))
        elif command == ":task":
            self._console.print(Text(session.start.instruction))
        else:
            self._console.print(Text(_HELP, style="dim"))

    def end(self, session: PlaySession) -> None:
        if not session.observation.done:
            self._console.print(Text("You left the episode before its end.", style="dim"))


class _JsonView:
    """Writes an episode for a program, as one document of the API's own answers."""

    def __init__(self) -> None:
        self._steps: list[dict[str, Any]] = []
        self._start: dict[str, Any] = {}

    def start(self, session: PlaySession) -> None:
        self._start = session.start.to_json()

    def step(self, action: str, seen: Observation) -> None:
        self._steps.append({"action": action, **seen.to_json()})

    def aside(self, session: PlaySession, command: str) -> None:
        """Commands are for people; a program has the same facts in the document."""

    def end(self, session: PlaySession) -> None:
        print_json({"start": self._start, "steps": self._steps})
