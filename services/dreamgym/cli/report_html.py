"""The report as one HTML file that needs nothing else: no script, no network, plots as inline SVG."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

from dreamgym.cli.report import CurvePoint, Report, Stage
from dreamgym.cli.report_fidelity import Fidelity, Mistake
from dreamgym.cli.report_findings import Finding, findings
from dreamgym.cli.report_format import ABSENT, decimal, duration, memory, rate, share, whole
from dreamgym.cli.report_plots import IntervalRow, Series, calibration_plot, interval_plot, line_plot
from dreamgym.cli.report_style import STYLE
from dreamgym.cli.report_tables import ways_to_try
from dreamgym.core.paired_outcomes import points

_MISTAKES = 20
_KEY = '<p class="key"><i class="real"></i>real environment<i class="dream"></i>dream</p>'


def render_html(report: Report) -> str:
    """The whole page."""
    title = f"DreamGym: {report.environment or 'environment'}, job {report.name or report.job_id}"
    body = [
        f"<h1>{escape(report.environment or 'Report')}</h1>",
        f'<p class="soft">{_subtitle(report)}</p>',
        _numbers(report),
        _section("What was found", _findings(findings(report))),
        _section("Success, by evaluation", _success(report)),
        _section("Stages", _stages(report)),
        *[_section(f"Learning curve: {stage.title}", _curve(stage)) for stage in report.stages if stage.curve],
        _section("Real success by type of task", _by_type(report)),
        *_fidelity(report.fidelity),
        _section("Models, and how to try them", _models(report)),
        f'<p class="soft small">{_METHOD}</p>',
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>{''.join(body)}</main></body></html>\n"
    )


_METHOD = (
    "Success rates carry 95 % Wilson intervals over n held-out tasks. Differences are paired over the tasks that both "
    "evaluations played; their 95 % intervals are adjusted Wald intervals (Bonett and Price 2012). A difference whose "
    "interval includes 0 is not counted as an effect. Episodes that failed for technical reasons are left out and "
    "counted apart; they are never a failure of the agent."
)


def _section(heading: str, content: str) -> str:
    return f"<section><h2>{escape(heading)}</h2>{content}</section>" if content else ""


def _subtitle(report: Report) -> str:
    parts = [f"job {escape(report.name or report.job_id)}", f"<b>{escape(report.state)}</b>"]
    if report.run.quick:
        parts.append("quick settings: short training, wide intervals")
    if report.run.cores:
        parts.append(f"{report.run.cores} CPU cores")
    return ", ".join(parts)


def _numbers(report: Report) -> str:
    real = [stage for stage in report.stages if stage.real]
    cards: list[tuple[str, str, str, str]] = []
    if real and real[0].real and real[-1].real:
        start, end = real[0].real.success, real[-1].real.success
        if len(real) > 1:
            cards.append(("real", "real success, start", share(start.value), rate(start).partition(" % ")[2]))
        cards.append(("real", "real success, end", share(end.value), rate(end).partition(" % ")[2]))
        if (change := real[-1].to_start) is not None:
            cards.append(
                (
                    _tone(change.verdict),
                    "change, points",
                    points(change.value),
                    f"[{points(change.low)}, {points(change.high)}] paired, n={change.n}",
                )
            )
        if (dream := real[-1].dream) is not None:
            cards.append(
                ("dream", "the dream says, end", share(dream.success.value), rate(dream.success).partition(" % ")[2])
            )
    cards.append(
        (
            "",
            "real steps for training",
            whole(report.real_transitions),
            f"{whole(report.real_transitions_measuring)} more to measure",
        )
    )
    if report.run.seconds is not None:
        peak = f"peak memory {memory(report.run.peak_memory_bytes)}" if report.run.peak_memory_bytes else ""
        cards.append(("", "time, whole run", duration(report.run.seconds), peak))
    shown = [
        f'<div class="card {style}"><span class="soft small">{escape(name)}</span><b>{escape(value)}</b>'
        f'<span class="soft small">{escape(note)}</span></div>'
        for style, name, value, note in cards
    ]
    return f'<div class="numbers">{"".join(shown)}</div>'


def _findings(found: Iterable[Finding]) -> str:
    lines = [f'<li class="{finding.tone}">{_prose(finding.text)}</li>' for finding in found]
    return f'<div class="card"><ul class="findings">{"".join(lines)}</ul></div>'


def _prose(text: str) -> str:
    """Escape a sentence; what stands between backticks becomes code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _success(report: Report) -> str:
    rows = []
    for stage in report.evaluations:
        label = stage.title.removeprefix("measured: ")
        if stage.real:
            rows.append(IntervalRow(label, stage.real.success, "real"))
        if stage.dream:
            rows.append(IntervalRow("" if stage.real else label, stage.dream.success, "dream"))
    plot = interval_plot(rows, "Success by evaluation, real and dream, with 95 % intervals")
    return f'<div class="card">{_KEY}{_wide(plot)}</div>' if plot else ""


