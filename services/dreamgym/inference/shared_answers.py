"""One answer for equal greedy prompts: a greedy completion depends on its prompt alone.

Episodes of one group start in one world and often act alike at first, so a dream is asked the same many times.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable

from dreamgym.inference.engine import Generation, GenerationRequest


class SharedAnswers:
    """Answers of one engine, waiting or given; at most `limit` are kept, the one unused for longest leaves first.

    `enqueue` computes what is not known yet; `version` is the model's: answers of another one are not kept. A session
    whose request is spared keeps the cache it has; what that lacks is prefilled with its next prompt.
    """

    def __init__(
        self,
        enqueue: Callable[[GenerationRequest], asyncio.Future[Generation]],
        limit: int,
        version: Callable[[], str],
    ) -> None:
        self._enqueue = enqueue
        self._limit = limit
        self._version = version
        self._answers: OrderedDict[bytes, asyncio.Future[Generation]] = OrderedDict()
        self.spared = 0
        """Requests that were answered without computing."""

    def clear(self) -> None:
        self._answers.clear()

    async def generate(self, request: GenerationRequest) -> Generation:
        """The answer to a greedy request."""
        key = _key(request)
        future = self._answers.get(key)
        if future is None or future.cancelled() or future.get_loop() is not asyncio.get_running_loop():
            future = self._answers[key] = self._enqueue(request)
            future.add_done_callback(lambda done: self._keep_if_current(key, done))
            while len(self._answers) > self._limit:
                self._answers.popitem(last=False)
        else:
            self._answers.move_to_end(key)
            self.spared += 1
        # One waiter's cancellation must not take the answer from the others.
        return await asyncio.shield(future)

    def _keep_if_current(self, key: bytes, done: asyncio.Future[Generation]) -> None:
        failed = done.cancelled() or done.exception() is not None
        if (failed or done.result().model_version != self._version()) and self._answers.get(key) is done:
            del self._answers[key]


def _key(request: GenerationRequest) -> bytes:
    """Digest of everything that a greedy completion depends on."""
    allowed = None if request.allowed is None else sorted(request.allowed)
    parts = (list(request.prompt_ids), request.max_new_tokens, request.stop, allowed, request.choices)
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).digest()
