"""The procedural worlds, their layouts, the tokenizer and the packing that pretrain the base model."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from dreamgym.trainer.base_model import phrases
from dreamgym.trainer.base_model.actors import play, random_action
from dreamgym.trainer.base_model.batches import encode_pieces, make_batch, pack_sample
from dreamgym.trainer.base_model.drawing import draw_world
from dreamgym.trainer.base_model.drills import drill
from dreamgym.trainer.base_model.evaluate import action_accuracy, held_out_samples, transition_accuracy
from dreamgym.trainer.base_model.layout import draw_sample, experience_sample
from dreamgym.trainer.base_model.model import build_model
from dreamgym.trainer.base_model.nouns import NOUNS
from dreamgym.trainer.base_model.rollout import commands_of
from dreamgym.trainer.base_model.tokenizer import build_tokenizer, entity_parts, save_tokenizer
from dreamgym.trainer.base_model.wording import draw_wording
from dreamgym.trainer.base_model.worlds import World
from dreamgym.trainer.branch_packing import (
    attention_mask,
    join_row,
    pack_branches,
    prediction_targets,
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return build_tokenizer()


def _world(seed: int) -> World:
    rng = random.Random(seed)
    return draw_world(rng, draw_wording(rng))


def _facts(world: World) -> tuple[object, ...]:
    return (world.at, world.holding, world.contents, world.closed, world.marks, world.won)


def test_a_seed_always_gives_the_same_sample() -> None:
    assert draw_sample(random.Random(7)) == draw_sample(random.Random(7))
    assert draw_sample(random.Random(7)) != draw_sample(random.Random(8))


@pytest.mark.parametrize("seed", range(60))
def test_the_expert_wins_without_a_refused_action(seed: int) -> None:
    steps = play(random.Random(seed), _world(seed), "expert", limit=60)
    assert steps[-1].outcome.flag == "success"
    assert all(step.outcome.valid for step in steps)


@pytest.mark.parametrize("seed", range(40))
def test_the_noisy_expert_recovers_from_its_slips(seed: int) -> None:
    steps = play(random.Random(seed), _world(seed), "noisy", limit=200)
    assert steps[-1].outcome.flag in ("success", "failure")


@pytest.mark.parametrize("seed", range(40))
def test_an_impossible_action_changes_nothing_and_is_refused_in_the_worlds_one_sentence(seed: int) -> None:
    rng, world = random.Random(seed), _world(seed)
    refused = 0
    for _ in range(60):
        action = random_action(rng, world)
        before = _facts(world.fork())
        outcome = world.step(action)
        if not outcome.valid:
            refused += 1
            assert _facts(world) == before
            assert outcome.state == world.wording.sentences["refused"]
            assert outcome.flag == "continue"
            assert outcome.why
        if outcome.flag != "continue":
            break
    assert refused or outcome.flag != "continue"


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_ever_lost_or_doubled(seed: int) -> None:
    rng, world = random.Random(seed), _world(seed)
    everything = sorted(thing for listed in world.contents.values() for thing in listed)
    for _ in range(80):
        world.step(random_action(rng, world))
        held = [world.holding] if world.holding else []
        assert sorted([thing for listed in world.contents.values() for thing in listed] + held) == everything


def test_a_fork_does_not_touch_its_origin() -> None:
    world = _world(3)
    before = _facts(world.fork())
    play(random.Random(0), world.fork(), "expert")
    assert _facts(world) == before


def test_every_played_command_is_among_the_commands_of_its_world() -> None:
    for seed in range(20):
        world = _world(seed)
        commands = commands_of(world)
        assert all(step.text in commands for step in play(random.Random(seed), world, "expert"))


def test_no_sentence_of_alfworld_is_in_the_pools() -> None:
    banned = re.compile(
        r"^On the |you see nothing|You arrive at|Nothing happens|You pick up the|in the middle of a room"
    )
    sentences = [text for pool in phrases.SENTENCES.values() for text in pool]
    assert not [text for text in sentences if banned.search(text)]


def test_every_noun_with_a_number_up_to_six_is_one_token(tokenizer: Tokenizer) -> None:
    texts = [f" {noun} {number}" for noun in NOUNS for number in range(1, 7)]
    assert all(len(encoding.ids) == 1 for encoding in tokenizer.encode_batch(texts))
    assert len(entity_parts(tokenizer)) == len(texts)


def test_the_vocabulary_stays_small(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab_size() <= 4096


@pytest.mark.parametrize(
    "text",
    [
        "\n> go to drawer 12\n",
        " mug 1mug 12 mug 7,",
        "héllo wörld 日本 \t\r\n  two  spaces ",
        "[14] button: 'Buy Now' $3.50\n",
        "<|x|>",
    ],
)
def test_any_text_comes_back_as_it_went_in(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_the_marks_of_the_layout_are_tokens_of_their_own(tokenizer: Tokenizer) -> None:
    text = "~ > look = No.\n> look\n? valid\n= Yes.\n# continue\n"
    tokens = tokenizer.encode(text).tokens
    assert tokens[:3] == ["~", "Ġ>", "Ġlook"]
    assert tokens.count("Ċ") == 5
    assert {">", "?", "=", "#"} <= set(tokens)


def test_encoding_by_pieces_equals_encoding_the_whole(tokenizer: Tokenizer) -> None:
    rng = random.Random(1)
    for _ in range(40):
        sample = draw_sample(rng)
        for pieces in [sample.main, *(list(branch.pieces) for branch in sample.branches)]:
            ids, _, _ = encode_pieces(tokenizer, pieces)
            assert ids == tokenizer.encode("".join(piece.text for piece in pieces)).ids


def test_each_branch_forks_after_the_state_it_starts_from() -> None:
    rng = random.Random(2)
    for _ in range(20):
        sample = experience_sample(rng, draw_wording(rng))
        for branch in sample.branches:
            assert sample.main[branch.fork - 1].text.endswith("\n")
            assert branch.fork == len(sample.main) or sample.main[branch.fork].text.startswith("> ")
            question, answer = (piece.text for piece in branch.pieces)
            assert question.endswith("\n?")
            assert re.fullmatch(r" [^\n]+\n= [^\n]+\n# (continue|success|failure)\n", answer)


def test_packed_logits_equal_those_of_the_plain_sequences(tokenizer: Tokenizer) -> None:
    model = build_model(tokenizer, layers=2).eval()
    rng = random.Random(5)
    sample = experience_sample(rng, draw_wording(rng))
    packed = pack_sample(tokenizer, sample, limit=2000)
    row = join_row([pack_branches([5, 6, 7], []), packed], len(packed) + 10, pad_id=0)
    mask = attention_mask(row)
    with torch.no_grad():
        together = model(
            input_ids=torch.tensor([row.ids]),
            position_ids=torch.tensor([row.positions]),
            attention_mask=mask[None, None],
        ).logits[0, 3:]
        main, _, starts = encode_pieces(tokenizer, sample.main)
        torch.testing.assert_close(together[: len(main)], model(torch.tensor([main])).logits[0], atol=2e-4, rtol=1e-3)
        offset = len(main)
        for branch in sample.branches:
            ids, _, _ = encode_pieces(tokenizer, branch.pieces)
            fork = starts[branch.fork]
            plain = model(torch.tensor([main[:fork] + ids])).logits[0, fork:]
            torch.testing.assert_close(together[offset : offset + len(ids)], plain, atol=2e-4, rtol=1e-3)
            offset += len(ids)


def test_no_target_crosses_the_border_of_a_branch_or_document() -> None:
    packed = pack_branches([2, 3, 4], [(2, [5, 6], [0.0, 1.0]), (3, [7, 8], [1.0, 1.0])], [0.0, 0.5, 0.5])
    targets, weights = prediction_targets(packed)
    assert targets == [3, 4, 0, 6, 0, 8, 0]
    assert weights == [0.5, 0.5, 0.0, 1.0, 0.0, 1.0, 0.0]
    row = join_row([pack_branches([2], [], [1.0]), pack_branches([3], [], [1.0])], 2, pad_id=0)
    assert prediction_targets(row)[1] == [0.0, 0.0]


def test_a_fork_outside_the_chain_and_a_row_too_long_are_refused() -> None:
    with pytest.raises(ValueError, match="forks at 4"):
        pack_branches([2, 3, 4], [(4, [5], [1.0])])
    with pytest.raises(ValueError, match="loss mask of 2"):
        pack_branches([2, 3, 4], [(1, [5], [1.0, 1.0])])
    with pytest.raises(ValueError, match="do not fit"):
        join_row([pack_branches([2, 3, 4], [])], 2, pad_id=0)


def test_a_batch_is_full_enough_and_always_the_same(tokenizer: Tokenizer) -> None:
    batch, again = (make_batch(tokenizer, 3, rows=4, length=512) for _ in range(2))
    assert batch.ids.shape == (4, 512)
    assert torch.equal(batch.ids, again.ids)
    assert torch.equal(batch.chosen, again.chosen)
    assert (batch.document >= 0).float().mean() > 0.8
    assert 0 < batch.weights.sum() < len(batch.weights)


def test_a_drill_asks_only_for_what_stands_above() -> None:
    rng = random.Random(4)
    for _ in range(50):
        pieces = drill(rng).main
        for number, piece in enumerate(pieces):
            if piece.weight:
                above = "".join(earlier.text for earlier in pieces[:number])
                names = re.findall(r"[a-z]+ \d", piece.text)
                assert all(name in above for name in names)


def test_an_untrained_model_already_copies_a_repeated_sequence(tokenizer: Tokenizer) -> None:
    model = build_model(tokenizer).eval()
    generator = torch.Generator().manual_seed(0)
    once = torch.randint(300, tokenizer.get_vocab_size(), (8, 30), generator=generator)
    with torch.no_grad():
        guesses = model(torch.cat([once, once], dim=1)).logits[:, 30:-1].argmax(-1)
    assert (guesses == once[:, 1:]).float().mean() > 0.3


def test_held_out_worlds_are_measured_by_kind_of_action(tokenizer: Tokenizer) -> None:
    model = build_model(tokenizer, layers=2).eval()
    samples = held_out_samples(seed=0, count=2)
    report = transition_accuracy(model, tokenizer, samples) | action_accuracy(model, tokenizer, samples)
    assert {"answer_exact/known", "entity_accuracy", "action_exact"} <= set(report)
    assert all(0 <= value <= 1 for value in report.values())


def test_the_saved_model_loads_as_an_ordinary_llama(tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = build_model(tokenizer, layers=6)
    assert sum(parameter.numel() for parameter in model.parameters()) <= 6_000_000
    model.save_pretrained(tmp_path)
    save_tokenizer(tokenizer, tmp_path)
    loaded, fast = AutoModelForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.config.model_type == "llama"
    text = "> go to drawer 1\n"
    assert fast(text)["input_ids"] == tokenizer.encode(text).ids
    assert fast.decode(fast(text)["input_ids"]) == text
    assert fast.pad_token_id == 0
    assert fast.eos_token_id == 1
