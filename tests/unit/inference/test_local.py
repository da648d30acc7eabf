"""The in-process engine against transformers' own forward pass, on a tiny model in full precision."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from dreamgym.core.errors import ContextOverflowError, EngineError, InvalidInputError, ModelMissingError
from dreamgym.inference.engine import Generation, GenerationRequest
from dreamgym.inference.local import LocalEngine
from dreamgym.inference.local_model import load_model
from dreamgym.inference.slices import slices

NEVER = ("\0\0\0",)


@pytest.fixture
async def engine(tiny_model: Path) -> AsyncIterator[LocalEngine]:
    engine = LocalEngine(tiny_model, "v1", dtype=torch.float32)
    yield engine
    await engine.close()


def ask(engine: LocalEngine, text: str, **fields: Any) -> GenerationRequest:
    request = GenerationRequest(session="s", prompt_ids=engine.encode(text), max_new_tokens=12, stop=NEVER)
    return replace(request, **fields)


def greedy(path: Path, prompt: list[int], steps: int) -> tuple[list[int], list[float]]:
    """Greedy decoding by the library's own forward pass, the whole text anew at each step."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    ids, logprobs = list(prompt), []
    with torch.no_grad():
        for _ in range(steps):
            scores = torch.log_softmax(model(torch.tensor([ids])).logits[0, -1], dim=-1)
            ids.append(int(scores.argmax()))
            logprobs.append(float(scores.max()))
    return ids[len(prompt) :], logprobs


async def test_greedy_decoding_is_the_argmax_of_the_librarys_forward_pass(
    engine: LocalEngine, tiny_model: Path
) -> None:
    prompts = ["a", "You are in a room.\n>", "x" * 40]
    answers = await asyncio.gather(*[engine.generate(ask(engine, p, session=p)) for p in prompts])
    for prompt, answer in zip(prompts, answers, strict=True):
        ids, logprobs = greedy(tiny_model, engine.encode(prompt), 12)
        assert answer.token_ids == ids
        assert answer.logprobs == pytest.approx(logprobs, abs=1e-4)


async def test_long_and_short_prompts_of_one_batch_are_computed_apart_and_answered_in_order(
    engine: LocalEngine, tiny_model: Path
) -> None:
    prompts = [letter * (40 if number % 3 else 2) for number, letter in enumerate("abcdefghijklmnopqrstuvwxyz")]
    requests = [ask(engine, p, session=p, max_new_tokens=4) for p in prompts]
    assert slices(sorted((len(r.prompt_ids) for r in requests), reverse=True)) == [(0, 17), (17, 26)]
    answers = await asyncio.gather(*[engine.generate(request) for request in requests])
    assert engine.counters["batches"] == 1
    for request, answer in zip(requests, answers, strict=True):
        assert answer.token_ids == greedy(tiny_model, list(request.prompt_ids), 4)[0]


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([5], [(0, 1)]),
        ([1] * 9 + [0] * 9, [(0, 18)]),
        ([9] * 20, [(0, 20)]),
        ([90] * 7 + [9] * 20, [(0, 8), (8, 27)]),
        ([90] * 20 + [9] * 7, [(0, 27)]),
    ],
)
def test_rows_are_sliced_only_where_it_pays(lengths: list[int], expected: list[tuple[int, int]]) -> None:
    assert slices(lengths) == expected


async def test_a_sampled_tokens_logprob_is_that_of_the_tempered_distribution(
    engine: LocalEngine, tiny_model: Path
) -> None:
    answer = await engine.generate(ask(engine, "hello", temperature=0.7, seed=3, max_new_tokens=6))
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()
    prompt = engine.encode("hello")
    with torch.no_grad():
        logits = model(torch.tensor([prompt + answer.token_ids])).logits[0, len(prompt) - 1 : -1]
    scores = torch.log_softmax(logits / 0.7, dim=-1)
    assert answer.logprobs == pytest.approx(
        [float(scores[i, token]) for i, token in enumerate(answer.token_ids)], abs=1e-4
    )


