"""Writing the report: `report.json` for programs, `report.html` for people."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from dreamgym.cli.report import Report
from dreamgym.cli.report_findings import findings
from dreamgym.cli.report_html import render_html


def report_json(report: Report) -> str:
    """The report as a JSON document, its sentences included."""
    content = report.to_json([dataclasses.asdict(finding) for finding in findings(report)])
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def write_report(report: Report, folder: Path) -> tuple[Path, Path]:
    """Write both files into `folder`; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = (folder / "report.json", folder / "report.html")
    written[0].write_text(report_json(report), encoding="utf-8")
    written[1].write_text(render_html(report), encoding="utf-8")
    return written
