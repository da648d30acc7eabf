"""The guard: what may reach a real environment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dreamgym.bridge.guard import ActionPolicy, Guard, Rule, Verdict


def policy(allow: str = "", deny: str = "", dry_run: str = "") -> ActionPolicy:
    def rules(pattern: str) -> tuple[Rule, ...]:
        return (Rule(pattern=pattern, reason=f"because of {pattern}"),) if pattern else ()

    return ActionPolicy(allow=rules(allow), deny=rules(deny), dry_run=rules(dry_run))


@given(st.text(max_size=100))
def test_without_a_policy_every_action_is_sent(action: str) -> None:
    assert Guard().judge(action).verdict is Verdict.SENT


@pytest.mark.parametrize("action", ["delete file", "DELETE file", "please  delete\tfile", "  delete file\n"])
def test_a_denied_action_is_refused_with_its_reason_however_it_is_spelt(action: str) -> None:
    decision = Guard([policy(deny="delete file")]).judge(action)
    assert (decision.verdict, decision.reason) == (Verdict.DENIED, "because of delete file")


def test_an_allow_list_must_match_the_whole_action() -> None:
    guard = Guard([policy(allow=r"go to \w+")])
    assert guard.judge("Go to bed").verdict is Verdict.SENT
    assert guard.judge("go to bed and delete file").verdict is Verdict.DENIED


def test_deny_goes_before_allow_and_before_dry_run() -> None:
    guard = Guard([policy(allow=".*", dry_run="buy"), policy(deny="buy all")])
    assert guard.judge("buy all").verdict is Verdict.DENIED
    assert guard.judge("buy one").verdict is Verdict.DRY_RUN
    assert guard.judge("look").verdict is Verdict.SENT


def test_the_policies_of_everyone_the_adapter_and_the_environment_hold_together() -> None:
    policies = {"*": policy(deny="a"), "shop": policy(deny="b"), "env-1": policy(deny="c"), "env-2": policy(deny="d")}
    guard = Guard.for_episode(policies, environment_id="env-1", adapter="shop", longest=10)
    assert [guard.judge(action).verdict is Verdict.DENIED for action in "abcd"] == [True, True, True, False]


def test_an_action_that_is_too_long_is_denied() -> None:
    assert Guard(longest=5).judge("x" * 6).verdict is Verdict.DENIED


def test_a_rule_that_takes_too_long_denies() -> None:
    guard = Guard([policy(deny=r"(a|aa|b?)+$")], longest=5000)
    assert guard.judge("a" * 3000 + "!").verdict is Verdict.DENIED


def test_a_pattern_that_is_no_regular_expression_is_refused_at_the_start() -> None:
    with pytest.raises(ValidationError, match="regular expression"):
        Rule(pattern="(")
