"""TextWorld's PDDL environment with the work that does not change between resets kept.

The stock environment translates the problem four times per episode (twice in `load`, twice in `reset`, one of each
only for a planner), parses the text grammar with every game, and derives the text of every applicable action at every
step. Here the grammar is parsed once per process, a problem is translated once while it stays among the last used
ones, and command texts are kept, because they depend on names and places that never change within a game.
Observations, commands, goal test and their order are the stock ones; an integration test holds the two together.

Import through `alfworld_engine`, which makes sure that the package is there.
"""

from __future__ import annotations

import re
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import fast_downward  # type: ignore[import-not-found,import-untyped,unused-ignore]
from textworld.core import Environment, GameState
from textworld.envs.pddl.logic import Atom, GameLogic, PddlState
from textworld.envs.pddl.pddl import PddlEnv
from textworld.logic import Proposition, Type, Variable

_GOAL_LINE = re.compile(r"Your task is to: (?P<goal>[^\"]*?)\.?\"")
# The stock template asks for the names of all r at the place walked to, but r is bound by then: it is its own name.
_PLAIN_TEMPLATES = {"go to [{r.name | receptacleatlocation(r:receptacle, lend:location)}]": "go to {r}"}
_KEPT_TRANSLATIONS = 64
_translations: OrderedDict[tuple[str, str], tuple[Any, str]] = OrderedDict()
_logics: dict[tuple[str, str], Any] = {}
# The planner's libraries that no environment holds. They are never unloaded: all copies in a process share one table
# of options (a unique symbol), which would keep pointers into an unloaded copy and crash at the next load or at exit.
_free_libraries: list[Any] = []


def _translate(domain: str, problem: str) -> tuple[Any, str]:
    key = (domain, problem)
    if key not in _translations:
        arguments = sys.argv  # the translator overwrites them for its own option parser
        try:
            _translations[key] = fast_downward.pddl2sas(domain, problem, verbose=False)
        finally:
            sys.argv = arguments
        while len(_translations) > _KEPT_TRANSLATIONS:
            _translations.popitem(last=False)
    _translations.move_to_end(key)
    return _translations[key]


def _logic(domain: str, grammar: str) -> Any:
    key = (domain, grammar)
    if key not in _logics:
        _logics[key] = GameLogic(domain=domain, grammar=grammar)
    return _logics[key]


class CachedPddlState(PddlState):  # type: ignore[misc]
    """`PddlState` built from a kept translation, without the second one that only a planner needs."""

    def __init__(self, downward_lib: Any, pddl_problem: str, logic: Any) -> None:
        # Deliberately not PddlState.__init__, which translates the problem twice; the fields are the same.
        self._facts: defaultdict[Any, set[Any]] = defaultdict(set)
        self._vars_by_name: dict[str, Any] = {}
        self._vars_by_type: defaultdict[Any, set[Any]] = defaultdict(set)
        self._var_counts: Counter[str] = Counter()
        self._logic = logic
        self.downward_lib = downward_lib
        self.pddl_problem = pddl_problem
        self.task, self.sas = _translate(logic.domain, pddl_problem)
        self._actions = {action.name: action for action in self.task.actions}
        known = {kind.name for kind in logic.types}
        for kind in self.task.types:
            if kind.name not in known:  # `object` comes twice
                known.add(kind.name)
                logic.types.add(Type(kind.name, kind.supertype_names))
        self.downward_lib.load_sas(self.sas.encode())
        self.name2type = {entity.name: entity.type_name for entity in self.task.objects}
        atoms = (Atom * self.downward_lib.get_state_size())()
        self.downward_lib.get_state(atoms)
        self.add_facts(self._initial_facts())
        self.add_facts(fact for atom in atoms if not (fact := atom.get_fact(self.name2type)).is_negation)

    def _initial_facts(self) -> Iterator[Any]:
        for atom in self.task.init:
            if isinstance(atom, fast_downward.translate.pddl.conditions.Atom) and atom.predicate != "=":
                yield Proposition(atom.predicate, [Variable(name, self.name2type[name]) for name in atom.args])


