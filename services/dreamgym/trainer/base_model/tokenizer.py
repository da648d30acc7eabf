"""The base model's tokenizer: byte-level, with one token for every noun with its number.

` drawer 1` (space, noun, space, number from 1 to 6) is one token for all of `NOUNS`; other text falls back to words,
word pieces and bytes, so any text comes back exactly as it went in. A newline and each of `> ? = # ~` are tokens of
their own, because the prompt layout is built on them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from dreamgym.trainer.base_model import phrases
from dreamgym.trainer.base_model.english import CAPITALISED, WORDS
from dreamgym.trainer.base_model.nouns import NOUNS

PAD, END = "<|pad|>", "<|end|>"
ENTITY_NUMBERS = tuple(range(1, 7))
VOCABULARY_LIMIT = 4096
FALLBACK_MERGES = 240
_SPACE = "Ġ"
"""How the byte-level alphabet writes a space."""


def build_tokenizer() -> Tokenizer:
    """Build the tokenizer from the word lists alone; the same lists always give the same ids."""
    words = _whole_words()
    trained = _fallback(words)
    vocabulary: dict[str, int] = {PAD: 0, END: 1}
    pieces = [piece for piece, _ in sorted(trained["vocab"].items(), key=lambda item: item[1])]
    spaced = [_SPACE + word for word in words]
    numbers = [_SPACE + str(n) for n in range(1, 13)]
    marks = [_SPACE + mark for mark in ">=(?#"]
    bare = [word for word in CAPITALISED] + ["Task", "World"]
    entities = [f"{_SPACE}{noun}{_SPACE}{number}" for noun in NOUNS for number in ENTITY_NUMBERS]
    for piece in [*pieces, *bare, *numbers, *marks, *spaced, *entities]:
        vocabulary.setdefault(piece, len(vocabulary))
    if len(vocabulary) > VOCABULARY_LIMIT:
        raise ValueError(f"the vocabulary has {len(vocabulary)} entries; shorten the word lists to {VOCABULARY_LIMIT}")
    merges = [tuple(merge) for merge in trained["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_pattern()), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([PAD, END])
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json` so that `AutoTokenizer` loads the folder."""
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, clean_up_tokenization_spaces=False
    )
    fast.save_pretrained(folder)


def entity_parts(tokenizer: Tokenizer) -> list[tuple[int, int, int]]:
    """For every entity token its id, the id of its noun and the id of its number."""
    ids = tokenizer.get_vocab()
    return [
        (ids[f"{_SPACE}{noun}{_SPACE}{number}"], ids[_SPACE + noun], ids[_SPACE + str(number)])
        for noun in NOUNS
        for number in ENTITY_NUMBERS
    ]


def _pattern() -> str:
    nouns = "|".join(sorted(NOUNS, key=lambda noun: (-len(noun), noun)))
    return rf"\n| (?:{nouns}) [1-6](?![0-9A-Za-z])| 1[0-2](?![0-9])| ?[A-Za-z]+| ?[0-9]| ?[^\sA-Za-z0-9]|\s"


def _whole_words() -> list[str]:
    """Every word of the worlds' sentences, commands and reasons, of the nouns and of ordinary English; sorted."""
    texts: list[str] = []
    for pools in (phrases.COMMANDS, phrases.SENTENCES, phrases.TASKS, phrases.REASONS):
        texts.extend(text for pool in pools.values() for text in pool)
    texts.extend(f"{verb} {adjective}" for verb, adjective in phrases.TRANSFORMS)
    texts.append("eat throw kick talk to jump on read wait THING PLACE no items empty space nothing at all one")
    texts.append(
        "not holding already closed open fixed switch door here can agent success failure continue unknown command"
    )
    found = {word for text in texts for word in re.findall(r"[A-Za-z]+", re.sub(r"\{.\}", " ", text))}
    found.update(NOUNS, (w for w in WORDS if w.isalpha()), CAPITALISED)
    return sorted(found)


def _fallback(words: list[str]) -> dict[str, Any]:
    """Bytes and the commonest pieces of words, for what is in no list."""
    import json

    pieces = Tokenizer(models.BPE())
    pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = BpeTrainer(
        vocab_size=256 + FALLBACK_MERGES,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    pieces.train_from_iterator([" " + word for word in words] + words, trainer)
    model: dict[str, Any] = json.loads(pieces.to_str())["model"]
    return model
