r"""The success of a household game as a program over what can be read in the transcript, without the engine.

A criterion is JSON: `{"all": [...]}`, `{"any": [...]}`, `{"not": node}` and
`{"regex": {"over": "transcript", "pattern": "..."}}`. The transcript is the text of all turns from the first action to
now, each `> action\nobservation\n`. Patterns are for `search` of the `regex` module, whether or not a dot matches the end
of a line and case counts; multi-line mode is set inside. They start at the beginning of a line, so that the text of an
action, which follows `> `, never counts.

The same criterion judges imagined worlds, so it names classes only, never the places that one game's room has:
identity (the mug that was cleaned is the mug that was placed) is kept by back-references. It states what is true at the
end of the transcript: a thing taken out again no longer counts, nor does the heat of a thing that was cooled later.
"""

from __future__ import annotations

from typing import Any

from dreamgym.bridge.adapters.household_games import GameSpec

Criterion = dict[str, Any]

_LINE = r"[^\n]*\n"
# ALFWorld 0.3 and older texts say `put ... in/on`.
_MOVE = r"You (?:move|put) the"
_TO = r"(?:to|in/on) the"


def success_criterion(spec: GameSpec) -> Criterion:
    """The criterion of a generated game."""
    return criterion_for(spec.task_type, thing=spec.object, receptacle=spec.receptacle, lamp=spec.lamp)


def criterion_for(task_type: str, *, thing: str, receptacle: str = "", lamp: str = "") -> Criterion:
    """The criterion of a task given by ALFRED's class names, as official games give it in their `pddl_params`.

    Raises `KeyError` for a task type that ALFWorld's text games do not have.
    """
    thing, receptacle, lamp = thing.lower(), receptacle.lower(), lamp.lower()
    if task_type == "look_at_obj_in_light":
        return {"all": [_regex(_at_a_used_lamp(lamp)), _regex(_holding(thing))]}
    if task_type == "pick_two_obj_and_place":
        return {"any": [_regex(_two_placed(thing, receptacle)), _regex(_one_seen_one_placed(thing, receptacle))]}
    if task_type == "pick_and_place_simple":
        return _regex(_placed(rf"(?P<o>{thing} \d+)", receptacle))
    done, undone = {
        "pick_clean_then_place_in_recep": (r"You clean the {} using the sinkbasin \d+\.", ""),
        "pick_heat_then_place_in_recep": (r"You heat the {} using the microwave \d+\.", "You cool the {} using"),
        "pick_cool_then_place_in_recep": (r"You cool the {} using the fridge \d+\.", "You heat the {} using"),
    }[task_type]
    kept = rf"(?:(?!{undone.format('(?P=o)')}){_LINE})*?" if undone else rf"(?:{_LINE})*?"
    return _regex(
        "^" + done.format(rf"(?P<o>{thing} \d+)") + _LINE + kept + _placed("(?P=o)", receptacle).removeprefix("^")
    )


def _regex(pattern: str) -> Criterion:
    return {"regex": {"over": "transcript", "pattern": f"(?m){pattern}"}}


def _until_end(*forbidden: str) -> str:
    """All remaining lines, none of which begins with one of the given texts."""
    return rf"(?:(?!{'|'.join(forbidden)}){_LINE})*\Z"


def _placed(thing: str, receptacle: str) -> str:
    return rf"^{_MOVE} {thing} {_TO} {receptacle} \d+\.{_LINE}" + _until_end("You pick up the (?P=o) from")


def _holding(thing: str) -> str:
    return rf"^You pick up the (?P<o>{thing} \d+) from {_LINE}" + _until_end(rf"{_MOVE} (?P=o) ")


def _at_a_used_lamp(lamp: str) -> str:
    """The lamp was used where we then stood, and there we stand now; the engine never asks for more."""
    stay = rf"(?:(?!You arrive at ){_LINE})*"
    return (
        rf"^You arrive at (?P<p>[a-z]+ \d+)\.{_LINE}{stay}?You turn (?:on|off) the {lamp} \d+\.{_LINE}"
        rf"(?:(?:{_LINE})*?You arrive at (?P=p)\.{_LINE})?{stay}\Z"
    )


def _two_placed(thing: str, receptacle: str) -> str:
    return (
        rf"^{_MOVE} (?P<a>{thing} \d+) {_TO} (?P<r>{receptacle} \d+)\.{_LINE}"
        rf"(?:(?!You pick up the (?P=a) from){_LINE})*?" + _second_placed("a", thing)
    )


def _one_seen_one_placed(thing: str, receptacle: str) -> str:
    """One lay there already, which a listing of that receptacle told."""
    listing = (
        rf"^(?:(?:You arrive at [a-z]+ \d+\. )?On the (?P<r>{receptacle} \d+), you see"
        rf"|(?:You (?:arrive at|open the) [a-z]+ \d+\. )?The (?P<r>{receptacle} \d+) is open\. In it, you see)"
    )
    return (
        rf"{listing}(?: [^\n]*)? a (?P<a>{thing} \d+)(?!\d){_LINE}"
        rf"(?:(?!You pick up the (?P=a) from){_LINE})*?" + _second_placed("a", thing)
    )


def _second_placed(first: str, thing: str) -> str:
    return rf"{_MOVE} (?P<b>(?!(?P={first}) ){thing} \d+) {_TO} (?P=r)\.{_LINE}" + _until_end(
        rf"You pick up the (?P={first}) from", "You pick up the (?P=b) from"
    )