async def test_a_session_that_goes_on_forks_and_rolls_back_writes_what_a_fresh_one_would(engine: LocalEngine) -> None:
    turn = await engine.generate(ask(engine, "Task: open the door\nA room.\n>"))
    base = engine.encode("Task: open the door\nA room.\n>")
    goes_on = base + turn.token_ids + engine.encode("\nThe door opens.\n>")
    forks = base + engine.encode(" look\nA lamp.\n>")
    rolled_back = base[:-5]
    for number, prompt in enumerate((goes_on, forks, rolled_back, goes_on, base)):
        for temperature in (0.0, 1.0):
            request = ask(engine, "", prompt_ids=prompt, temperature=temperature, seed=number)
            cached = await engine.generate(request)
            fresh = await engine.generate(replace(request, session=f"fresh-{number}-{temperature}"))
            assert cached.cached_tokens > 0
            assert fresh.cached_tokens == 0
            assert cached.token_ids == fresh.token_ids
            assert cached.logprobs == pytest.approx(fresh.logprobs, abs=1e-4)


async def test_a_seed_gives_the_same_tokens_alone_and_among_sixteen(engine: LocalEngine) -> None:
    requests = [
        ask(engine, "state " * (1 + i % 5), session=f"s{i}", temperature=1.0, seed=i, max_new_tokens=4 + i)
        for i in range(16)
    ]
    together = await asyncio.gather(*[engine.generate(request) for request in requests])
    assert engine.counters["batches"] < 16
    for request, among in zip(requests, together, strict=True):
        alone = await engine.generate(replace(request, session=f"alone-{request.session}"))
        assert alone.token_ids == among.token_ids
    assert len({tuple(answer.token_ids[:4]) for answer in together}) > 8


async def test_requests_of_one_session_are_answered_one_after_another(engine: LocalEngine) -> None:
    prompts = ["one", "two", "three"]
    answers = await asyncio.gather(*[engine.generate(ask(engine, prompt)) for prompt in prompts])
    fresh = [await engine.generate(ask(engine, p, session=f"fresh {p}")) for p in prompts]
    assert [a.token_ids for a in answers] == [f.token_ids for f in fresh]


async def test_the_window_counts_prompt_and_completion(engine: LocalEngine) -> None:
    window = engine.context_window
    assert window == 512
    fits = ask(engine, "a" * (window - 12))
    assert len((await engine.generate(fits)).token_ids) == 12
    with pytest.raises(ContextOverflowError, match=r"501 tokens plus 12 does not fit the window of 512") as caught:
        await engine.generate(ask(engine, "a" * (window - 11)))
    assert caught.value.remedy


async def test_a_narrower_window_may_be_asked_for(tiny_model: Path) -> None:
    engine = LocalEngine(tiny_model, "v1", context_window=20)
    with pytest.raises(ContextOverflowError):
        await engine.generate(ask(engine, "a" * 9))
    await engine.close()


async def test_new_weights_bring_a_new_version_and_forget_the_caches(engine: LocalEngine, tiny_model: Path) -> None:
    request = ask(engine, "You see a desk.")
    before = await engine.generate(request)
    assert (await engine.generate(request)).cached_tokens > 0
    changed = load_model(tiny_model)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    engine.load_weights(changed.state_dict(), "v2")
    after = await engine.generate(request)
    assert (before.model_version, after.model_version, engine.model_version) == ("v1", "v2", "v2")
    assert after.cached_tokens == 0
    assert after.token_ids != before.token_ids


