"""The Python client of the DreamGym gateway."""

from dreamgym.client.errors import ProtocolError, UnreachableError
from dreamgym.client.events import Event
from dreamgym.client.platform import DreamGym
from dreamgym.client.play import PlaySession
from dreamgym.client.transport import Retries

__all__ = ["DreamGym", "Event", "PlaySession", "ProtocolError", "Retries", "UnreachableError"]