class CachedPddlEnv(PddlEnv):  # type: ignore[misc]
    """Drop-in for `textworld.envs.PddlEnv` for games given as mappings; offers no `policy_commands`.

    `goal_text` is the instruction found in the loaded game's grammar.
    """

    goal_text: str = ""
    downward_lib: Any
    _pddl_state: CachedPddlState

    def __init__(self, infos: Any = None) -> None:
        # Deliberately not PddlEnv.__init__, which loads another copy of the library for every environment.
        Environment.__init__(self, infos)
        self.downward_lib = _free_libraries.pop() if _free_libraries else fast_downward.load_lib()

    def load(self, filename_or_data: Mapping[str, Any]) -> None:
        """Take a game as the mapping that a game file holds."""
        self._game_file = None
        self._game_data = filename_or_data
        self.walkthrough = filename_or_data.get("walkthrough")
        grammar = str(filename_or_data["grammar"])
        found = _GOAL_LINE.search(grammar)
        self.goal_text = found["goal"] if found else ""
        if found:  # one parsed grammar for all games: the goal is their only difference
            grammar = grammar[: found.start("goal")] + "UNKNOWN GOAL" + grammar[found.end("goal") :]
        self._logic = _logic(str(filename_or_data["pddl_domain"]), grammar)
        self._new_state()
        self._entity_infos = self._get_entity_infos()
        self._commands: dict[str, str] = {}
        self._fresh = True

    def reset(self) -> Any:
        """Start the loaded game anew."""
        if not self._fresh:
            self._new_state()
        self._fresh = False
        self.prev_state = None
        self.state = GameState()
        self._last_action = None
        self._moves = 0
        context = {
            "state": self._pddl_state,
            "facts": list(self._pddl_state.facts),
            "variables": {},
            "mapping": {},
            "entity_infos": self._entity_infos,
        }
        self.state.feedback = self._logic.grammar.derive("#intro#", context)
        self.state.raw = self.state.feedback
        self._gather_infos()
        return self.state

    def close(self) -> None:
        """Hand this environment's copy of the planner's library to the next environment of this process."""
        if self.downward_lib is not None:
            self.downward_lib.cleanup()
            _free_libraries.append(self.downward_lib)
            self.downward_lib = None

    def _new_state(self) -> None:
        self._pddl_state = CachedPddlState(self.downward_lib, self._game_data["pddl_problem"], self._logic)

    def _gather_infos(self) -> None:
        facts = list(self._pddl_state.facts)
        self.state["won"] = self._pddl_state.check_goal()
        self.state["lost"] = False
        self.state["_entity_infos"] = self._entity_infos
        self.state["_facts"] = facts
        if self.request_infos.facts:
            self.state["facts"] = [self._get_human_readable_fact(fact) for fact in facts]
        self.state["_last_action"] = self._last_action
        actions = list(self._pddl_state.all_applicable_actions())
        commands = []
        for action in actions:
            key = f"{action.name} {' '.join(variable.name for variable in action.mapping.values())}"
            if key not in self._commands:
                self._commands[key] = self._command(action, facts)
            commands.append(self._commands[key])
        self.state["_valid_actions"] = actions
        self.state["_valid_commands"] = commands
        self.state["admissible_commands"] = sorted(set(commands))
        if self.request_infos.moves:
            self.state["moves"] = self._moves

    def _command(self, action: Any, facts: list[Any]) -> str:
        names = {placeholder.name: self._entity_infos[v.name].name for placeholder, v in action.mapping.items()}
        template = _PLAIN_TEMPLATES.get(action.command_template, action.command_template)
        if not any(sign in template for sign in "[#|"):
            return str(template.format(**names))
        context = {
            "state": self._pddl_state,
            "facts": facts,
            "variables": {placeholder.name: self._entity_infos[v.name] for placeholder, v in action.mapping.items()},
            "mapping": action.mapping,
            "entity_infos": self._entity_infos,
        }
        action.command_template = self._logic.grammar.derive(template, context)
        return str(action.format_command({name: info.name for name, info in self._entity_infos.items()}))
