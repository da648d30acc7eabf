"""The DreamGym client: everything that a customer does, over the gateway's REST API."""

from __future__ import annotations

from typing import Any, Self
from urllib.parse import quote

import httpx

from dreamgym.client.environments import Environments
from dreamgym.client.jobs import Jobs
from dreamgym.client.keys import Keys
from dreamgym.client.models import Models
from dreamgym.client.play import PlaySession
from dreamgym.client.transport import Retries, Transport


class DreamGym:
    """One gateway under one API key. Safe to share between threads; use as a context manager or call `close`.

    Every method raises a `dreamgym.core.errors.DreamGymError` with `code`, `message` and `remedy`; one for a gateway that
    does not answer is an `UnreachableError`.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str,
        *,
        timeout_s: float = 60.0,
        retries: Retries = Retries(),
        http: httpx.BaseTransport | None = None,
    ) -> None:
        """`timeout_s` is the deadline of ordinary calls; `http` replaces the connection, for example by an in-process one."""
        self._transport = Transport(base_url, api_key, timeout_s=timeout_s, retries=retries, http=http)
        self.environments = Environments(self._transport)
        self.jobs = Jobs(self._transport)
        self.models = Models(self._transport)
        self.keys = Keys(self._transport)

    @property
    def base_url(self) -> str:
        return self._transport.base_url

    def play(
        self,
        environment: str,
        *,
        real: bool = False,
        task_id: str | None = None,
        instruction: str = "",
        initial_state: str = "",
        seed: int = 0,
        experience_model: str = "latest",
        max_steps: int | None = None,
        transition_budget: int = 100,
    ) -> PlaySession:
        """Start one episode: of a task of the environment, or of any instruction and first state.

        Without `max_steps` the environment's own limit holds.
        `transition_budget` is how many actions may reach the real environment; the dream needs none.
        """
        body: dict[str, Any] = {"where": "real" if real else "dream", "seed": seed}
        body |= {"task_id": task_id} if task_id else {"instruction": instruction, "initial_state": initial_state}
        body |= {"transition_budget": transition_budget} if real else {"experience_model": experience_model}
        if max_steps is not None:
            body["max_steps"] = max_steps
        path = f"/v1/environments/{quote(environment, safe='')}/play"
        answer = self._transport.json("POST", path, json=body, timeout_s=180.0, retried=False)
        return PlaySession(self._transport, answer)

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
