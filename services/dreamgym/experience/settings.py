"""Settings of the experience service."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr

from dreamgym.wire.settings import ServiceSettings


class ExperienceSettings(ServiceSettings):
    """What the experience service may hold and where its engines and its teacher are."""

    experience_max_episodes: int = Field(256, ge=1)
    """Episodes that may be open at the same time; the next one is refused with `capacity`."""
    experience_engines: int = Field(2, ge=1)
    """Model versions kept loaded; the one unused for longest leaves first."""
    experience_slots: int = Field(128, ge=1)
    """Sequences that the local engine decodes together."""
    experience_threads: int = Field(1, ge=1)
    """CPU threads of the local engine."""
    experience_remembered: int = Field(4096, ge=0)
    """Answers that the local engine keeps for equal prompts: episodes of one group ask the same of the same world."""
    experience_step_deadline_s: float = Field(120.0, gt=0)
    """Longest time for one step of an episode, retrieval and generation together."""
    retrieval_window_s: float = Field(0.004, ge=0)
    """How long a retrieval waits for others, so that many episodes share one search."""
    annotate_max_episodes: int = Field(20_000, ge=1)
    """Episodes in one Annotate call; they are held in memory to join what they reveal about the same world."""

    vllm_url: str = ""
    """Root of a vLLM server, for example http://127.0.0.1:8000; used by models whose card says engine `vllm`."""
    vllm_tokenizer: Path | None = None
    """Folder or tokenizer.json of that model; without one the server is asked."""

    teacher_url: str = ""
    """Root of an OpenAI-compatible API that annotates trajectories; empty: no teacher."""
    teacher_model: str = ""
    teacher_key: SecretStr = SecretStr("")
    teacher_timeout_s: float = Field(120.0, gt=0)
    teacher_attempts: int = Field(3, ge=1)
