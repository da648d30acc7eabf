"""Where to cut a batch of prompts so that little of its computation is padding."""

from __future__ import annotations

from collections.abc import Sequence

SLICE_AT = 0.7
"""A row shorter than this share of the longest of its slice begins another one."""
SLICE_ROWS = 8
"""Fewest rows of a slice: each costs a pass over the layers."""
DECODING = 2
"""Up to so many tokens a row, a pass over the layers costs more than the padding."""


def slices(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Cut rows, in their order, where they become much shorter than others of their slice; answers (start, end) of each."""
    cuts = [0]
    if max(lengths) > DECODING:
        for place in range(SLICE_ROWS, len(lengths) - SLICE_ROWS + 1):
            if place - cuts[-1] >= SLICE_ROWS and lengths[place] < SLICE_AT * max(lengths[cuts[-1] : place]):
                cuts.append(place)
    return list(zip(cuts, [*cuts[1:], len(lengths)], strict=True))
