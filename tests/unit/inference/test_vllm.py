"""The vLLM client against a loopback server that records its requests; vLLM itself is not run here."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import orjson
import pytest

from dreamgym.core.errors import ContextOverflowError, EngineError, InvalidInputError, ModelMissingError
from dreamgym.inference.engine import GenerationRequest
from dreamgym.inference.vllm import VllmEngine

REQUEST = GenerationRequest("s", [1, 2, 3], 8, stop=("# continue\n",), temperature=0.5, seed=9)
COMPLETION = {
    "model": "experience-1",
    "choices": [
        {
            "text": "ok",
            "token_ids": [7, 8],
            "logprobs": {"token_logprobs": [-0.5, -0.25]},
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}},
}


class Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, Any]] = []
        self.answers: dict[str, tuple[int, Any]] = {
            "/v1/completions": (200, COMPLETION),
            "/v1/load_lora_adapter": (200, "Success: LoRA adapter loaded"),
            "/tokenize": (200, {"tokens": [5, 6], "count": 2}),
            "/detokenize": (200, {"prompt": "go"}),
        }

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = orjson.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.requests.append((self.path, body))
        status, answer = self.server.answers[self.path]
        data = answer.encode() if isinstance(answer, str) else orjson.dumps(answer)
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        return None


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def engine(server: Server) -> VllmEngine:
    return VllmEngine(server.url + "/v1", "experience-1", context_window=64)


async def test_token_ids_go_in_and_token_ids_with_log_probabilities_come_back(
    server: Server, engine: VllmEngine
) -> None:
    generation = await engine.generate(REQUEST)
    assert (generation.token_ids, generation.logprobs) == ([7, 8], [-0.5, -0.25])
    assert (generation.finish, generation.text, generation.cached_tokens) == ("stop", "ok", 2)
    assert generation.model_version == "experience-1"
    _, body = server.requests[0]
    assert body["prompt"] == [1, 2, 3]
    assert body["stop"] == ["# continue\n"]
    assert (body["seed"], body["temperature"], body["max_tokens"]) == (9, 0.5, 8)
    assert body["include_stop_str_in_output"] is True
    assert body["return_token_ids"] is True
    await engine.close()


async def test_an_answer_of_another_version_is_refused(server: Server, engine: VllmEngine) -> None:
    server.answers["/v1/completions"] = (200, {**COMPLETION, "model": "experience-0"})
    with pytest.raises(EngineError, match="experience-0"):
        await engine.generate(REQUEST)
    server.answers["/v1/completions"] = (200, {"choices": [{"text": "x"}], "model": "experience-1"})
    with pytest.raises(EngineError, match="return_token_ids"):
        await engine.generate(REQUEST)


@pytest.mark.parametrize(
    ("status", "text", "error"),
    [
        (404, "The model `x` does not exist.", ModelMissingError),
        (400, "This model's maximum context length is 64 tokens.", ContextOverflowError),
        (422, "bad field", InvalidInputError),
        (500, "crashed", EngineError),
        (429, "busy", EngineError),
    ],
)
async def test_refusals_are_typed(
    server: Server, engine: VllmEngine, status: int, text: str, error: type[Exception]
) -> None:
    server.answers["/v1/completions"] = (status, text)
    with pytest.raises(error):
        await engine.generate(REQUEST)


async def test_a_prompt_that_cannot_fit_is_not_sent(server: Server, engine: VllmEngine) -> None:
    with pytest.raises(ContextOverflowError):
        await engine.generate(GenerationRequest("s", list(range(60)), 8))
    assert server.requests == []


async def test_a_server_that_is_not_there_is_an_engine_error_with_a_remedy() -> None:
    with pytest.raises(EngineError, match="DREAMGYM_VLLM_URL"):
        await VllmEngine("http://127.0.0.1:9", "v", context_window=64).generate(REQUEST)


async def test_a_loaded_adapter_answers_under_its_own_name(server: Server, engine: VllmEngine) -> None:
    await engine.load_adapter("experience-2", Path("/models/experience-2"))
    assert engine.model_version == "experience-2"
    assert server.requests[0] == (
        "/v1/load_lora_adapter",
        {"lora_name": "experience-2", "lora_path": "/models/experience-2"},
    )


def test_without_a_local_tokenizer_the_server_is_asked_once_for_each_text(server: Server, engine: VllmEngine) -> None:
    assert engine.encode("go\n") == engine.encode("go\n") == [5, 6]
    assert engine.decode([5, 6]) == "go"
    assert [path for path, _ in server.requests] == ["/tokenize", "/detokenize"]
    assert server.requests[0][1]["add_special_tokens"] is False


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelMissingError, match=r"tokenizer\.json"):
        VllmEngine("http://127.0.0.1:9", "v", context_window=64, tokenizer=tmp_path)