def _stages(report: Report) -> str:
    headings = (
        "stage",
        "state",
        "dream success",
        "real success",
        "vs start, points",
        "real steps",
        "time",
        "tokens",
    )
    head = "".join(f"<th{_right(position > 4)}>{heading}</th>" for position, heading in enumerate(headings))
    rows = "".join(_stage_row(stage) for stage in report.stages)
    return f'<div class="card"><table class="stages"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _stage_row(stage: Stage) -> str:
    dream = rate(stage.dream.success) if stage.dream else ABSENT
    if not stage.dream and stage.training_success and stage.trains_in == "dream":
        first, last = stage.training_success
        dream = f'<span title="on training tasks">{share(first)} → {share(last)} (training)</span>'
    change = f'<span class="{_tone(stage.to_start.verdict)}">{stage.to_start}</span>' if stage.to_start else ABSENT
    note = f'<div class="soft small">{escape(_facts(stage))}</div>' if _facts(stage) else ""
    cells = [
        f"<td>{escape(stage.title)}{note}</td>",
        f'<td class="state-{escape(stage.state)}">{escape(stage.state)}</td>',
        f'<td class="dream rate">{dream}</td>',
        f'<td class="real rate">{rate(stage.real.success) if stage.real else ABSENT}</td>',
        f'<td class="rate">{change.replace(" points", "")}</td>',
        *[
            f'<td class="right">{value}</td>'
            for value in (
                whole(stage.real_transitions),
                duration(stage.seconds),
                whole(stage.tokens),
            )
        ],
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _facts(stage: Stage) -> str:
    words = {"heldout_episodes": "held-out episodes", "epochs_done": "epochs", "annotator": "annotator"}
    parts = [
        f"{words.get(name, name)} {value}"
        if name == "annotator"
        else f"{value:.3g} {words.get(name, name)}"
        if isinstance(value, float)
        else f"{value} {words.get(name, name)}"
        for name, value in stage.facts.items()
    ]
    if stage.dream_transitions and not stage.dream:
        parts.append(f"{whole(stage.dream_transitions)} dream steps")
    if stage.loss:
        parts.append(f"loss {decimal(stage.loss[0])} → {decimal(stage.loss[1])}")
    if stage.budget and stage.kind == "sim_to_real":
        parts.append(f"budget {stage.budget} real steps")
    return ", ".join(parts)


def _curve(stage: Stage) -> str:
    def series(name: str, style: str, *, dots_only: bool = False) -> Series:
        values = [(float(point.iteration), getattr(point, name)) for point in stage.curve]
        return Series(name, style, tuple((x, y) for x, y in values if y is not None), dots_only)

    place = stage.trains_in or "dream"
    plots = [
        line_plot(
            [series("success", place), series("real_success", "real", dots_only=True)],
            "success on training tasks",
            percent=True,
        ),
        line_plot([series("reward", place)], "mean reward"),
        line_plot([series("kl", "soft")], "KL to the start"),
        line_plot([series("entropy", "soft")], "entropy"),
        line_plot([series("invalid_rate", "soft")], "invalid actions", percent=True),
        line_plot([Series("silent", "soft", _silent(stage.curve))], "groups without variance", percent=True),
    ]
    shown = "".join(plots)
    key = _KEY if any(point.real_success is not None for point in stage.curve) else ""
    return f'<div class="card">{key}<div class="plots">{shown}</div></div>' if shown else ""


def _silent(curve: Iterable[CurvePoint]) -> tuple[tuple[float, float], ...]:
    shares = []
    for point in curve:
        silent, used = point.groups_zero_variance, point.groups_used
        if silent is not None and used is not None and silent + used:
            shares.append((float(point.iteration), silent / (silent + used)))
    return tuple(shares)


def _by_type(report: Report) -> str:
    evaluations = [stage for stage in report.stages if stage.real and stage.real.by_type]
    types = list(dict.fromkeys(name for stage in evaluations if stage.real for name in stage.real.by_type))
    if not types:
        return ""
    head = "".join(f"<th>{escape(stage.title.removeprefix('measured: '))}</th>" for stage in evaluations)
    rows = []
    for name in types:
        cells = [f'<td class="rate">{rate(stage.real.by_type.get(name))}</td>' for stage in evaluations if stage.real]
        rows.append(f"<tr><td>{escape(name.replace('_', ' '))}</td>{''.join(cells)}</tr>")
    return f'<div class="card"><table><thead><tr><th>type</th>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _fidelity(fidelity: Fidelity | None) -> list[str]:
    if fidelity is None:
        return []
    detail = f"precision {decimal(fidelity.success_precision)}, recall {decimal(fidelity.success_recall)}"
    f1 = f"{decimal(fidelity.success_f1)} ({detail})"
    measures = [
        ("transitions compared", whole(fidelity.n)),
        ("next state exact, word for word", rate(fidelity.state_exact)),
        ("next state similarity (0 to 1)", decimal(fidelity.state_similarity)),
        ("success F1", f1),
        ("end of episode F1", decimal(fidelity.done_f1)),
        ("real refusals that the dream refuses too (recall)", share(fidelity.invalid_recall)),
        ("dream refusals that are real (precision)", share(fidelity.invalid_precision)),
        ("recorded actions with the same outcome when played in the dream", rate(fidelity.rollout_consistency)),
    ]
    rows = "".join(f'<tr><td>{escape(name)}</td><td class="rate">{escape(value)}</td></tr>' for name, value in measures)
    bars = [IntervalRow(kind.action, kind.exact, "dream") for kind in fidelity.by_action]
    plot = interval_plot(bars, "Exactly predicted next states by kind of action")
    honest = calibration_plot(
        [(part.confidence, part.accuracy) for part in fidelity.calibration], "right, by stated confidence"
    )
    charts = f"<h3>Exact next states, by kind of action</h3>{_wide(plot)}" if plot else ""
    table = f'<div class="card"><table><tbody>{rows}</tbody></table>{charts}{honest}</div>'
    mistakes = "".join(_mistake(mistake) for mistake in fidelity.mistakes[:_MISTAKES])
    return [
        _section("The dream against held-out real transitions", table),
        _section("What the dream got wrong", f'<div class="card">{mistakes}</div>' if mistakes else ""),
    ]


def _mistake(mistake: Mistake) -> str:
    pairs = [("task", "", mistake.task), ("action", "", mistake.action), ("the dream", "dream", mistake.dream)]
    pairs += [("reality", "real", mistake.real), ("its reasoning", "soft", mistake.reasoning)]
    rows = [f'<dt>{name}</dt><dd class="{style}">{escape(value)}</dd>' for name, style, value in pairs if value]
    return f'<div class="mistake"><dl>{"".join(rows)}</dl></div>'


def _models(report: Report) -> str:
    rows = []
    newest = {model.role: model for model in report.models}
    for model in report.models:
        last = " <b>newest</b>" if newest[model.role] is model else ""
        place = f"{report.run.object_store.rstrip('/')}/{model.location}" if report.run.object_store else model.location
        where = f"<code>{escape(place or ABSENT)}</code>"
        rows.append(f"<tr><td>{model.role}{last}</td><td>{escape(model.version)}</td><td>{where}</td></tr>")
    head = "<thead><tr><th>role</th><th>version</th><th>where</th></tr></thead>"
    table = f"<table>{head}<tbody>{''.join(rows)}</tbody></table>" if rows else ""
    lines = [line.partition(":") for line in ways_to_try(report)]
    tries = "".join(f"<p>{escape(what)}: <code>{escape(command.strip())}</code></p>" for what, _, command in lines)
    return f'<div class="card">{table}{tries}</div>'


def _wide(plot: str) -> str:
    return plot.replace("<svg ", '<svg class="wide" ', 1)


def _right(condition: bool) -> str:
    return ' class="right"' if condition else ""


def _tone(verdict: str) -> str:
    return {"helped": "helped", "harmed": "harmed"}.get(verdict, "unclear")