async def test_generation_ends_with_the_stop_string_in_the_output(engine: LocalEngine, tiny_model: Path) -> None:
    for prompt in (f"state {i}" for i in range(50)):
        ids, _ = greedy(tiny_model, engine.encode(prompt), 12)
        texts = [engine.decode([token]) for token in ids]
        # Two tokens that are characters, for a stop string that crosses the border between tokens.
        last = next((i for i in range(3, 12) if (texts[i - 1] + texts[i]).isascii()), 0)
        if last and "".join(texts).index(texts[last - 1] + texts[last]) == len("".join(texts[: last - 1])):
            break
    stop = texts[last - 1] + texts[last]
    answer = await engine.generate(ask(engine, prompt, stop=("never", stop)))
    assert answer.token_ids == ids[: last + 1]
    assert answer.finish == "stop"
    assert answer.text.endswith(stop)
    cut = await engine.generate(ask(engine, prompt, max_new_tokens=3))
    assert (cut.token_ids, cut.finish) == (ids[:3], "length")


async def test_a_released_session_starts_anew(engine: LocalEngine) -> None:
    await engine.generate(ask(engine, "hello"))
    await engine.release("s")
    await engine.release("never seen")
    assert (await engine.generate(ask(engine, "hello"))).cached_tokens == 0


async def test_only_so_many_sessions_are_kept(tiny_model: Path) -> None:
    engine = LocalEngine(tiny_model, "v1", sessions=2, dtype=torch.float32)
    for session in ("a", "b", "c"):
        await engine.generate(ask(engine, "hello", session=session))
    assert (await engine.generate(ask(engine, "hello", session="c"))).cached_tokens > 0
    assert (await engine.generate(ask(engine, "hello", session="a"))).cached_tokens == 0
    await engine.close()


async def test_text_beyond_ascii_comes_out_whole(engine: LocalEngine, tiny_model: Path) -> None:
    """A character may be several tokens, and a token then is no character."""
    wanted = "ß水"
    changed = load_model(tiny_model)
    ids = engine.encode(wanted)
    head = torch.zeros(256, 32)
    # The output layer is tied to the embedding, so a fixed continuation needs weights of its own: each token points on.
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.zero_()
        changed.model.norm.weight.fill_(1.0)
        chain = [*engine.encode(">"), *ids]
        for place, token in enumerate(chain):
            head[token, place] = 1.0
        changed.model.embed_tokens.weight.copy_(head)
        changed.lm_head.weight = torch.nn.Parameter(torch.zeros(256, 32))
        for place, token in enumerate(ids):
            changed.lm_head.weight[token, place] = 10.0
    engine._model = changed.eval()  # the only way to a model that writes a given text
    answer = await engine.generate(ask(engine, ">", max_new_tokens=len(ids)))
    assert answer.token_ids == ids
    assert answer.text == wanted


async def test_a_prompt_without_tokens_is_refused_and_harms_no_neighbour(engine: LocalEngine) -> None:
    answers = await asyncio.gather(
        engine.generate(ask(engine, "", session="empty")),
        engine.generate(ask(engine, "hello", prompt_ids=[3, 256], session="unknown token")),
        engine.generate(ask(engine, "hello", max_new_tokens=0, session="nothing asked")),
        engine.generate(ask(engine, "hello", session="good")),
        return_exceptions=True,
    )
    assert [type(answer) for answer in answers] == [InvalidInputError] * 3 + [Generation]


async def test_closing_answers_what_waits_and_refuses_what_comes_later(tiny_model: Path) -> None:
    engine = LocalEngine(tiny_model, "v1", dtype=torch.float32)
    waiting = [asyncio.create_task(engine.generate(ask(engine, "hello"))) for _ in range(3)]
    await asyncio.sleep(0)  # let each request reach the queue
    await asyncio.wait_for(engine.close(), 10)
    assert len(await asyncio.wait_for(asyncio.gather(*waiting), 10)) == 3
    with pytest.raises(EngineError, match="has stopped"):
        await asyncio.wait_for(engine.generate(ask(engine, "hello")), 10)


def test_a_folder_without_a_model_or_with_code_in_its_weights_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelMissingError):
        LocalEngine(tmp_path, "v1")
    for file in tiny_model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(InvalidInputError, match=r"pytorch_model\.bin"):
        LocalEngine(tmp_path, "v1")


CHOICES = tuple(tuple(text.encode()) for text in ("go east\n", "go west\n", "look\n"))


