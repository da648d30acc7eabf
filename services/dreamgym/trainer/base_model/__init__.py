"""The common base language model of policy and experience model: how it is made, and where its checkpoint lies.

A 5.4 M parameter Llama pretrained only on procedural text worlds with random wordings and random names (`worlds.py`),
so that it has to read and to copy instead of remembering. `pretrain.py` rebuilds it, `probe.py` measures what it is
worth on recorded episodes.
"""

from __future__ import annotations

from pathlib import Path

CHECKPOINT = Path(__file__).parent / "checkpoint"
"""Folder of the committed checkpoint (bf16 weights, configuration, tokenizer), in the usual Llama format."""
