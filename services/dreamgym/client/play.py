"""Playing an environment by hand: one session is one episode, in the dream or in reality."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from dreamgym.client.transport import Transport
from dreamgym.client.values import EpisodeStart, Observation
from dreamgym.core.errors import DreamGymError


class PlaySession:
    """A running episode; leaving the context frees what it holds."""

    def __init__(self, transport: Transport, answer: dict[str, Any]) -> None:
        self._transport = transport
        self.start = EpisodeStart.model_validate(answer)
        """The task, and what it looks like at first."""
        self.observation: Observation = self.start
        """The newest observation."""

    @property
    def id(self) -> str:
        return self.start.session

    def act(self, action: str) -> Observation:
        """Perform one action. It is sent once: a step whose answer was lost must not be made twice."""
        path = f"/v1/play/{quote(self.id, safe='')}/act"
        answer = self._transport.json("POST", path, json={"action": action}, timeout_s=180.0, retried=False)
        self.observation = Observation.model_validate(answer)
        return self.observation

    def close(self) -> None:
        """End the episode; a session that is gone already is no error."""
        try:
            self._transport.request("DELETE", f"/v1/play/{quote(self.id, safe='')}", retried=False)
        except DreamGymError as error:
            if error.code not in ("not_found", "unavailable"):
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