async def test_a_choice_is_drawn_with_the_probability_that_the_restricted_tree_gives_it(
    engine: LocalEngine, tiny_model: Path
) -> None:
    """Against the library's own forward pass: each token renormalised over the tokens that keep to a choice."""
    prompt, temperature = "A room.\n>", 0.7
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()

    def expected(choice: tuple[int, ...]) -> list[float]:
        ids, logprobs = engine.encode(prompt), []
        for place, token in enumerate(choice):
            tokens = sorted({c[place] for c in CHOICES if c[:place] == choice[:place]})
            with torch.no_grad():
                scores = model(torch.tensor([ids])).logits[0, -1][tokens] / temperature
            logprobs.append(float(torch.log_softmax(scores, -1)[tokens.index(token)]))
            ids.append(token)
        return logprobs

    drawn: dict[tuple[int, ...], int] = {}
    answers = await asyncio.gather(
        *[
            engine.generate(ask(engine, prompt, session=f"s{i}", temperature=temperature, seed=i, choices=CHOICES))
            for i in range(200)
        ]
    )
    for answer in answers:
        choice = tuple(answer.token_ids)
        assert answer.finish == "stop"
        assert answer.logprobs == pytest.approx(expected(choice), abs=1e-4)
        drawn[choice] = drawn.get(choice, 0) + 1
    for choice in CHOICES:
        share = math.exp(sum(expected(choice)))
        assert drawn.get(choice, 0) / 200 == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / 200))


async def test_a_session_goes_on_after_tokens_that_were_forced(engine: LocalEngine) -> None:
    """Forced tokens are not decoded one by one; the next prompt makes up for what the cache lacks."""
    first = ask(engine, "A room.\n>", choices=CHOICES, temperature=1.0, seed=3)
    said = await engine.generate(first)
    longer = replace(first, prompt_ids=[*first.prompt_ids, *said.token_ids, *engine.encode("You are there.\n>")])
    cached = await engine.generate(longer)
    fresh = await engine.generate(replace(longer, session="fresh"))
    assert 0 < cached.cached_tokens < len(longer.prompt_ids)
    assert fresh.cached_tokens == 0
    assert cached.token_ids == fresh.token_ids
    assert cached.logprobs == pytest.approx(fresh.logprobs, abs=1e-4)


async def test_equal_greedy_prompts_are_computed_once_if_asked_to_remember(tiny_model: Path) -> None:
    engine = LocalEngine(tiny_model, "v1", dtype=torch.float32, remembered=2)
    plain = LocalEngine(tiny_model, "v1", dtype=torch.float32)
    requests = [ask(engine, text, session=f"{text} {i}") for text in ("one", "two") for i in range(5)]
    answers = await asyncio.gather(*[engine.generate(request) for request in requests])
    assert [a.token_ids for a in answers] == [(await plain.generate(request)).token_ids for request in requests]
    assert engine.spared == 8
    assert engine.counters["completion_tokens"] == 2 * 12
    for text in ("three", "two", "one"):  # room for two: `one` has left
        await engine.generate(ask(engine, text))
    assert engine.spared == 9
    await asyncio.gather(*[engine.generate(ask(engine, "hot", temperature=1.0, seed=1)) for _ in range(2)])
    assert engine.spared == 9
    engine.load_weights(load_model(tiny_model).state_dict(), "v2")
    assert (await engine.generate(ask(engine, "one"))).model_version == "v2"
    await engine.close()
    await plain.close()


async def test_a_waiter_that_leaves_takes_no_answer_from_the_others(tiny_model: Path) -> None:
    engine = LocalEngine(tiny_model, "v1", dtype=torch.float32, remembered=8)
    first = asyncio.create_task(engine.generate(ask(engine, "same", session="a")))
    second = asyncio.create_task(engine.generate(ask(engine, "same", session="b")))
    await asyncio.sleep(0)
    first.cancel()
    assert len((await second).token_ids) == 12
    await engine.close()
