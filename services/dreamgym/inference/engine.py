"""The engine protocol: `local` (torch, in this process), `vllm` (HTTP) and `scripted` (deterministic) implement it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class GenerationRequest:
    """One completion.

    `session` names an episode: prompts of one session share a prefix, so an engine may keep its key/value cache. `stop`
    holds strings after which generation ends; the stop string stays in the output. `seed` fixes sampling, whatever else
    shares the batch; temperature 0 is greedy.
    """

    session: str
    prompt_ids: Sequence[int]
    max_new_tokens: int
    stop: tuple[str, ...] = ("\n",)
    temperature: float = 0.0
    seed: int = 0
    allowed: Sequence[int] | None = None
    """If given, only these token ids are sampled; log-probabilities are those of the restricted distribution."""
    choices: tuple[tuple[int, ...], ...] | None = None
    """If given, the completion is one of these sequences, none of them a beginning of another. At each token only those that
    keep to a choice are sampled, with the restricted distribution's log-probability: 0 where one is left."""


@dataclass(frozen=True)
class Generation:
    """Sampled ids with the log-probability of each under the distribution that it was sampled from (for greedy: temperature 1).

    `finish` is `stop` or `length`; `cached_tokens` counts prompt tokens that the prefix cache spared.
    """

    token_ids: list[int]
    logprobs: list[float]
    finish: str
    model_version: str
    prompt_tokens: int = 0
    cached_tokens: int = 0
    text: str = field(default="", compare=False)


class Engine(Protocol):
    """Turns token ids into token ids with one model version at a time."""

    @property
    def model_version(self) -> str:
        """Version that the next generation will use; each Generation carries the one that it did use."""
        ...

    @property
    def context_window(self) -> int:
        """Longest prompt plus completion, in tokens."""
        ...

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens. Pieces that end with a newline can be encoded apart."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str: ...

    async def generate(self, request: GenerationRequest) -> Generation:
        """Complete a prompt.

        Raises ContextOverflowError if prompt and completion cannot fit, EngineError if the engine fails.
        """
        ...

    async def release(self, session: str) -> None:
        """Forget a session's cache. Unknown sessions are no error."""
        ...

    async def close(self) -> None: ...
