"""Short dense exercises in copying and looking up, for the first steps of pretraining.

In a transcript only a small part of the tokens can be copied from above, so the attention heads that copy form late.
In a drill nearly every scored token can be; a model that has done some hundred steps of them starts to read
transcripts at once instead of memorising phrases.
"""

from __future__ import annotations

import random

from dreamgym.trainer.base_model.english import WORDS
from dreamgym.trainer.base_model.layout import Piece, Sample
from dreamgym.trainer.base_model.nouns import NOUNS


def drill(rng: random.Random) -> Sample:
    """A line said twice, or a sheet and questions to it."""
    return _repeat(rng) if rng.random() < 0.4 else _look_up(rng)


def _names(rng: random.Random, count: int) -> list[str]:
    nouns = rng.sample(NOUNS, max(2, count // 2))
    names = [f"{noun} {number}" for noun in nouns for number in range(1, 7)]
    return rng.sample(names, count)


def _repeat(rng: random.Random) -> Sample:
    names = _names(rng, rng.randint(4, 12)) + rng.sample(WORDS, rng.randint(0, 8))
    rng.shuffle(names)
    line = rng.choice((" ", ", ", "; ", " and ")).join(names)
    pieces = [Piece(f"~ {line}\n", 0.0)]
    pieces.extend(Piece(f"= {line}\n", 1.0) for _ in range(rng.randint(1, 2)))
    return Sample("drill", pieces)


def _look_up(rng: random.Random) -> Sample:
    places = _names(rng, rng.randint(2, 7))
    things = [name for name in _names(rng, rng.randint(4, 14)) if name not in places]
    held: dict[str, list[str]] = {place: [] for place in places}
    for thing in things:
        held[rng.choice(places)].append(thing)
    lists = {place: ", ".join(found) or "nothing" for place, found in held.items()}
    pieces = [Piece("World: " + "; ".join(f"{place}: {lists[place]}" for place in places) + "\n", 0.0)]
    verb = rng.choice(("go to", "walk to", "open", "look at", "visit"))
    for _ in range(rng.randint(3, 8)):
        if rng.random() < 0.6 or not things:
            place = rng.choice(places)
            pieces += [Piece(f"> {verb} {place}\n=", 0.0), Piece(f" {place} has {lists[place]}.\n", 1.0)]
        else:
            thing = rng.choice(things)
            place = next(place for place in places if thing in held[place])
            pieces += [Piece(f"> find {thing}\n=", 0.0), Piece(f" {thing} at {place}.\n", 1.0)]
    return Sample("drill", pieces)
