"""The platform's services on one machine: which there are, what they need, how they are told."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from celery import Celery

from dreamgym.embedded.ports import LOOPBACK
from dreamgym.embedded.service_spec import ServiceSpec

REPLICAS = {"experience": ("experience", "experience-2")}
"""Services that run more than once; clients go round them. The dream decodes token by token on one core while the trainer
waits for it: on two cores a second replica uses the other."""
SERVICES = ("replay", "experience", "curriculum", "bridge")
GRPC_SERVICES = tuple(replica for name in SERVICES for replica in REPLICAS.get(name, (name,)))
PORTS = (*GRPC_SERVICES, "jobs", "gateway", *(f"{name}-metrics" for name in GRPC_SERVICES))
"""Everything that listens, by name; `jobs` is the gateway's gRPC side, `NAME-metrics` a service's Prometheus page."""
TRAINER_NODE = "trainer@localhost"
QUEUE = "train"
HEALTH_PATH = "/healthz"
_START_DEADLINE_S = 120.0
_DRAIN_S = 15.0  # above the time that servers give their open calls
# Model code allocates and frees the same large tensors at every step: keep their memory instead of giving it back to
# the kernel each time. The pad is small enough for a 6 GB machine.
_KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(4 * 1024**3),
    "MALLOC_TRIM_THRESHOLD_": str(8 * 1024**3),
    "MALLOC_TOP_PAD_": str(64 * 1024**2),
    # One arena: what one thread freed serves the next, instead of every thread's arena keeping its own peak.
    "MALLOC_ARENA_MAX": "1",
    # Kernels that the matrix library keeps, by shape of their input: 1024 of them, its default, are gigabytes.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
}


@dataclass(frozen=True)
class Wiring:
    """What the services share: addresses, stores, the token of internal calls. Holds secrets: never log it."""

    ports: dict[str, int]
    database_url: str
    broker_url: str
    service_token: str
    state_dir: Path
    quick: bool = False

    @property
    def object_store(self) -> Path:
        return self.state_dir / "objects"

    def address(self, name: str) -> str:
        """host:port of what listens under `name`."""
        return f"{LOOPBACK}:{self.ports[name]}"

    def target(self, service: str) -> str:
        """What clients of a service connect to: its address, or those of all its replicas."""
        addresses = [self.address(replica) for replica in REPLICAS.get(service, (service,))]
        return addresses[0] if len(addresses) == 1 else "ipv4:" + ",".join(addresses)

    @property
    def gateway_url(self) -> str:
        return f"http://{self.address('gateway')}"

    def environment(self) -> dict[str, str]:
        """The settings of every service, as environment variables."""
        return {
            "DREAMGYM_DATABASE_URL": self.database_url,
            "DREAMGYM_BROKER_URL": self.broker_url,
            **{f"DREAMGYM_{name.upper()}_ADDRESS": self.target(name) for name in (*SERVICES, "jobs")},
            "DREAMGYM_GATEWAY_HOST": LOOPBACK,
            "DREAMGYM_GATEWAY_PORT": str(self.ports["gateway"]),
            "DREAMGYM_GATEWAY_URL": self.gateway_url,
            "DREAMGYM_OBJECT_STORE": str(self.object_store),
            "DREAMGYM_SERVICE_TOKEN": self.service_token,
            "DREAMGYM_STATE_DIR": str(self.state_dir),
            "DREAMGYM_QUICK": "1" if self.quick else "0",
            "OMP_NUM_THREADS": "1",
        }


def default_command(name: str) -> Sequence[str]:
    """The command line of a service or replica; none carries a secret."""
    if name != "trainer":
        return [sys.executable, "-m", f"dreamgym.{service_of(name)}.server"]
    options = ["--concurrency=1", "--loglevel=INFO", "--queues", QUEUE, "--without-gossip", "--without-mingle"]
    return [
        *(sys.executable, "-m", "celery", "-A", "dreamgym.trainer.worker", "worker"),
        *(*options, f"--hostname={TRAINER_NODE}"),
    ]


def service_of(replica: str) -> str:
    """The service that a replica is one of."""
    return next((service for service, replicas in REPLICAS.items() if replica in replicas), replica)


def service_specs(wiring: Wiring, command: Callable[[str], Sequence[str]] = default_command) -> list[ServiceSpec]:
    """All services in the order of their needs: the gateway needs the others, the trainer needs the gateway."""
    environment, folder = wiring.environment(), wiring.state_dir
    specs = [
        ServiceSpec(
            name=name,
            command=command(name),
            health=("grpc", wiring.address(name)),
            environment={
                **environment,
                f"DREAMGYM_{service_of(name).upper()}_ADDRESS": wiring.address(name),  # where it listens itself
                "DREAMGYM_METRICS_PORT": str(wiring.ports[f"{name}-metrics"]),
                **(_KEEP_MEMORY if service_of(name) == "experience" else {}),
            },
            start_deadline_s=_START_DEADLINE_S,
            stop_grace_s=_DRAIN_S,
            folder=folder,
        )
        for name in GRPC_SERVICES
    ]
    gateway = ServiceSpec(
        name="gateway",
        command=command("gateway"),
        health=("http", wiring.gateway_url + HEALTH_PATH),
        environment=environment,
        depends_on=GRPC_SERVICES,
        stop_grace_s=_DRAIN_S,
        start_deadline_s=_START_DEADLINE_S,
        folder=folder,
    )
    trainer = ServiceSpec(
        name="trainer",
        command=command("trainer"),
        health=lambda: worker_answers(wiring.broker_url),
        environment={**environment, **_KEEP_MEMORY},
        depends_on=("gateway",),
        start_deadline_s=_START_DEADLINE_S,
        stop_grace_s=20.0,  # a running step ends; what is lost after that is in the last checkpoint
        folder=folder,
    )
    return [*specs, gateway, trainer]


def worker_answers(broker_url: str, node: str = TRAINER_NODE, timeout_s: float = 1.0) -> bool:
    """Whether the Celery worker answers a ping over the broker."""
    with Celery(broker=broker_url, set_as_current=False) as application:
        return bool(application.control.ping(destination=[node], timeout=timeout_s))
