"""The in-process engine: batches whatever is waiting, keeps each session's keys and values between turns.

One worker thread owns the model. A batch is: gather the sessions' caches into one buffer, prefill what each prompt adds,
decode until every row has stopped, hand the caches back. Sampling noise comes from each request's own seed, so an
episode's tokens do not depend on who shares its batch (up to floating-point rounding of differently shaped batches).
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dreamgym.core.action_choices import next_tokens
from dreamgym.core.errors import ContextOverflowError, DreamGymError, EngineError, InvalidInputError
from dreamgym.inference.engine import Generation, GenerationRequest
from dreamgym.inference.local_model import (
    EXCLUDED_LOGIT,
    KeyValueBuffer,
    hidden_states,
    load_model,
    load_tokenizer,
)
from dreamgym.inference.shared_answers import SharedAnswers
from dreamgym.inference.slices import slices

log = logging.getLogger(__name__)
GATHER_S = 0.004
"""How long the worker waits for more requests before it starts a batch."""
SHRINK_AT = 0.75
"""A batch drops its finished rows when no more than this share is still decoding."""


@dataclass
class _Session:
    ids: list[int] = field(default_factory=list)
    cache: Tensor | None = None  # [layers, 2, kv heads, tokens, head size]


@dataclass
class _Row:
    request: GenerationRequest
    ids: list[int]
    cached: int
    """Prompt tokens whose keys and values came from the session."""
    filled: int
    """Tokens of prompt and completion whose keys and values are in the buffer."""
    uniforms: np.ndarray[Any, np.dtype[np.float64]]
    new_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str = ""
    finish: str = ""


@dataclass
class _Waiting:
    request: GenerationRequest
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Generation]


class LocalEngine:
    """`Engine` over a torch model in this process.

    `slots` bounds the batch, `sessions` the caches that are kept (least recently used ones go first), `threads` the torch
    threads of the worker. With `remembered` above 0, so many greedy completions are kept for equal prompts: episodes of one
    group ask the same of the same world.
    """

    def __init__(
        self,
        path: Path,
        model_version: str,
        *,
        slots: int = 64,
        sessions: int = 256,
        threads: int = 1,
        remembered: int = 0,
        context_window: int | None = None,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        self._model = load_model(path, dtype).eval()
        self._tokenizer = load_tokenizer(path)
        self._version = model_version
        self._slots = slots
        self._kept = sessions
        self._threads = threads
        self._dtype = dtype
        config = self._model.config
        self._window = min(context_window or 10**9, int(config.max_position_embeddings))
        self._pieces = [self._tokenizer.decode([i]) for i in range(int(config.vocab_size))]
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._queue: queue.Queue[_Waiting | None] = queue.Queue()
        self._closing = False
        self._greedy = SharedAnswers(self._enqueue, remembered, lambda: self._version) if remembered else None
        self._lock = threading.Lock()  # held while a batch runs or weights change
        self.counters = {"prompt_tokens": 0, "cached_tokens": 0, "completion_tokens": 0, "batches": 0}
        self._thread = threading.Thread(target=self._serve, name=f"engine-{model_version}", daemon=True)
        self._thread.start()

    @property
    def model_version(self) -> str:
        return self._version

    @property
    def context_window(self) -> int:
        return self._window

    @property
    def vocabulary_size(self) -> int:
        return int(self._model.config.vocab_size)

    @property
    def spared(self) -> int:
        """Requests answered from equal ones without computing."""
        return 0 if self._greedy is None else self._greedy.spared

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self._model.parameters())

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids)))

    def load_weights(self, state: dict[str, Tensor], model_version: str) -> None:
        """Take over a trained model's weights; every cache is dropped, and later generations carry the new version."""
        with self._lock:
            self._model.load_state_dict(state)
            self._sessions.clear()
            if self._greedy is not None:
                self._greedy.clear()
            self._version = model_version

    async def generate(self, request: GenerationRequest) -> Generation:
        if len(request.prompt_ids) + request.max_new_tokens > self._window:
            raise ContextOverflowError(
                f"A prompt of {len(request.prompt_ids)} tokens plus {request.max_new_tokens} does not fit the window of "
                f"{self._window}.",
                remedy="Lower max_steps or max_action_tokens, or use a model with a longer context.",
            )
        if not request.prompt_ids or request.max_new_tokens < 1:
            raise InvalidInputError(
                "A generation needs a prompt of at least one token, and room for at least one more."
            )
        if not 0 <= min(request.prompt_ids) <= max(request.prompt_ids) < len(self._pieces):
            raise InvalidInputError(
                f"A token id lies outside the vocabulary of {len(self._pieces)}.", remedy="Encode with this engine."
            )
        if self._closing or not self._thread.is_alive():
            raise EngineError(f"The engine of {self._version} has stopped.", remedy="Restart the service; see its log.")
        if request.temperature == 0 and self._greedy is not None:
            return await self._greedy.generate(request)
        return await self._enqueue(request)

    def _enqueue(self, request: GenerationRequest) -> asyncio.Future[Generation]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Generation] = loop.create_future()
        self._queue.put(_Waiting(request, loop, future))
        return future

    async def release(self, session: str) -> None:
        self._sessions.pop(session, None)

    async def close(self) -> None:
        """Answer what waits, then stop; later requests are refused."""
        self._closing = True
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join, 30)

    def _serve(self) -> None:
        torch.set_num_threads(self._threads)
        while True:
            first = self._queue.get()
            if first is None:
                return
            batch, closing = self._gather(first)
            try:
                with self._lock, torch.inference_mode():
                    results = self._run([waiting.request for waiting in batch])
            except Exception as error:
                log.exception("a batch failed")
                failure = error if isinstance(error, DreamGymError) else EngineError(f"The engine failed: {error}.")
                for waiting in batch:
                    waiting.loop.call_soon_threadsafe(_fail, waiting.future, failure)
            else:
                for waiting, result in zip(batch, results, strict=True):
                    waiting.loop.call_soon_threadsafe(_resolve, waiting.future, result)
            if closing:
                return

    def _gather(self, first: _Waiting) -> tuple[list[_Waiting], bool]:
        """Everything that waits now, at most one request per session and `slots` in all."""
        batch, later, busy, closing = [first], [], {first.request.session}, False
        while len(batch) < self._slots:
            try:
                waiting = self._queue.get(timeout=GATHER_S)
            except queue.Empty:
                break
            if waiting is None:
                closing = True
                break
            if waiting.request.session in busy:
                later.append(waiting)
            else:
                busy.add(waiting.request.session)
                batch.append(waiting)
        for waiting in later:
            self._queue.put(waiting)
        if closing and later:
            self._queue.put(None)
        return batch, closing and not later

    def _run(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        rows = [self._open_row(request) for request in requests]
        asked = list(rows)
        rows.sort(key=lambda row: row.filled - len(row.ids))  # those with most to prefill first, for `slices`
        longest = max(len(row.ids) + row.request.max_new_tokens for row in rows)
        buffer = self._buffer(rows, longest)
        logits = self._advance(rows, buffer)
        present = rows  # the rows that the buffer holds
        active = list(range(len(rows)))
        while True:
            self._sample(present, active, logits)
            active = [i for i in active if not present[i].finish]
            if not active:
                break
            if len(active) <= SHRINK_AT * len(present):
                # Rows that stopped cost as much as the others; a copy of the rest is cheaper than carrying them along.
                self._close_rows([present[i] for i in range(len(present)) if present[i].finish], buffer, present)
                buffer.data = buffer.data[:, :, active].clone()
                present, active = [present[i] for i in active], list(range(len(active)))
            logits = self._advance(present, buffer)
        self._close_rows(present, buffer, present)
        self.counters["batches"] += 1
        return [
            Generation(
                token_ids=row.new_ids,
                logprobs=row.logprobs,
                finish=row.finish,
                model_version=self._version,
                prompt_tokens=len(row.request.prompt_ids),
                cached_tokens=row.cached,
                # Not `row.text`, which is made token by token: a token may be a part of a character.
                text=self.decode(row.new_ids),
            )
            for row in asked
        ]

    def _open_row(self, request: GenerationRequest) -> _Row:
        session = self._sessions.get(request.session)
        ids = list(request.prompt_ids)
        shared = 0
        if session is not None:
            limit = min(len(session.ids), len(ids) - 1)  # the last token is always computed: it gives the logits
            while shared < limit and session.ids[shared] == ids[shared]:
                shared += 1
        uniforms = np.random.Generator(np.random.Philox(request.seed & (2**64 - 1))).random(request.max_new_tokens)
        return _Row(request=request, ids=ids, cached=shared, filled=shared, uniforms=uniforms)

    def _buffer(self, rows: list[_Row], length: int) -> KeyValueBuffer:
        config = self._model.config
        head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        buffer = KeyValueBuffer.empty(
            config.num_hidden_layers, len(rows), config.num_key_value_heads, length, head_size, self._dtype
        )
        for i, row in enumerate(rows):
            session = self._sessions.get(row.request.session)
            if row.cached and session is not None and session.cache is not None:
                buffer.data[:, :, i, :, : row.cached] = session.cache[:, :, :, : row.cached]
        return buffer

    def _advance(self, rows: list[_Row], buffer: KeyValueBuffer) -> Tensor:
        """Compute what each row has and the buffer lacks (first its prompt); answers logits [B, V] after its last token."""
        new = [[] if row.finish else (row.ids + row.new_ids)[row.filled :] for row in rows]
        cut = slices([len(tokens) for tokens in new])
        return torch.cat([self._advance_slice(rows[a:b], new[a:b], buffer.rows(a, b)) for a, b in cut])

    def _advance_slice(self, rows: list[_Row], new: list[list[int]], buffer: KeyValueBuffer) -> Tensor:
        widest = max(1, *map(len, new))
        ids = torch.zeros(len(rows), widest, dtype=torch.long)
        positions = torch.zeros(len(rows), widest, dtype=torch.long)
        last = torch.zeros(len(rows), dtype=torch.long)
        for i, (row, tokens) in enumerate(zip(rows, new, strict=True)):
            # Padding repeats the last token at its own place, so that it rewrites the same key and value; a row that has
            # stopped does nothing else.
            end = row.filled + len(tokens) - 1
            final = tokens[-1] if tokens else (row.ids + row.new_ids)[end]
            ids[i, : len(tokens)] = torch.tensor(tokens, dtype=torch.long)
            ids[i, len(tokens) :] = final
            positions[i] = torch.arange(row.filled, row.filled + widest).clamp(max=end)
            last[i] = max(0, len(tokens) - 1)
            row.filled += len(tokens)
        seen = int(positions.max()) + 1
        mask = torch.arange(seen)[None, None, :] <= positions[:, :, None]
        hidden = hidden_states(self._model, ids, positions, mask, buffer.first(seen))
        return self._logits(hidden[torch.arange(len(rows)), last])

    def _logits(self, hidden_BD: Tensor) -> Tensor:
        logits: Tensor = self._model.lm_head(hidden_BD).float()
        return logits

    def _sample(self, rows: list[_Row], active: list[int], logits_BV: Tensor) -> None:
        """Choose one token for each active row and note it, with those that its choices then leave no choice about."""
        temperatures = torch.tensor([rows[i].request.temperature or 1.0 for i in active])
        logits = logits_BV[active]
        for place, i in enumerate(active):
            row = rows[i]
            allowed = row.request.allowed
            if row.request.choices is not None:
                allowed = next_tokens(row.request.choices, row.new_ids)
            if allowed is not None:
                logits[place] = _restricted(logits[place], allowed)
        logprobs = torch.log_softmax(logits / temperatures[:, None], dim=-1)
        draws = torch.tensor([rows[i].uniforms[len(rows[i].new_ids)] for i in active], dtype=torch.float64)
        cumulative = logprobs.double().exp().cumsum(-1)
        sampled = torch.searchsorted(cumulative, draws[:, None] * cumulative[:, -1:], right=True)[:, 0]
        sampled = sampled.clamp(max=logprobs.shape[1] - 1)
        greedy = logprobs.argmax(-1)
        is_greedy = torch.tensor([rows[i].request.temperature == 0 for i in active])
        tokens = torch.where(is_greedy, greedy, sampled)
        taken = logprobs.gather(1, tokens[:, None])[:, 0].tolist()
        for place, i in enumerate(active):
            row = rows[i]
            self._note(row, int(tokens[place]), taken[place])
            while row.request.choices is not None and not row.finish:
                forced = next_tokens(row.request.choices, row.new_ids)
                if len(forced) > 1:
                    break
                self._note(row, forced[0], 0.0)

    def _note(self, row: _Row, token: int, logprob: float) -> None:
        row.new_ids.append(token)
        row.logprobs.append(logprob)
        row.text += self._pieces[token]
        choices = row.request.choices
        if row.text.endswith(row.request.stop) or (choices is not None and not next_tokens(choices, row.new_ids)):
            row.finish = "stop"
        elif len(row.new_ids) >= row.request.max_new_tokens:
            row.finish = "length"

    def _close_rows(self, rows: list[_Row], buffer: KeyValueBuffer, present: list[_Row]) -> None:
        """Keep the caches of `rows`: what the buffer holds of them, which lacks at least the last token."""
        places = {id(row): place for place, row in enumerate(present)}
        for row in rows:
            i = places[id(row)]
            ids = (row.ids + row.new_ids)[: row.filled]
            cache = buffer.data[:, :, i, :, : len(ids)].clone()
            self._sessions[row.request.session] = _Session(ids=ids, cache=cache)
            self._sessions.move_to_end(row.request.session)
            self.counters["prompt_tokens"] += len(row.ids)
            self.counters["cached_tokens"] += row.cached
            self.counters["completion_tokens"] += len(row.new_ids)
        while len(self._sessions) > self._kept:
            self._sessions.popitem(last=False)


def _restricted(logits_V: Tensor, allowed: Sequence[int]) -> Tensor:
    kept = torch.full_like(logits_V, EXCLUDED_LOGIT)
    index = torch.tensor(list(allowed))
    kept[index] = logits_V[index]
    return kept


def _resolve(future: asyncio.Future[Generation], result: Generation) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Generation], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
