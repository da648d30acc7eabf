"""Loopback ports: remembered ones first, otherwise free ones outside the ephemeral range."""

import random
import socket
from pathlib import Path

from dreamgym.embedded.errors import PortRefusedError

LOOPBACK = "127.0.0.1"
_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST, _WIDTH, _TRIES = 10_240, 16_384, 64


def refusal(port: int, host: str = LOOPBACK) -> str | None:
    """Why `port` cannot be listened on, or None when it can."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: a port in TIME_WAIT after our own last run is free, a listening one is not.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except (OSError, OverflowError) as error:
            return getattr(error, "strerror", None) or str(error)
    return None


def choose_port(remembered: int | None = None, taken: frozenset[int] = frozenset()) -> int:
    """`remembered` if it is still free, else another free port.

    Ports of the ephemeral range are avoided: while a server restarts, a client that keeps connecting to its port on
    loopback could be given that very port as its own and connect to itself, which keeps the server out for good.
    """
    if remembered and remembered not in taken and refusal(remembered) is None:
        return remembered
    ceiling = _ephemeral_floor()
    if ceiling - _LOWEST >= 1024:
        for _ in range(_TRIES):
            port = random.randrange(max(_LOWEST, ceiling - _WIDTH), ceiling)
            if port not in taken and refusal(port) is None:
                return port
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def require_port(port: int, host: str = LOOPBACK) -> int:
    """`port` itself, or PortRefusedError: for a port that a person asked for by number."""
    if (detail := refusal(port, host)) is not None:
        raise PortRefusedError(host, port, detail)
    return port


def _ephemeral_floor() -> int:
    try:
        return int(_RANGE_FILE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768
