"""Environments, tasks and trajectories as customers bring them."""

from __future__ import annotations

import gzip
import json

import pytest

from support.gateway import EPISODE, Platform

pytestmark = pytest.mark.integration


async def test_creating_the_same_environment_again_is_no_error_and_a_different_one_is(platform: Platform) -> None:
    body = {"name": "household", "description": "A house."}
    first = await platform.rest.post("/v1/environments", json=body)
    again = await platform.rest.post("/v1/environments", json=body)
    other = await platform.rest.post("/v1/environments", json={**body, "description": "Another house."})
    assert (first.status_code, again.status_code, other.status_code) == (201, 200, 409)
    assert again.json() == first.json()
    assert "description" in other.json()["detail"]


async def test_faulty_task_lines_are_reported_by_number_and_the_rest_is_kept(platform: Platform) -> None:
    await platform.environment()
    lines = [
        '{"id": "a", "instruction": "tidy up"}',
        "not json",
        "",
        '{"id": "b", "instruction": "cook", "colour": "red"}',
        '{"id": "c", "instruction": "wash", "criterion": {"contains": {"over": "nowhere", "text": "x"}}}',
        '{"id": "d", "instruction": "clean", "split": "test"}',
        '{"id": "a", "instruction": "something else"}',
    ]
    answer = (await platform.rest.post("/v1/environments/household/tasks", content="\n".join(lines))).json()
    assert answer["accepted"] == 2
    assert [issue["line"] for issue in answer["issues"]] == [2, 4, 5, 7]
    assert "colour" in answer["issues"][1]["remedy"]
    again = (await platform.rest.post("/v1/environments/household/tasks", content=lines[0])).json()
    assert (again["accepted"], again["already_there"]) == (0, 1)
    test_split = (await platform.rest.get("/v1/environments/household/tasks?split=test")).json()
    assert [task["id"] for task in test_split["items"]] == ["d"]


async def test_tasks_are_listed_page_by_page(platform: Platform) -> None:
    await platform.environment()
    given = [{"id": f"t{number}", "instruction": f"task {number}"} for number in range(7)]
    await platform.rest.post("/v1/environments/household/tasks", json=given)
    found, cursor = [], None
    while True:
        query = {"limit": 3, **({"cursor": cursor} if cursor else {})}
        page = (await platform.rest.get("/v1/environments/household/tasks", params=query)).json()
        found += [task["id"] for task in page["items"]]
        if (cursor := page["next_cursor"]) is None:
            break
    assert found == [task["id"] for task in given]
    foreign = await platform.rest.get("/v1/jobs", params={"cursor": "dGFza3M6MQ"})
    assert foreign.status_code == 422


async def test_trajectories_reach_the_replay_service_once(platform: Platform, replay: None) -> None:
    await platform.environment()
    lines = [
        json.dumps({**EPISODE, "task_id": "mug", "split": "train"}),
        "{broken",
        json.dumps({**EPISODE, "success": False, "episode_id": "mine"}),
        json.dumps({**EPISODE, "termination": "failure"}),
        json.dumps({**EPISODE, "steps": []}),
    ]
    body = gzip.compress("\n".join(lines).encode())
    url = "/v1/environments/household/trajectories"
    first = (await platform.rest.post(url, content=body, headers={"Content-Encoding": "gzip"})).json()
    assert (first["episodes_stored"], first["transitions_stored"], first["already_there"]) == (2, 4, 0)
    assert [issue["line"] for issue in first["issues"]] == [2, 4, 5]
    assert first["tasks_created"] == 2
    again = (await platform.rest.post(url, content="\n".join(lines))).json()
    assert (again["episodes_stored"], again["already_there"], again["tasks_created"]) == (0, 2, 0)
    statistics = (await platform.rest.get("/v1/environments/household/statistics")).json()
    assert (statistics["episodes"], statistics["transitions"]) == (2, 4)
    assert statistics["counts"][0]["source"] == "seed"
    assert statistics["counts"][0]["successes"] == 1
    assert statistics["rejections"] == []


async def test_stored_episodes_are_listed_and_removed(platform: Platform, replay: None) -> None:
    await platform.environment()
    url = "/v1/environments/household/trajectories"
    lines = "\n".join(json.dumps({**EPISODE, "episode_id": f"e{n}", "metadata": {"n": n}}) for n in range(5))
    await platform.rest.post(url, content=lines)
    first = (await platform.rest.get(url, params={"limit": 3})).json()
    rest = (await platform.rest.get(url, params={"limit": 3, "cursor": first["next_cursor"]})).json()
    listed = [one["episode_id"] for one in first["items"] + rest["items"]]
    assert (len(set(listed)), rest["next_cursor"]) == (5, None)
    shown = first["items"][0]
    assert (shown["source"], shown["steps"], shown["success"]) == ("seed", 2, True)
    assert (await platform.rest.get(url, params={"source": "dream"})).json()["items"] == []
    gone = (await platform.rest.delete(url, params={"episode": listed[:2]})).json()
    assert gone == {"episodes": 2, "transitions": 4}
    for unclear in ({}, {"all": True, "episode": listed[2]}):
        refused = await platform.rest.delete(url, params=unclear)
        assert refused.status_code == 422
        assert "?all=true" in refused.json()["remedy"]
    assert (await platform.rest.delete(url, params={"all": True})).json() == {"episodes": 3, "transitions": 6}
    assert (await platform.rest.get(url)).json()["items"] == []
    foreign = await platform.rest.delete("/v1/environments/elsewhere/trajectories", params={"all": True})
    assert foreign.status_code == 404


async def test_an_environment_is_changed_in_part(platform: Platform) -> None:
    await platform.environment()
    url = "/v1/environments/household"
    before = (await platform.rest.get(url)).json()
    settings = {"admission": {"policy": "enrich", "minimum_confidence": 0.7}}
    after = (await platform.rest.patch(url, json={"max_steps": 9, "settings": settings})).json()
    assert after == {**before, "max_steps": 9, "settings": settings}
    unknown = await platform.rest.patch(url, json={"settings": {"admission": {"policy": "everything"}}})
    assert unknown.status_code == 422
    assert unknown.json()["errors"][0]["field"] == "settings.admission.policy"
    misspelt = await platform.rest.patch(url, json={"settings": {"admision": {}}})
    assert "admision" in misspelt.json()["detail"]
    assert (await platform.rest.get(url)).json() == after


async def test_a_truncated_gzip_upload_keeps_what_came_before(platform: Platform, replay: None) -> None:
    await platform.environment()
    lines = "\n".join(json.dumps({**EPISODE, "episode_id": f"e{n}", "metadata": {"n": n}}) for n in range(200))
    body = gzip.compress(lines.encode())[:-200]
    url = "/v1/environments/household/trajectories"
    answer = (await platform.rest.post(url, content=body, headers={"Content-Encoding": "gzip"})).json()
    assert 0 < answer["episodes_stored"] < 200
    assert "gzip" in answer["issues"][-1]["reason"]


async def test_without_the_replay_service_an_upload_says_so(platform: Platform) -> None:
    await platform.environment()
    url = "/v1/environments/household/trajectories"
    many = "\n".join(json.dumps({**EPISODE, "episode_id": f"e{n}"}) for n in range(300))
    for content in ("", json.dumps(EPISODE), many):
        answer = await platform.rest.post(url, content=content)
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert answer.headers["Retry-After"]
    assert "replay" in answer.json()["detail"]
