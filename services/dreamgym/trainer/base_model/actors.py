"""Who plays the procedural worlds: an expert that searches, the same with slips, and a random actor."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from dreamgym.trainer.base_model.phrases import TRANSFORMS
from dreamgym.trainer.base_model.worlds import Action, Outcome, World, class_of


@dataclass(frozen=True)
class Step:
    """One played action: its text, what followed, and whether the expert itself chose it."""

    action: Action
    text: str
    outcome: Outcome
    by_expert: bool


@dataclass
class Searcher:
    """An efficient expert: it knows only what it has seen, visits unseen places, remembers, and never repeats."""

    rng: random.Random
    in_order: bool
    order: list[str] = field(default_factory=list)

    def act(self, world: World) -> Action:
        """The next action toward the goal from whatever situation the world is in."""
        goal = world.goal
        if not self.order:
            self.order = list(world.places)
            if not self.in_order:
                self.rng.shuffle(self.order)
        if world.holding and class_of(world.holding) != goal.thing_class:
            return self._put_away(world)
        if not world.holding:
            return self._fetch(world)
        if goal.family == "use":
            return self._use(world)
        if goal.transform and world.marks.get(world.holding) != goal.transform.adjective:
            tool = self._nearest(world, goal.transform.tool)
            if world.at != tool:
                return Action("goto", place=tool)
            return Action("transform", thing=world.holding, place=tool, verb=goal.transform.verb)
        target = self._target(world)
        return self._enter(world, target) or Action("put", thing=world.holding, place=target)

    def _enter(self, world: World, place: str) -> Action | None:
        if world.at != place:
            return Action("goto", place=place)
        return Action("open", place=place) if place in world.closed else None

    def _put_away(self, world: World) -> Action:
        here = world.at or self.order[0]
        return self._enter(world, here) or Action("put", thing=world.holding, place=here)

    def _nearest(self, world: World, kind: str) -> str:
        if class_of(world.at) == kind:
            return world.at
        return next(place for place in self.order if class_of(place) == kind)

    def _target(self, world: World) -> str:
        goal = world.goal
        kept = [place for place in self.order if self._done_at(world, place)]
        return kept[0] if kept else self._nearest(world, goal.target_class)

    def _done_at(self, world: World, place: str) -> bool:
        goal = world.goal
        if class_of(place) != goal.target_class or place not in world.seen:
            return False
        return any(class_of(thing) == goal.thing_class and self._fits(world, thing) for thing in world.contents[place])

    def _fits(self, world: World, thing: str) -> bool:
        goal = world.goal
        return goal.transform is None or world.marks.get(thing) == goal.transform.adjective

    def _fetch(self, world: World) -> Action:
        goal = world.goal
        kept = next((place for place in self.order if self._done_at(world, place)), "") if goal.count == 2 else ""
        known = [world.at] if world.at in world.seen else []
        known += [place for place in self.order if place in world.seen and place != world.at]
        for place in known:
            if place == kept:
                continue
            for thing in world.contents[place]:
                if class_of(thing) == goal.thing_class:
                    return self._enter(world, place) or Action("take", thing=thing, place=place)
        return self._search(world)

    def _search(self, world: World) -> Action:
        if world.at and world.at not in world.seen:
            return Action("open", place=world.at) if world.at in world.closed else Action("look")
        for place in self.order:
            if place not in world.seen:
                return self._enter(world, place) or Action("look")
        return Action("look")

    def _use(self, world: World) -> Action:
        for place in [world.at, *self.order]:
            if place in world.seen:
                for thing in world.contents[place]:
                    if class_of(thing) == world.goal.target_class:
                        return self._enter(world, place) or Action("use", thing=thing)
        return self._search(world)


def random_action(rng: random.Random, world: World) -> Action:
    """Any action on names of this world or, rarely, others: often impossible, sometimes not even a command."""
    things = [thing for listed in world.contents.values() for thing in listed]
    if world.holding:
        things.append(world.holding)
    here = world.visible()
    kind = rng.choices(
        (
            "goto",
            "open",
            "close",
            "take",
            "put",
            "transform",
            "use",
            "look",
            "inventory",
            "examine",
            "malformed",
            "quit",
        ),
        (22, 8, 6, 20, 14, 10, 5, 4, 3, 5, 3, 0.4),
    )[0]
    place = world.at if world.at and kind != "goto" and rng.random() < 0.75 else rng.choice(world.places)
    thing = rng.choice(here) if here and rng.random() < 0.6 else rng.choice(things)
    if world.holding and kind in ("put", "transform") and rng.random() < 0.75:
        thing = world.holding
    if rng.random() < 0.06:
        stranger = f"{rng.choice(world.wording.object_classes)} {rng.randint(1, 6)}"
        place, thing = (stranger, thing) if rng.random() < 0.5 else (place, stranger)
    if kind == "transform":
        transform = rng.choice(world.wording.transforms)
        tools = [p for p in world.places if class_of(p) == transform.tool]
        if tools and rng.random() < 0.5:
            place = rng.choice(tools)
        return Action(kind, thing=thing, place=place, verb=transform.verb)
    if kind == "use" and world.devices and rng.random() < 0.6:
        thing = rng.choice(sorted(world.devices))
    if kind == "examine" and rng.random() < 0.3:
        thing = place
    if kind == "malformed":
        return Action(kind, text=_malformed_text(rng, world, thing, place))
    return Action(kind, thing=thing, place=place)


def _malformed_text(rng: random.Random, world: World, thing: str, place: str) -> str:
    unknown = rng.choice(
        [verb for verb, _ in TRANSFORMS if all(verb != t.verb for t in world.wording.transforms)]
        + ["eat", "throw", "kick", "talk to", "jump on", "read"]
    )
    return rng.choice(
        (
            f"{unknown} {thing}",
            f"{unknown} {thing} with {place}",
            class_of(thing),
            thing,
            "go",
            "take",
            f"take {class_of(place)}",
            "wait",
        )
    )


def useful_action(rng: random.Random, world: World) -> Action:
    """A random action, redrawn a few times while it is impossible, so that play moves on."""
    action = random_action(rng, world)
    for _ in range(3):
        if not world.obstacle(action):
            break
        action = random_action(rng, world)
    return action


def play(rng: random.Random, world: World, actor: str, limit: int = 24) -> list[Step]:
    """Play `world` to its end or `limit` with the `expert`, the `noisy` expert or the `random` actor; mutates it."""
    searcher = Searcher(rng, in_order=rng.random() < 0.35)
    slip = {"expert": 0.0, "noisy": rng.uniform(0.1, 0.35), "random": 1.0}[actor]
    steps: list[Step] = []
    while len(steps) < limit:
        by_expert = rng.random() >= slip
        if by_expert:
            action = searcher.act(world)
        else:
            action = useful_action(rng, world) if rng.random() < 0.6 else random_action(rng, world)
        text = world.render(action)
        outcome = world.step(action)
        steps.append(Step(action, text, outcome, by_expert))
        if outcome.flag != "continue":
            break
    return steps
