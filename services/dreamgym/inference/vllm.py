"""An engine behind vLLM's OpenAI-compatible HTTP server: token ids in, token ids and log-probabilities out.

Which requests exist and answer was checked against vLLM 0.32 on CPU (see the fields below); this client itself has been run
only against a loopback server that records its requests, not against vLLM, and not on a GPU. Needs of the server:
`VLLM_ALLOW_RUNTIME_LORA_UPDATING=True` for `load_adapter`; `--served-model-name`
equal to the model version, so that every answer names the version that wrote it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import httpx
import orjson

from dreamgym.core.errors import ContextOverflowError, EngineError, InvalidInputError, ModelMissingError
from dreamgym.inference.engine import Generation, GenerationRequest

_OVERFLOW_WORDS = ("context length", "maximum model length", "max_model_len", "longer than the maximum")


class VllmEngine:
    """One model version of a vLLM server.

    `tokenizer` is a folder or a tokenizer.json; without one, `encode` and `decode` ask the server and block until it answers,
    so give one wherever an event loop is shared.
    """

    def __init__(
        self,
        url: str,
        model_version: str,
        *,
        context_window: int,
        tokenizer: Path | None = None,
        api_key: str = "",
        timeout_s: float = 120.0,
        structured_outputs: Mapping[str, Any] | None = None,
    ) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._url = url.rstrip("/").removesuffix("/v1")
        self._client = httpx.AsyncClient(base_url=self._url, headers=headers, timeout=timeout_s)
        self._headers = headers
        self._timeout_s = timeout_s
        self._version = model_version
        self._window = context_window
        self._structured_outputs = dict(structured_outputs) if structured_outputs else None
        self._tokenizer = _load_tokenizer(tokenizer) if tokenizer else None
        self._asked_encode = lru_cache(maxsize=4096)(self._tokenize)
        self._asked_decode = lru_cache(maxsize=4096)(self._detokenize)

    @property
    def model_version(self) -> str:
        return self._version

    @property
    def context_window(self) -> int:
        return self._window

    def encode(self, text: str) -> list[int]:
        if self._tokenizer is not None:
            return list(self._tokenizer.encode(text, add_special_tokens=False).ids)
        return list(self._asked_encode(text))

    def decode(self, token_ids: Sequence[int]) -> str:
        if self._tokenizer is not None:
            return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))
        return self._asked_decode(tuple(token_ids))

    async def generate(self, request: GenerationRequest) -> Generation:
        """Complete a prompt. Raises ContextOverflowError, ModelMissingError, or EngineError naming the server."""
        if len(request.prompt_ids) + request.max_new_tokens > self._window:
            raise ContextOverflowError(
                f"Prompt ({len(request.prompt_ids)}) and completion ({request.max_new_tokens} tokens) exceed the window of "
                f"{self._window}.",
                remedy="Shorten the history or serve the model with a longer --max-model-len.",
            )
        body: dict[str, Any] = {
            "model": self._version,
            "prompt": list(request.prompt_ids),
            "max_tokens": request.max_new_tokens,
            "temperature": request.temperature,
            "seed": request.seed,
            "stop": list(request.stop),
            "include_stop_str_in_output": True,
            "return_token_ids": True,
            "logprobs": 1,
        }
        if request.allowed is not None:
            body["allowed_token_ids"] = list(request.allowed)
        if request.choices is not None:
            # The server's log-probabilities are the restricted ones only under --logprobs-mode processed_logprobs.
            body["structured_outputs"] = {"choice": [self.decode(choice) for choice in request.choices]}
        elif self._structured_outputs:
            body["structured_outputs"] = self._structured_outputs
        return self._read(await self._post("/v1/completions", body), len(request.prompt_ids))

    async def load_adapter(self, version: str, path: Path) -> None:
        """Load a LoRA adapter from a folder that the server can read; the next generation uses it under its own name."""
        await self._post("/v1/load_lora_adapter", {"lora_name": version, "lora_path": str(path)})
        self._version = version

    async def unload_adapter(self, version: str) -> None:
        await self._post("/v1/unload_lora_adapter", {"lora_name": version})

    async def release(self, session: str) -> None:
        """Nothing to free: the server's prefix cache evicts by itself."""

    async def close(self) -> None:
        await self._client.aclose()

    async def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        try:
            response = await self._client.post(path, json=body)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        return self._answer(response)

    def _answer(self, response: httpx.Response) -> Any:
        text = response.text[:300]
        if response.status_code == 404:
            raise ModelMissingError(
                f"The vLLM server at {self._url} does not serve {self._version!r}: {text}.",
                remedy="Start it with --served-model-name equal to the model version, or load the adapter first.",
            )
        if response.status_code == 400 and any(words in text.lower() for words in _OVERFLOW_WORDS):
            raise ContextOverflowError(f"The vLLM server refused the prompt: {text}.", remedy="Shorten the history.")
        if 400 <= response.status_code < 500 and response.status_code not in (408, 429):
            raise InvalidInputError(f"The vLLM server at {self._url} refused the request: {text}.")
        if response.status_code != 200:
            raise EngineError(
                f"The vLLM server at {self._url} failed with HTTP {response.status_code}: {text}.",
                remedy="See its log.",
            )
        try:
            return orjson.loads(response.content)
        except orjson.JSONDecodeError:
            return text  # the adapter routes answer plain text

    def _read(self, answer: Any, prompt_tokens: int) -> Generation:
        try:
            choice = answer["choices"][0]
            token_ids = [int(token) for token in choice["token_ids"]]
            logprobs = [float(value) for value in choice["logprobs"]["token_logprobs"]]
            version = str(answer["model"])
            usage = answer.get("usage") or {}
            cached = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
            finish, text = str(choice["finish_reason"]), str(choice["text"])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise EngineError(
                f"The vLLM server at {self._url} answered without token ids or log-probabilities: {error!r}.",
                remedy="Use a vLLM version that knows `return_token_ids` (0.10.2 or newer).",
            ) from error
        if len(token_ids) != len(logprobs):
            raise EngineError(
                f"The vLLM server answered {len(token_ids)} tokens with {len(logprobs)} log-probabilities."
            )
        if version != self._version:
            raise EngineError(
                f"The vLLM server answered as {version!r} where {self._version!r} was asked.", remedy="Check its names."
            )
        return Generation(token_ids, logprobs, finish, version, prompt_tokens, cached, text)

    def _tokenize(self, text: str) -> tuple[int, ...]:
        answer = self._ask_blocking("/tokenize", {"model": self._version, "prompt": text, "add_special_tokens": False})
        return tuple(int(token) for token in answer["tokens"])

    def _detokenize(self, token_ids: tuple[int, ...]) -> str:
        return str(self._ask_blocking("/detokenize", {"model": self._version, "tokens": list(token_ids)})["prompt"])

    def _ask_blocking(self, path: str, body: Mapping[str, Any]) -> Any:
        try:
            response = httpx.post(self._url + path, json=body, headers=self._headers, timeout=self._timeout_s)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        return self._answer(response)

    def _unreachable(self, error: Exception) -> EngineError:
        return EngineError(
            f"The vLLM server at {self._url} does not answer: {error!r}.",
            remedy="Is it running? Check DREAMGYM_VLLM_URL and its /health.",
        )


def _load_tokenizer(path: Path) -> Any:
    """The `tokenizers` package reads tokenizer.json without transformers."""
    from tokenizers import Tokenizer

    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.exists():
        raise ModelMissingError(f"There is no tokenizer at {file}.", remedy="Set DREAMGYM_VLLM_TOKENIZER.")
    return Tokenizer.from_file(str(file))
