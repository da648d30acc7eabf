"""The report in plain sentences that do not flatter: what was measured, what helped, what did not, what is not known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dreamgym.cli.report import Report, Stage
from dreamgym.cli.report_fidelity import Fidelity
from dreamgym.cli.report_format import share
from dreamgym.core.paired_outcomes import Verdict
from dreamgym.core.statistics import Proportion

Tone = Literal["good", "bad", "neutral", "warning"]
_ROUGH_N = 30
"""Below this many tasks an interval is so wide that the report says so."""
_FEW_STEPS = 10
"""Kinds of action with fewer steps than this are not singled out."""

_JUDGED: dict[Verdict, tuple[Tone, str]] = {
    "helped": ("good", "the agent is measurably better than at the start"),
    "harmed": ("bad", "the agent is measurably worse than at the start"),
    "no measurable effect": ("warning", "that is not a measurable change"),
}


@dataclass(frozen=True)
class Finding:
    """One sentence. `stage` is the index of the stage that it is about, or None for the whole job."""

    tone: Tone
    text: str
    stage: int | None = None


def findings(report: Report) -> list[Finding]:
    """Every sentence of the report, the job's own first, then stage by stage."""
    found = [*_job(report), *_headline(report)]
    for stage in report.stages:
        found += _stage(stage)
    if report.fidelity:
        found += _fidelity(report.fidelity)
    return found


def _job(report: Report) -> list[Finding]:
    if report.state == "succeeded":
        return []
    finished = sum(stage.state == "succeeded" for stage in report.stages)
    text = (
        f"The job is {report.state}: {finished} of {len(report.stages)} stages finished, so this report is incomplete."
    )
    return [Finding("bad" if report.state == "failed" else "warning", f"{text} {report.error}".strip())]


def _headline(report: Report) -> list[Finding]:
    real = [(stage, stage.real.success) for stage in report.stages if stage.real]
    if not real:
        return [Finding("warning", "Real success was not measured: nothing here says how the agent does in reality.")]
    (first, before), (last, after) = real[0], real[-1]
    spent = f"Training used {report.real_transitions} real transitions"
    spent += f"; measuring used {report.real_transitions_measuring} more."
    if first is last:
        return [
            Finding(
                "neutral",
                f"Real success at `{_label(first)}`: {after}. There is nothing to compare it with.",
            ),
            Finding("neutral", spent),
        ]
    text = f"Real success went from {_percent(before)} at `{_label(first)}` to {_percent(after)}"
    text += f" at `{_label(last)}`"
    difference = last.to_start
    if difference is None:
        return [
            Finding("warning", f"{text}, but on different tasks, so the two cannot be compared."),
            Finding("neutral", spent),
        ]
    tone, verdict = _JUDGED[difference.verdict]
    found = [Finding(tone, f"{text}: {verdict} (difference {difference}).")]
    if difference.n < _ROUGH_N:
        found.append(Finding("warning", f"Only {difference.n} tasks were compared: only large effects can be seen."))
    return [*found, Finding("neutral", spent)]


def _stage(stage: Stage) -> list[Finding]:
    found: list[Finding] = []
    if stage.state == "failed":
        found.append(Finding("bad", f"Stage `{stage.title}` failed. {stage.error}".strip(), stage.index))
    elif stage.state == "skipped":
        found.append(Finding("warning", f"Stage `{stage.title}` was skipped.", stage.index))
    if stage.trains_policy and stage.state == "succeeded":
        found += _effect(stage)
        found += _learning(stage)
    if stage.stopped_by and not (stage.stopped_by.startswith("budget") and stage.kind == "sim_to_real"):
        found.append(_stopped(stage))
    found += _played(stage)
    return found


def _effect(stage: Stage) -> list[Finding]:
    difference = stage.effect
    if difference is None:
        text = (
            f"What `{stage.title}` did to real success was not measured: no real evaluation just before and after it."
        )
        return [Finding("neutral", text, stage.index)]
    changed = f"tasks won: {difference.won}, lost: {difference.lost}"
    if difference.verdict == "helped":
        return [Finding("good", f"`{stage.title}` helped (difference {difference}; {changed}).", stage.index)]
    if difference.verdict == "harmed":
        return [Finding("bad", f"`{stage.title}` harmed the agent (difference {difference}; {changed}).", stage.index)]
    text = f"`{stage.title}` did not measurably help (difference {difference}; {changed})."
    return [Finding("warning", text, stage.index)]


