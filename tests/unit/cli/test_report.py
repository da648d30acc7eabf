"""What the report says about finished, unfinished and damaged jobs."""

import copy
import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from dreamgym.cli.report import Report, Run, build_report
from dreamgym.cli.report_files import write_report
from dreamgym.cli.report_findings import findings
from dreamgym.cli.report_html import render_html
from dreamgym.cli.report_tables import print_report
from dreamgym.core.paired_outcomes import paired_outcomes


def sentences(report: Report) -> str:
    return "\n".join(finding.text for finding in findings(report))


def printed(report: Report) -> str:
    console = Console(width=140, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    print_report(report, console)
    return console.export_text()


def two_evaluations(make: SimpleNamespace, before: dict[str, int], after: dict[str, int], **stage: Any) -> Report:
    def played(outcomes: dict[str, int]) -> dict[str, Any]:
        n, won = len(outcomes), sum(outcomes.values())
        return {"value": won / n if n else 0, "n": n, "successes": won, "per_task": outcomes}

    stages = [
        make.stage(0, "evaluate", {"label": "start", "real": played(before)}),
        make.stage(
            1, "train_policy", {"dream_success_first": 0.2, "dream_success_last": 0.9}, algorithm="grpo", **stage
        ),
        make.stage(2, "evaluate", {"label": "end", "real": played(after)}),
    ]
    return build_report({"id": "job_1", "state": "succeeded", "stages": stages})


def tasks(*outcomes: int) -> dict[str, int]:
    return {f"task-{index}": outcome for index, outcome in enumerate(outcomes)}


def test_a_stage_between_two_evaluations_that_won_many_tasks_is_said_to_have_helped(make: SimpleNamespace) -> None:
    report = two_evaluations(make, tasks(*[0] * 40), tasks(*[1] * 20, *[0] * 20))
    assert "`reinforcement learning in the dream` helped (difference +50 points [" in sentences(report)
    assert "measurably better than at the start" in sentences(report)


def test_a_stage_whose_interval_includes_zero_did_not_measurably_help(make: SimpleNamespace) -> None:
    report = two_evaluations(make, tasks(*[0] * 60), tasks(1, 1, *[0] * 58))
    assert "did not measurably help (difference +3 points [" in sentences(report)
    assert "n=60" in sentences(report)
    assert not any(finding.tone == "good" for finding in findings(report))


def test_a_stage_that_lost_tasks_is_said_to_have_harmed(make: SimpleNamespace) -> None:
    report = two_evaluations(make, tasks(*[1] * 40), tasks(*[1] * 20, *[0] * 20))
    assert "harmed the agent (difference -50 points [" in sentences(report)
    assert "measurably worse than at the start" in sentences(report)


def test_success_that_rises_only_in_the_dream_is_called_out(make: SimpleNamespace) -> None:
    report = two_evaluations(make, tasks(*[0] * 30), tasks(*[0] * 30))
    assert "what was learnt may hold in the dream only" in sentences(report)


def test_evaluations_on_different_tasks_are_not_compared(make: SimpleNamespace) -> None:
    report = two_evaluations(make, {"a": 0, "b": 0}, {"c": 1, "d": 1})
    assert "on different tasks, so the two cannot be compared" in sentences(report)
    assert report.stages[2].to_start is None


def test_two_stages_between_two_evaluations_share_no_verdict(make: SimpleNamespace) -> None:
    job = make.job()
    job["stages"] = [stage for stage in job["stages"] if stage["index"] != 5]
    report = build_report(job)
    assert [stage.effect for stage in report.stages] == [None] * 7
    assert "was not measured: no real evaluation just before and after it" in sentences(report)


def test_a_few_tasks_that_all_changed_prove_nothing() -> None:
    difference = paired_outcomes({"a": 0, "b": 0}, {"a": 1, "b": 1})
    assert difference is not None
    assert difference.value == 1.0
    assert difference.verdict == "no measurable effect"


def test_tasks_that_never_changed_leave_an_interval_of_some_width() -> None:
    same = {str(index): index % 2 for index in range(60)}
    difference = paired_outcomes(same, same)
    assert difference is not None
    assert difference.low < 0 < difference.high


def test_a_gap_between_dream_and_reality_on_the_same_tasks_is_named(make: SimpleNamespace) -> None:
    assert "The dream flatters the agent at `after the dream`: dream 77 %, real 58 %" in sentences(
        build_report(make.job())
    )


def test_real_transitions_for_training_and_for_measuring_are_counted_apart(make: SimpleNamespace) -> None:
    report = build_report(make.job())
    assert report.real_transitions == 588
    assert report.real_transitions_measuring == 3 * 564


def test_weak_kinds_of_action_and_false_successes_are_named(make: SimpleNamespace) -> None:
    text = sentences(build_report(make.job()))
    assert "wrong more often than right about: `open` 41 % of 61" in text
    assert "says that a task is solved, it is right in 83 % of the cases" in text
    assert "`heat`" not in text  # nine steps say nothing


def test_an_evaluation_whose_episodes_all_failed_is_unknown_not_zero(make: SimpleNamespace) -> None:
    job = make.job()
    nothing = {"value": 0.0, "low": 0.0, "high": 1.0, "n": 0, "failed_episodes": 60, "per_task": {}}
    job["stages"][7]["result"]["real"] = nothing
    report = build_report(job)
    assert report.stages[7].real is None
    assert "all 60 episodes failed for technical reasons" in sentences(report)
    assert "to 58 % at `after the dream`" in sentences(report)


def test_a_run_that_the_canary_ended_is_said_to_have_been_ended_by_it(make: SimpleNamespace) -> None:
    job = make.job()
    job["stages"][4]["result"]["stopped_by"] = "canary: dream 0.80, real 0.40"
    assert "The canary ended `reinforcement learning in the dream` early: dream 0.80, real 0.40." in sentences(
        build_report(job)
    )


def test_confidence_is_plotted_at_the_middle_of_its_range(make: SimpleNamespace) -> None:
    fidelity = build_report(make.job()).fidelity
    assert fidelity is not None
    assert [round(part.confidence, 3) for part in fidelity.calibration] == [0.65, 0.875, 0.975]


def test_failed_episodes_are_counted_apart(make: SimpleNamespace) -> None:
    assert "2 real episodes of `after the dream` failed for technical reasons" in sentences(build_report(make.job()))


def test_a_failed_job_reports_what_was_finished_and_the_remedy(make: SimpleNamespace) -> None:
    job = make.job()
    job["state"] = "failed"
    job["error"] = {"code": "engine_failed", "message": "The engine stopped.", "remedy": "Start it again."}
    for stage in job["stages"][4:]:
        stage |= {"state": "pending", "result": None}
    job["stages"][4]["state"] = "failed"
    report = build_report(job)
    text = sentences(report)
    assert "4 of 8 stages finished, so this report is incomplete. The engine stopped. Start it again." in text
    assert "Stage `reinforcement learning in the dream` failed." in text
    assert "There is nothing to compare it with." in text
    assert "job_01 (failed)" in printed(report)


def test_a_job_that_measured_nothing_says_so() -> None:
    report = build_report({"id": "job_9", "state": "cancelled", "stages": []})
    assert "Real success was not measured" in sentences(report)
    html = render_html(report)
    assert "<h2>Stages</h2>" in html
    assert "Walk through the dream" not in html  # there is none


def test_every_part_of_a_result_may_be_missing(make: SimpleNamespace) -> None:
    whole = make.job()
    for position, stage in enumerate(whole["stages"]):
        for part in stage["result"]:
            job = copy.deepcopy(whole)
            del job["stages"][position]["result"][part]
            report = build_report(job)
            render_html(report)
            printed(report)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(
    stage=st.integers(0, 7),
    value=json_values,
    path=st.sampled_from(
        ["real", "dream", "curve", "model", "by_action", "success", "examples", "state_exact", "loss_end"]
    ),
)
def test_a_part_of_an_unexpected_type_is_left_out_not_a_crash(stage: int, value: Any, path: str) -> None:
    kinds = ["train_experience_model", "measure_fidelity", "train_policy", "evaluate", "sim_to_real"]
    kind = kinds[stage % len(kinds)]
    stages = [{"index": 0, "kind": kind, "state": "succeeded", "spec": {}, "result": {path: value}}]
    report = build_report({"id": "job_1", "state": "succeeded", "stages": stages})
    render_html(report)
    printed(report)


def test_text_of_an_environment_cannot_become_markup(make: SimpleNamespace) -> None:
    job = make.job()
    example = job["stages"][1]["result"]["examples"][0]
    example["dream"] = "<script>alert(1)</script> [bold]not bold[/bold]"
    job["stages"][3]["result"]["label"] = "<b>label</b>"
    report = build_report(job)
    html = render_html(report)
    assert "<script" not in html
    assert "<b>label" not in html
    assert "[bold]not bold[/bold]" in printed(report)


def test_the_page_needs_nothing_from_elsewhere(make: SimpleNamespace) -> None:
    html = render_html(build_report(make.job(), Run(seconds=700, peak_memory_bytes=2**32)))
    assert "http" not in html
    assert "src=" not in html
    assert html.count("<svg") >= 8
    assert "dreamgym play household" in html


def test_the_report_is_written_as_json_and_html(make: SimpleNamespace, tmp_path: Any) -> None:
    written = write_report(build_report(make.job()), tmp_path / "demo")
    content = json.loads(written[0].read_text())
    assert content["stages"][3]["real"]["success"]["n"] == 60
    assert content["stages"][7]["to_start"]["n"] == 60
    assert any("helped" in finding["text"] for finding in content["findings"])
    assert written[1].read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("width", [60, 100, 200])
def test_the_tables_fit_any_terminal(make: SimpleNamespace, width: int) -> None:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    print_report(build_report(make.job()), console)
    assert max(len(line) for line in console.export_text().splitlines()) <= width
