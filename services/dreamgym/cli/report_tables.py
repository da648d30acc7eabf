"""The report in the terminal: rich tables and sentences."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dreamgym.cli.report import Report, Stage
from dreamgym.cli.report_fidelity import Fidelity
from dreamgym.cli.report_findings import Finding, findings
from dreamgym.cli.report_format import ABSENT, decimal, duration, memory, rate, share, whole

_SIGNS = {"good": ("+", "green"), "bad": ("!", "red"), "warning": ("~", "yellow"), "neutral": ("·", "dim")}
_STATES = {"succeeded": "green", "failed": "red", "running": "cyan", "skipped": "yellow"}
_EXAMPLES = 3


def print_report(report: Report, console: Console) -> None:
    """Print the whole report."""
    console.print(Group(*_parts(report)))


def _parts(report: Report) -> list[RenderableType]:
    found = findings(report)
    parts: list[RenderableType] = [
        Text(f"Report of job {report.job_id} ({report.state})", style="bold"),
        _stages(report),
    ]
    parts += [_sentence(finding) for finding in found]
    if report.fidelity:
        parts += [Text(""), _fidelity(report.fidelity), *_mistakes(report.fidelity)]
    parts += [Text(""), *_models(report), Text(""), Text(_costs(report), style="dim")]
    return parts


def _stages(report: Report) -> Table:
    table = Table(title="Stages", title_justify="left", caption=_CAPTION, caption_justify="left")
    for heading in ("stage", "state", "dream success", "REAL success", "vs start, points"):
        table.add_column(heading, overflow="fold")
    for heading in ("real steps", "time", "tokens"):
        table.add_column(heading, justify="right", overflow="fold")
    for stage in report.stages:
        table.add_row(
            Text(stage.title),
            Text(stage.state, style=_STATES.get(stage.state, "dim")),
            _dream(stage),
            Text(rate(stage.real.success), style="bold") if stage.real else ABSENT,
            _to_start(stage),
            whole(stage.real_transitions),
            duration(stage.seconds),
            whole(stage.tokens),
        )
    return table


_CAPTION = (
    "Success with 95 % Wilson intervals. `vs start`: paired over the tasks that both evaluations played, "
    "with a 95 % interval. Rates in brackets are training tasks, not held out."
)


def _dream(stage: Stage) -> str:
    if stage.dream:
        return rate(stage.dream.success)
    if stage.training_success and stage.trains_in == "dream":
        return f"({share(stage.training_success[0])} → {share(stage.training_success[1])})"
    return ABSENT


def _to_start(stage: Stage) -> Text:
    if stage.to_start is None:
        return Text(ABSENT)
    colour = {"helped": "green", "harmed": "red"}.get(stage.to_start.verdict, "yellow")
    return Text(str(stage.to_start).replace(" points", ""), style=colour)


def _sentence(finding: Finding) -> RenderableType:
    sign, style = _SIGNS[finding.tone]
    row = Table.grid(padding=(0, 1))
    row.add_column(width=1)
    row.add_row(Text(sign, style=style), Text(finding.text, style="" if finding.tone == "neutral" else style))
    return row


def _fidelity(fidelity: Fidelity) -> Table:
    table = Table(title="The dream against held-out real transitions", title_justify="left")
    table.add_column("measure")
    table.add_column("value", justify="right")
    table.add_row("next state exact", rate(fidelity.state_exact))
    table.add_row("next state similarity (0 to 1)", decimal(fidelity.state_similarity))
    table.add_row("success F1 (precision, recall)", _f1(fidelity))
    table.add_row("end of episode F1", decimal(fidelity.done_f1))
    table.add_row("invalid actions refused (recall)", share(fidelity.invalid_recall))
    table.add_row("replayed actions, same outcome", rate(fidelity.rollout_consistency))
    for kind in fidelity.by_action:
        table.add_row(Text(f"  exact after `{kind.action}`"), rate(kind.exact))
    return table


def _f1(fidelity: Fidelity) -> str:
    return f"{decimal(fidelity.success_f1)} ({decimal(fidelity.success_precision)}, {decimal(fidelity.success_recall)})"


def _mistakes(fidelity: Fidelity) -> list[RenderableType]:
    if not fidelity.mistakes:
        return []
    parts: list[RenderableType] = [Text(""), Text("What the dream got wrong", style="bold")]
    for mistake in fidelity.mistakes[:_EXAMPLES]:
        lines = Table.grid(padding=(0, 1))
        lines.add_row(Text("task", style="dim"), Text(mistake.task or ABSENT))
        lines.add_row(Text("action", style="dim"), Text(f"> {mistake.action}"))
        lines.add_row(Text("dream", style="red"), Text(mistake.dream or ABSENT))
        lines.add_row(Text("real", style="green"), Text(mistake.real or ABSENT))
        if mistake.reasoning:
            lines.add_row(Text("it said", style="dim"), Text(mistake.reasoning, style="dim"))
        parts.append(Padding(lines, (0, 0, 1, 2)))
    more = len(fidelity.mistakes) - _EXAMPLES
    return [*parts, Text(f"  {more} more in the HTML report.", style="dim")] if more > 0 else parts


def _models(report: Report) -> list[RenderableType]:
    parts: list[RenderableType] = []
    if report.models:
        parts.append(Text("Models", style="bold"))
    newest = {model.role: model for model in report.models}
    for model in report.models:
        note = "  (newest)" if newest[model.role] is model else ""
        place = f"{report.run.object_store}/{model.location}" if report.run.object_store else model.location
        parts.append(Text(f"  {model.role:<10} {model.version}  {place}".rstrip() + note))
    return [*parts, *[Text(f"  {line}") for line in ways_to_try(report)]]


def ways_to_try(report: Report) -> list[str]:
    """Commands that continue from here."""
    name = report.environment or "ENVIRONMENT"
    roles = {model.role for model in report.models}
    lines = {
        f"Start the platform again: {report.run.start_command}": bool(report.run.start_command),
        f"Walk through the dream: dreamgym play {name}": "experience" in roles,
        f"Walk through reality: dreamgym play {name} --real": True,
        f"Measure the newest agent again: dreamgym eval {name}": "policy" in roles,
    }
    return [line for line, possible in lines.items() if possible]


def _costs(report: Report) -> str:
    parts = []
    if report.run.seconds is not None:
        parts.append(f"whole run {duration(report.run.seconds)}")
    if report.run.peak_memory_bytes is not None:
        parts.append(f"peak memory of all processes {memory(report.run.peak_memory_bytes)}")
    if report.run.cores:
        parts.append(f"{report.run.cores} cores")
    return ", ".join(parts)