def _learning(stage: Stage) -> list[Finding]:
    found: list[Finding] = []
    if stage.training_success:
        first, last = stage.training_success
        not_helped = stage.effect is not None and stage.effect.verdict != "helped"
        if last - first >= 0.1 and not_helped and stage.trains_in == "dream":
            text = f"In the dream, success on training tasks rose from {share(first)} to {share(last)}"
            found.append(
                Finding(
                    "bad",
                    f"{text} while real success did not: what was learnt may hold in the dream only.",
                    stage.index,
                )
            )
        elif last < first:
            text = f"Success on training tasks fell from {share(first)} to {share(last)} during `{stage.title}`."
            found.append(Finding("warning", text, stage.index))
    used = sum(point.groups_used or 0 for point in stage.curve)
    silent = sum(point.groups_zero_variance or 0 for point in stage.curve)
    if used + silent and silent / (used + silent) > 0.5:
        text = f"{silent} of {used + silent} groups of `{stage.title}` had rollouts that all ended alike and taught nothing."
        found.append(Finding("warning", text, stage.index))
    failed = sum(point.failed_episodes or 0 for point in stage.curve)
    if failed:
        text = f"{failed} training episodes of `{stage.title}` failed for technical reasons and were left out."
        found.append(Finding("warning", text, stage.index))
    if stage.budget and stage.real_transitions is not None and stage.kind == "sim_to_real":
        text = f"`{stage.title}` spent {stage.real_transitions} of its budget of {stage.budget} real transitions"
        text += ", and ended there." if stage.stopped_by.startswith("budget") else "."
        found.append(Finding("neutral", text, stage.index))
    return found


def _stopped(stage: Stage) -> Finding:
    if stage.stopped_by.startswith("canary"):
        reason = stage.stopped_by.partition(":")[2].strip() or "real success fell behind the dream's"
        return Finding("bad", f"The canary ended `{stage.title}` early: {reason}.".replace("..", "."), stage.index)
    return Finding("neutral", f"`{stage.title}` ended early: {stage.stopped_by}.", stage.index)


def _played(stage: Stage) -> list[Finding]:
    found: list[Finding] = []
    for place, failed in stage.lost.items():
        text = f"Nothing is known of `{_label(stage)}` in the {place} environment: all {failed} episodes failed for"
        found.append(Finding("bad", f"{text} technical reasons.", stage.index))
    for place, played in (("real", stage.real), ("dream", stage.dream)):
        if played and played.failed_episodes:
            text = f"{played.failed_episodes} {place} episodes of `{_label(stage)}` failed for technical reasons"
            text += " and are not counted."
            found.append(Finding("warning", text, stage.index))
    gap = stage.dream_minus_real
    if gap and stage.real and stage.dream and gap.low > 0:
        text = f"The dream flatters the agent at `{_label(stage)}`: dream {_percent(stage.dream.success)}, "
        text += f"real {_percent(stage.real.success)} on the same tasks (dream minus real {gap})."
        found.append(Finding("bad", text, stage.index))
    elif gap and stage.real and stage.dream and gap.high < 0:
        text = f"The dream is harder than reality at `{_label(stage)}`: dream {_percent(stage.dream.success)}, "
        text += f"real {_percent(stage.real.success)} on the same tasks (dream minus real {gap})."
        found.append(Finding("warning", text, stage.index))
    return found


def _fidelity(fidelity: Fidelity) -> list[Finding]:
    found: list[Finding] = []
    if fidelity.state_exact:
        text = f"The dream predicted {fidelity.state_exact} of held-out real next states exactly, word for word."
        found.append(Finding("neutral", text))
    if fidelity.rollout_consistency:
        text = f"Recorded actions, played again in the dream, had the same outcome in {fidelity.rollout_consistency} episodes."
        found.append(Finding("neutral", text))
    weak = [kind for kind in fidelity.by_action if kind.exact.n >= _FEW_STEPS and kind.exact.value < 0.5]
    if weak:
        listed = ", ".join(f"`{kind.action}` {_percent(kind.exact)} of {kind.exact.n}" for kind in weak[:4])
        found.append(Finding("bad", f"It is wrong more often than right about: {listed}."))
    if fidelity.success_precision is not None and fidelity.success_precision < 0.9:
        text = f"When the dream says that a task is solved, it is right in {share(fidelity.success_precision)} of the cases: "
        found.append(Finding("bad", f"{text}an agent can be rewarded for what is not solved."))
    if fidelity.success_recall is not None and fidelity.success_recall < 0.9:
        text = f"The dream sees {share(fidelity.success_recall)} of the real successes and misses the others."
        found.append(Finding("warning", text))
    if fidelity.invalid_recall is not None and fidelity.invalid_recall < 0.8:
        text = (
            f"The dream refuses only {share(fidelity.invalid_recall)} of the actions that the real environment refuses."
        )
        found.append(Finding("bad", text))
    if fidelity.malformed:
        of = f" of {fidelity.n}" if fidelity.n else ""
        found.append(
            Finding("warning", f"Steps of the dream that could not be read as a state: {fidelity.malformed}{of}.")
        )
    return found


def _label(stage: Stage) -> str:
    return stage.title.removeprefix("measured: ")


def _percent(rate: Proportion) -> str:
    return f"{100 * rate.value:.0f} %"
