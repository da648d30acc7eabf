"""The vLLM client against a loopback server that records its requests; vLLM itself is not run here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dreamgym.core.errors import ContextOverflowError, EngineError, InvalidInputError, ModelMissingError
from dreamgym.inference.engine import GenerationRequest
from dreamgym.inference.vllm import VllmEngine
from support.http_server import RecordingServer, serving

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


Answers = dict[str, tuple[int, Any]]


@pytest.fixture
def answers() -> Answers:
    """What the server says to a path; tests change it."""
    return {
        "/v1/completions": (200, COMPLETION),
        "/v1/load_lora_adapter": (200, "Success: LoRA adapter loaded"),
        "/tokenize": (200, {"tokens": [5, 6], "count": 2}),
        "/detokenize": (200, {"prompt": "go"}),
    }


@pytest.fixture
def server(answers: Answers) -> Iterator[RecordingServer]:
    with serving(answers.__getitem__) as running:
        yield running


@pytest.fixture
def engine(server: RecordingServer) -> VllmEngine:
    return VllmEngine(server.url + "/v1", "experience-1", context_window=64)


async def test_token_ids_go_in_and_token_ids_with_log_probabilities_come_back(
    server: RecordingServer, engine: VllmEngine
) -> None:
    generation = await engine.generate(REQUEST)
    assert (generation.token_ids, generation.logprobs) == ([7, 8], [-0.5, -0.25])
    assert (generation.finish, generation.text, generation.cached_tokens) == ("stop", "ok", 2)
    assert generation.model_version == "experience-1"
    _, _, body = server.requests[0]
    assert body["prompt"] == [1, 2, 3]
    assert body["stop"] == ["# continue\n"]
    assert (body["seed"], body["temperature"], body["max_tokens"]) == (9, 0.5, 8)
    assert body["include_stop_str_in_output"] is True
    assert body["return_token_ids"] is True
    await engine.close()


async def test_an_answer_of_another_version_is_refused(answers: Answers, engine: VllmEngine) -> None:
    answers["/v1/completions"] = (200, {**COMPLETION, "model": "experience-0"})
    with pytest.raises(EngineError, match="experience-0"):
        await engine.generate(REQUEST)
    answers["/v1/completions"] = (200, {"choices": [{"text": "x"}], "model": "experience-1"})
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
    answers: Answers, engine: VllmEngine, status: int, text: str, error: type[Exception]
) -> None:
    answers["/v1/completions"] = (status, text)
    with pytest.raises(error):
        await engine.generate(REQUEST)


async def test_a_prompt_that_cannot_fit_is_not_sent(server: RecordingServer, engine: VllmEngine) -> None:
    with pytest.raises(ContextOverflowError):
        await engine.generate(GenerationRequest("s", list(range(60)), 8))
    assert server.requests == []


async def test_a_server_that_is_not_there_is_an_engine_error_with_a_remedy() -> None:
    with pytest.raises(EngineError, match="DREAMGYM_VLLM_URL"):
        await VllmEngine("http://127.0.0.1:9", "v", context_window=64).generate(REQUEST)


async def test_a_loaded_adapter_answers_under_its_own_name(server: RecordingServer, engine: VllmEngine) -> None:
    await engine.load_adapter("experience-2", Path("/models/experience-2"))
    assert engine.model_version == "experience-2"
    path, _, body = server.requests[0]
    assert path == "/v1/load_lora_adapter"
    assert body == {"lora_name": "experience-2", "lora_path": "/models/experience-2"}


def test_without_a_local_tokenizer_the_server_is_asked_once_for_each_text(
    server: RecordingServer, engine: VllmEngine
) -> None:
    assert engine.encode("go\n") == engine.encode("go\n") == [5, 6]
    assert engine.decode([5, 6]) == "go"
    assert [path for path, _, _ in server.requests] == ["/tokenize", "/detokenize"]
    assert server.requests[0][2]["add_special_tokens"] is False


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelMissingError, match=r"tokenizer\.json"):
        VllmEngine("http://127.0.0.1:9", "v", context_window=64, tokenizer=tmp_path)
