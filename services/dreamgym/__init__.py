"""DreamGym: train LLM agents on synthesized experience."""

__version__ = "0.1.0"
