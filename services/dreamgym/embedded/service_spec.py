"""What the supervisor is told about a service, and the rules that a set of them must obey."""

import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dreamgym.embedded.errors import ServiceSpecError
from dreamgym.embedded.health import Health
from dreamgym.embedded.service_user import ServiceUser


@dataclass(frozen=True)
class RestartPolicy:
    """Wait `initial_s`, doubling to `maximum_s`, before each restart; give up after `limit` deaths in `window_s`."""

    initial_s: float = 0.5
    maximum_s: float = 10.0
    limit: int = 5
    window_s: float = 120.0

    def delay_s(self, deaths: int) -> float:
        """The wait after the `deaths`-th death in a row (from 1)."""
        return min(self.maximum_s, self.initial_s * 2.0 ** min(max(deaths - 1, 0), 30))


@dataclass(frozen=True)
class Liveness:
    """Probe a running service every `interval_s`; after `misses` probes without an answer in a row it counts as hung."""

    interval_s: float = 10.0
    misses: int = 6


@dataclass(frozen=True)
class ServiceSpec:
    """One supervised process.

    `environment` is added to a small base (PATH, HOME, locale). `depends_on` names services that must be healthy
    before this one is started.
    """

    name: str
    command: Sequence[str]
    health: Health
    environment: Mapping[str, str] = field(default_factory=dict)
    depends_on: Sequence[str] = ()
    restart: RestartPolicy = RestartPolicy()
    liveness: Liveness = Liveness()
    start_deadline_s: float = 60.0
    stop_grace_s: float = 10.0
    stop_signal: signal.Signals = signal.SIGTERM
    user: ServiceUser | None = None
    folder: Path = Path("/")


def check_specs(specs: Iterable[ServiceSpec], known: Iterable[str] = ()) -> None:
    """Raise ServiceSpecError for a name used twice, an unusable name or a dependency that is not an earlier service."""
    names = set(known)
    for spec in specs:
        if not spec.name or not all(letter.isalnum() or letter in "-_" for letter in spec.name):
            raise ServiceSpecError(f"{spec.name!r} cannot name a service.", "Use letters, digits, - and _.")
        if spec.name in names:
            raise ServiceSpecError(f"The service {spec.name} is given twice.", "Give each service one name.")
        if missing := [name for name in spec.depends_on if name not in names]:
            raise ServiceSpecError(
                f"The service {spec.name} depends on {', '.join(missing)}, which is not an earlier service.",
                "List services after what they depend on.",
            )
        if not spec.command:
            raise ServiceSpecError(f"The service {spec.name} has no command.", "Give it one.")
        names.add(spec.name)
