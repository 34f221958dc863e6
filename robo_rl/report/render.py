"""A run directory -> one HTML page that needs nothing else: no network, no server, no library."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

from robo_rl.report import sections, viewer
from robo_rl.report.episode import EpisodeView, replace_file
from robo_rl.report.model import ReportData, load_report_data
from robo_rl.report.wording import escape

FOLDER = "report_data"
PAGE = "report.html"


def render(data: ReportData) -> str:
    """The whole page. Everything a person wrote (instructions, notes, labels) is escaped."""
    episodes = viewer.in_reading_order(data.episodes)
    return fill(
        static("page.html"),
        {
            "style": static("style.css"),
            "page_js": static("page.js"),
            "tracks_js": static("tracks.js"),
            "viewer_js": static("viewer.js"),
            "title": escape(data.title),
            "created": escape(data.created.replace("T", " ")[:16]),
            "verdict": sections.verdict(data),
            "success": sections.success(data),
            "comparisons": sections.comparisons(data),
            "viewer": _viewer(episodes),
            "curves": sections.curves(data),
            "judge": sections.judge(data),
            "credit": sections.credit(data),
            "rounds": sections.rounds(data),
            "stages": sections.stages(data.provenance),
            "provenance": sections.provenance(data),
            "commands": sections.commands(data),
            "episode_json": viewer.episode_json(episodes),
            "videos": viewer.videos(episodes),
        },
    )


def write_report(run_dir: Path | str) -> Path:
    """Read run_dir/report_data, write run_dir/report.html (atomically) and return its path. Raises DataError."""
    run_dir = Path(run_dir)
    page = render(load_report_data(run_dir / FOLDER))
    path = run_dir / PAGE
    replace_file(path, page.encode("utf-8"))
    return path


def _viewer(episodes: list[EpisodeView]) -> str:
    if not episodes:
        return sections.NOT_RECORDED
    return fill(static("viewer.html"), {"list": viewer.episode_list(episodes)})


def fill(template: str, values: dict[str, str]) -> str:
    """Replace every {{name}} once; what is put in is not searched again."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match.group(1)], template)


def static(name: str) -> str:
    """A file of `static/`."""
    return (resources.files("robo_rl.report") / "static" / name).read_text(encoding="utf-8")
