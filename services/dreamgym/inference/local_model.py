"""Llama-shaped transformers models run by their own modules: one forward pass for training, prefill and decoding.

Works for models whose decoder layers have `self_attn.{q,k,v,o}_proj`, `mlp` and two norms (Llama, Qwen-2.5, Mistral,
SmolLM2). Shapes: B rows, T query tokens, S key tokens, D hidden, V vocabulary.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from dreamgym.core.errors import InvalidInputError, ModelMissingError
from dreamgym.inference.model_store import refuse_unsafe_weights

EXCLUDED_LOGIT = -1e9
"""Logit of a token that may not be sampled; finite, so that an entropy stays a number."""


class KeyValueBuffer:
    """Keys and values of B rows: tensor [layers, 2, B, kv heads, S, head size], written at each row's own positions."""

    def __init__(self, data: Tensor) -> None:
        self.data = data

    @classmethod
    def empty(
        cls, layers: int, rows: int, heads: int, length: int, head_size: int, dtype: torch.dtype
    ) -> KeyValueBuffer:
        return cls(torch.zeros(layers, 2, rows, heads, length, head_size, dtype=dtype))

    def rows(self, start: int, end: int) -> KeyValueBuffer:
        """A view of some rows."""
        return KeyValueBuffer(self.data[:, :, start:end])

    def first(self, length: int) -> KeyValueBuffer:
        """A view of the first places, so that attention does not read what no row has reached."""
        return KeyValueBuffer(self.data[:, :, :, :, :length])

    def write(self, layer: int, keys: Tensor, values: Tensor, positions_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Store [B, heads, T, size] at positions and return everything [B, heads, S, size]."""
        # Indexed assignment writes in place; scatter_ on a view copies the whole buffer each time (7 x slower here).
        rows = torch.arange(positions_BT.shape[0])[:, None]
        self.data[layer, 0].transpose(1, 2)[rows, positions_BT] = keys.transpose(1, 2)
        self.data[layer, 1].transpose(1, 2)[rows, positions_BT] = values.transpose(1, 2)
        return self.data[layer, 0], self.data[layer, 1]


def load_model(path: Path, dtype: torch.dtype = torch.float32) -> Any:
    """A causal model from a folder of safetensors, never from a hub."""
    if not (path / "config.json").exists():
        raise ModelMissingError(f"There is no model in {path}.", remedy="Train it, or give another model version.")
    refuse_unsafe_weights(path)
    model = AutoModelForCausalLM.from_pretrained(path, local_files_only=True, dtype=dtype, use_safetensors=True)
    layers = getattr(getattr(model, "model", None), "layers", None)
    if layers is None or not hasattr(layers[0].self_attn, "q_proj"):
        raise InvalidInputError(
            f"The local engine cannot run {type(model).__name__}.",
            remedy="Use a Llama- or Qwen-2.5-shaped model, or the vllm engine.",
        )
    return model


def load_tokenizer(path: Path) -> Any:
    """The tokenizer saved beside a model."""
    file = path / "tokenizer.json"
    if not file.exists():
        raise ModelMissingError(f"There is no tokenizer.json in {path}.", remedy="Save the tokenizer with the model.")
    return PreTrainedTokenizerFast(tokenizer_file=str(file), clean_up_tokenization_spaces=False)


def hidden_states(
    model: Any, ids_BT: Tensor, positions_BT: Tensor, mask_BTS: Tensor | None, buffer: KeyValueBuffer | None = None
) -> Tensor:
    """Last hidden states [B, T, D].

    `mask_BTS` is True where a query may attend; None means plain causal attention (without a buffer). With a buffer, keys
    and values are written at `positions_BT` and S is the buffer's length.
    """
    decoder = model.model
    config = model.config
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    hidden = decoder.embed_tokens(ids_BT)
    rows, length = ids_BT.shape
    cos, sin = decoder.rotary_emb(hidden, positions_BT)
    # Made additive once, in the type that attention computes in: each layer would convert and keep its own otherwise.
    mask = None if mask_BTS is None else _additive(mask_BTS, _attention_dtype(decoder.layers[0]))[:, None]
    for number, layer in enumerate(decoder.layers):
        attention = layer.self_attn
        normed = layer.input_layernorm(hidden)
        queries = attention.q_proj(normed).view(rows, length, heads, head_size).transpose(1, 2)
        keys = attention.k_proj(normed).view(rows, length, kv_heads, head_size).transpose(1, 2)
        values = attention.v_proj(normed).view(rows, length, kv_heads, head_size).transpose(1, 2)
        queries, keys = apply_rotary_pos_emb(queries, keys, cos, sin)
        if buffer is not None:
            keys, values = buffer.write(number, keys.to(buffer.data.dtype), values.to(buffer.data.dtype), positions_BT)
        attended = functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=heads != kv_heads
        )
        hidden = hidden + attention.o_proj(attended.transpose(1, 2).reshape(rows, length, heads * head_size))
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    normed_out: Tensor = decoder.norm(hidden)
    return normed_out


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where the mask is True, minus infinity elsewhere."""
    return torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, -torch.inf)


def _attention_dtype(layer: Any) -> torch.dtype:
    """What the projections answer: autocast's type where it is on, else that of the weights."""
    if torch.is_autocast_enabled("cpu"):
        return torch.get_autocast_dtype("cpu")
    dtype: torch.dtype = layer.self_attn.q_proj.weight.dtype
    return dtype
