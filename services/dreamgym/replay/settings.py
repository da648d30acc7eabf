"""Settings of the replay service."""

from __future__ import annotations

from typing import Literal

from dreamgym.wire.settings import ServiceSettings


class ReplaySettings(ServiceSettings):
    """What the replay service needs beyond the shared settings."""

    encoder: Literal["hashing", "minilm"] = "hashing"
    """What embeds (state, action): `hashing` needs no model and little time, `minilm` knows synonyms."""
    encoder_cache_texts: int = 50_000
    """Embeddings kept in memory (768 bytes each), least recently used out first."""

    replay_pool_size: int = 8
    """Connections to Postgres, at most."""
    replay_pool_wait_s: float = 5.0
    """How long a call waits for a free connection before it is refused."""
    replay_connect_deadline_s: int = 5
    """How long opening a connection may take."""
    replay_statement_deadline_s: float = 30.0
    """How long one SQL statement may run."""

    replay_batch_transitions: int = 2_000
    """An append stream is stored in batches of about this many transitions, each in one transaction."""
    replay_batch_characters: int = 16_000_000
    """... and of at most about this much text, so that long observations do not fill the memory."""
    replay_index_from_transitions: int = 2_000
    """An environment gets its vector index at the end of the append that brings it to this many transitions."""

    replay_episode_transitions_max: int = 2_000
    """Longest episode that is stored."""
    replay_text_characters_max: int = 200_000
    """Longest state, action, reasoning, instruction or metadata that is stored."""
    replay_top_k_max: int = 100
    """Most hits per query."""
    replay_sample_max: int = 10_000
    """Most transitions per sample."""
    replay_queries_max: int = 256
    """Most queries per search."""
