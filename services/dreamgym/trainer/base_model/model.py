"""The base model: a small Llama in the usual format, so that every engine can load it."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from dreamgym.trainer.base_model.tokenizer import entity_parts


def base_config(vocabulary: int, layers: int = 6) -> Any:
    """The `LlamaConfig`: 256 wide, 4 heads on 2 key-value heads, tied embeddings; 5.4 M parameters at 6 layers."""
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )


def build_model(tokenizer: Tokenizer, layers: int = 6, seed: int = 0) -> Any:
    """A fresh fp32 model whose entity embeddings start as noun plus number.

    Without that start the model has to learn for each of the entity tokens which noun and number it stands for; with
    it, what is learnt about one name holds for all.
    """
    torch.manual_seed(seed)
    model = LlamaForCausalLM(base_config(tokenizer.get_vocab_size(), layers))
    parts = torch.tensor(entity_parts(tokenizer))
    with torch.no_grad():
        table = model.model.embed_tokens.weight
        table[parts[:, 0]] = table[parts[:, 1]] + table[parts[:, 2]] + 0.3 * table[parts[:, 0]]
    return model
