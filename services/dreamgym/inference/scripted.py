"""A deterministic engine for tests of everything that is not a model: answers come from a function of the prompt's text.

Tokens are UTF-8 bytes, so that every text round-trips.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dreamgym.core.errors import ContextOverflowError
from dreamgym.inference.engine import Generation, GenerationRequest


class ScriptedEngine:
    """Calls `script(prompt_text, seed)` and returns its text, cut after the first stop string."""

    def __init__(
        self, script: Callable[[str, int], str], *, model_version: str = "scripted", context_window: int = 65536
    ) -> None:
        self._script = script
        self._version = model_version
        self._window = context_window
        self.requests: list[GenerationRequest] = []

    @property
    def model_version(self) -> str:
        return self._version

    @property
    def context_window(self) -> int:
        return self._window

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(token_ids).decode(errors="replace")

    async def generate(self, request: GenerationRequest) -> Generation:
        if len(request.prompt_ids) + 1 > self._window:
            raise ContextOverflowError(
                f"The prompt has {len(request.prompt_ids)} tokens; the window is {self._window}."
            )
        self.requests.append(request)
        text = self._script(self.decode(request.prompt_ids), request.seed)
        ends = [text.index(stop) + len(stop) for stop in request.stop if stop in text]
        whole = self.encode(text[: min(ends)] if ends else text)
        ids = whole[: request.max_new_tokens]
        finish = "stop" if ends and len(ids) == len(whole) else "length"
        return Generation(
            token_ids=ids,
            logprobs=[0.0] * len(ids),
            finish=finish,
            model_version=self._version,
            prompt_tokens=len(request.prompt_ids),
            text=self.decode(ids),
        )

    async def release(self, session: str) -> None:
        return None

    async def close(self) -> None:
        return None
