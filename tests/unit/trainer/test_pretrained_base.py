"""The trimmed tokenizer on a small one of our own; the real model where its package is installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from dreamgym.core.errors import ModelMissingError
from dreamgym.core.pretrained import SMOLLM2_PACKAGES, missing_packages
from dreamgym.inference.local_model import hidden_states, load_model, load_tokenizer
from dreamgym.inference.model_store import ModelStore
from dreamgym.trainer import pretrained_base
from dreamgym.trainer.pretrained_base import END_OF_TEXT, smollm2_base, trim_tokenizer

PIECES = [
    "Task: put a mug in the cabinet\n",
    " go to cabinet 12\n",
    "You open the cabinet 12. In it, you see a mug 3.\n>",
]
OTHER = "Ein völlig anderer Text, 47 % davon 日本語."


@pytest.fixture(scope="module")
def full() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=[END_OF_TEXT, "<|im_start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    text = Path(pretrained_base.__file__).read_text()
    tokenizer.train_from_iterator([*PIECES * 20, text], trainer)
    return tokenizer


def trimmed(full: Tokenizer, size: int) -> tuple[Tokenizer, list[int]]:
    content, kept = trim_tokenizer(json.loads(full.to_str()), PIECES, lambda piece: full.encode(piece).ids, size)
    return Tokenizer.from_str(json.dumps(content)), kept


@pytest.mark.parametrize("size", [1, 400])
def test_known_texts_keep_their_tokens_and_every_text_can_be_written(full: Tokenizer, size: int) -> None:
    small, kept = trimmed(full, size)
    assert size <= small.get_vocab_size() == len(kept) < full.get_vocab_size()
    for piece in PIECES:
        assert [kept[i] for i in small.encode(piece).ids] == full.encode(piece).ids
    assert small.decode(small.encode(OTHER).ids) == OTHER


def test_special_tokens_that_are_kept_keep_their_meaning(full: Tokenizer) -> None:
    small, kept = trimmed(full, 300)
    assert small.token_to_id("<|im_start|>") is None
    assert kept[small.token_to_id(END_OF_TEXT)] == full.token_to_id(END_OF_TEXT)


def test_without_the_packages_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SMOLLM2_PACKAGES, "no_such_package", "a test")
    with pytest.raises(ModelMissingError, match=r"no_such_package \(a test\)") as raised:
        smollm2_base(ModelStore(tmp_path), "env_1", PIECES)
    assert "make setup-pretrained" in raised.value.remedy


@pytest.mark.skipif(bool(missing_packages()), reason="make setup-pretrained installs what this needs")
def test_the_real_model_copies_before_any_training(tmp_path: Path) -> None:
    """What the trimming must not destroy: repeating a random sequence seen once before (induction)."""
    store = ModelStore(tmp_path)
    published = smollm2_base(store, "env_1", PIECES)
    assert smollm2_base(store, "env_1", [*PIECES, "later texts"]) == published, "token ids of an environment stay"
    model, tokenizer = load_model(published.path), load_tokenizer(published.path)
    ids = torch.randint(300, len(tokenizer), (8, 48), generator=torch.Generator().manual_seed(1)).repeat(1, 2)
    with torch.inference_mode():
        hidden = hidden_states(model, ids, torch.arange(96)[None].expand(8, -1), None)
        predicted = model.lm_head(hidden[:, 48:-1]).argmax(-1)
    assert (predicted == ids[:, 49:]).float().mean() > 0.85
