"""A teacher model that annotates recorded trajectories: any OpenAI-compatible chat API, one call for each trajectory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import httpx
import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dreamgym.core.episodes import Episode
from dreamgym.core.errors import EngineError, InvalidInputError, ModelOutputError
from dreamgym.core.policy_prompt import one_line
from dreamgym.experience.settings import ExperienceSettings

SYSTEM = (
    "You explain how an environment answered an agent. You get a task, whether the episode succeeded, and every state and "
    'action. Answer with JSON only: {"tutorial": "overall plan, success mode, failure mode", "plans": ["..."]}. '
    "`plans` has exactly one entry for each action, in order: in 5 to 20 words, whether the action is possible in that state "
    "and why, what it changes, and whether the task is then achieved. Begin the entry of an action that the environment "
    "refused with `impossible:`."
)
RETRY_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True)
class Lesson:
    """One plan per step, the tutorial, and what all attempts cost in tokens."""

    tutorial: str
    plans: tuple[str, ...]
    model: str
    prompt_tokens: int
    completion_tokens: int


class _Answer(BaseModel):
    model_config = ConfigDict(extra="ignore")

    tutorial: str = ""
    plans: list[str] = Field(min_length=1)


class Teacher:
    """Asks for a tutorial and one transition plan per step, and checks that there are as many plans as steps."""

    def __init__(
        self, url: str, model: str, key: str = "", *, timeout_s: float = 120.0, attempts: int = 3, pause_s: float = 0.5
    ) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        base = url.rstrip("/")
        self._url = base if base.endswith("/v1") else f"{base}/v1"
        self._client = httpx.AsyncClient(headers=headers, timeout=timeout_s)
        self._model = model
        self._attempts = attempts
        self._pause_s = pause_s
        self.prompt_tokens = 0
        self.completion_tokens = 0

    @classmethod
    def from_settings(cls, settings: ExperienceSettings) -> Teacher:
        if not settings.teacher_model:
            raise InvalidInputError(
                "DREAMGYM_TEACHER_URL is set without a model.", remedy="Set DREAMGYM_TEACHER_MODEL."
            )
        return cls(
            settings.teacher_url,
            settings.teacher_model,
            settings.teacher_key.get_secret_value(),
            timeout_s=settings.teacher_timeout_s,
            attempts=settings.teacher_attempts,
        )

    async def annotate(self, episode: Episode) -> Lesson:
        """Annotate one trajectory.

        Raises EngineError if the API cannot be reached or keeps failing, InvalidInputError if it refuses the request (key,
        model name), ModelOutputError if every answer is unusable.
        """
        body = {
            "model": self._model,
            "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": describe(episode)}],
            "temperature": 0,
            "response_format": {"type": "json_object"},
        }
        before = (self.prompt_tokens, self.completion_tokens)
        fault: EngineError | ModelOutputError | None = None
        for attempt in range(self._attempts):
            if attempt:
                await asyncio.sleep(self._pause_s * 2 ** (attempt - 1))
            try:
                answer = self._read(await self._ask({**body, "seed": attempt}), len(episode.transitions))
            except (EngineError, ModelOutputError) as error:
                fault = error
                continue
            plans = tuple(one_line(plan) for plan in answer.plans)
            spent = (self.prompt_tokens - before[0], self.completion_tokens - before[1])
            return Lesson(one_line(answer.tutorial), plans, self._model, *spent)
        assert fault is not None
        raise fault

    async def close(self) -> None:
        await self._client.aclose()

    async def _ask(self, body: dict[str, Any]) -> dict[str, Any]:
        try:
            response = await self._client.post(f"{self._url}/chat/completions", json=body)
        except httpx.HTTPError as error:
            raise EngineError(
                f"The teacher at {self._url} does not answer: {error!r}.",
                remedy="Check DREAMGYM_TEACHER_URL, or use the builtin annotator.",
            ) from error
        if response.status_code in RETRY_STATUS:
            raise EngineError(
                f"The teacher at {self._url} failed with HTTP {response.status_code}.", remedy="Retry later."
            )
        if response.status_code != 200:
            raise InvalidInputError(
                f"The teacher refused the request with HTTP {response.status_code}: {response.text[:200]}.",
                remedy="Check DREAMGYM_TEACHER_KEY and DREAMGYM_TEACHER_MODEL.",
            )
        try:
            data: dict[str, Any] = orjson.loads(response.content)
            usage = data.get("usage") or {}
            self.prompt_tokens += int(usage.get("prompt_tokens", 0))
            self.completion_tokens += int(usage.get("completion_tokens", 0))
        except (orjson.JSONDecodeError, AttributeError, TypeError, ValueError) as error:
            raise EngineError(f"The teacher's API answered something else than its protocol: {error}.") from error
        return data

    def _read(self, data: dict[str, Any], steps: int) -> _Answer:
        try:
            text = str(data["choices"][0]["message"]["content"])
            answer = _Answer.model_validate(orjson.loads(_unfenced(text)))
        except (KeyError, IndexError, TypeError, orjson.JSONDecodeError, ValidationError) as error:
            raise ModelOutputError(
                f"The teacher {self._model} wrote no usable annotation: {error}.", remedy="Use a more capable teacher."
            ) from error
        if len(answer.plans) != steps:
            raise ModelOutputError(
                f"The teacher {self._model} wrote {len(answer.plans)} plans for {steps} steps.",
                remedy="Use a more capable teacher, or shorter episodes.",
            )
        return answer


def describe(episode: Episode) -> str:
    """The trajectory as the teacher reads it."""
    lines = [
        f"Task: {one_line(episode.task.instruction)}",
        f"The episode {'succeeded' if episode.success else 'did not succeed'}.",
        f"Initial state: {episode.task.initial_state.strip()}",
    ]
    for number, step in enumerate(episode.transitions, 1):
        refused = "" if step.valid_action else " (refused)"
        lines.append(f"{number}. Action{refused}: {one_line(step.action)}\n   Next state: {step.next_state.strip()}")
    lines.append(f"Write exactly {len(episode.transitions)} plans.")
    return "\n".join(lines)


def _unfenced(text: str) -> str:
    """The JSON inside a code fence, if there is one."""
    start, end = text.find("{"), text.rfind("}")
    return text[start : end + 1] if 0 <= start < end else text
