"""The share of dreams among the results."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dreamgym.core.episodes import Source
from dreamgym.replay.records import Hit, TransitionRecord
from dreamgym.replay.search import mix

similarities = st.lists(st.floats(-1.0, 1.0), max_size=8).map(lambda values: sorted(values, reverse=True))


def hits(source: Source, values: list[float]) -> list[Hit]:
    transition = TransitionRecord(0, "s", "a", "", "n", 0.0, False, False, True, 1.0)
    return [Hit(transition, value, source, "e", "") for value in values]


@given(observed=similarities, dreams=similarities, top_k=st.integers(1, 8), cap=st.floats(0.0, 1.0))
def test_dreams_never_exceed_their_share_and_the_best_come_first(
    observed: list[float], dreams: list[float], top_k: int, cap: float
) -> None:
    result = mix(hits(Source.REAL, observed), hits(Source.DREAM, dreams), top_k, cap)
    among = [hit.similarity for hit in result if hit.source is Source.DREAM]
    real = [hit.similarity for hit in result if hit.source is Source.REAL]
    assert len(result) <= top_k
    assert len(among) <= cap * len(result) + 1e-6
    assert [hit.similarity for hit in result] == sorted((hit.similarity for hit in result), reverse=True)
    assert among == dreams[: len(among)]
    assert real == observed[: len(real)]
    assert len(result) >= min(top_k, len(observed))


def test_a_dream_gives_way_to_the_next_observed_transition() -> None:
    result = mix(hits(Source.SEED, [0.1, 0.0]), hits(Source.DREAM, [0.9, 0.8]), 2, 0.5)
    assert [(hit.source, hit.similarity) for hit in result] == [(Source.DREAM, 0.9), (Source.SEED, 0.1)]
