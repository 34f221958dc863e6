"""The episode viewer: its list in HTML, its curves as JSON and its videos as base64, for static/viewer.js."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from robo_rl.report.episode import EpisodeView
from robo_rl.report.video import encode_mp4, side_by_side, thumbnail_png
from robo_rl.report.wording import escape
from robo_rl.types import Outcome

GROUPS = {"before": "Before", "after": "After", "demonstration": "Demonstrations"}
OUTCOME_SIGNS = {Outcome.SUCCESS: "\u2713", Outcome.FAILURE: "\u2715", Outcome.TIMEOUT: "\u2715"}


def embed_json(value: Any) -> str:
    """JSON for inside a script tag: no '<' can close the tag or open a comment."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def in_reading_order(episodes: Sequence[EpisodeView]) -> list[EpisodeView]:
    """Before, after, demonstrations; successes first within each; otherwise as given."""
    order = list(GROUPS)
    return sorted(episodes, key=lambda e: (order.index(e.group), e.outcome is not Outcome.SUCCESS))


def episode_json(episodes: Sequence[EpisodeView]) -> str:
    """What the viewer needs of every episode except its video."""
    return embed_json([_facts(episode, episodes) for episode in episodes])


def _facts(episode: EpisodeView, episodes: Sequence[EpisodeView]) -> dict[str, Any]:
    return {
        "key": episode.key,
        "title": episode.title,
        "group": episode.group,
        "instruction": episode.instruction,
        "task": episode.task,
        "outcome": episode.outcome.value,
        "index": episode.index,
        "policy": episode.policy,
        "fps": episode.fps,
        "frames": episode.num_frames,
        "note": episode.note,
        "cameras": list(episode.frames),
        "shares": [frames.shape[2] for frames in episode.frames.values()],
        "twin": _twin(episode, episodes),
        "progress": _rounded(episode.progress),
        "success": _rounded(episode.success_prob),
        "tri": _rounded(episode.tri_state),
        "weight": _rounded(episode.weight),
        "truth": _rounded(episode.true_progress),
        "others": [{"name": name, "values": _rounded(values)} for name, values in episode.others.items()],
        "marks": [round(float(frame), 2) for frame in episode.marks],
    }


def _twin(episode: EpisodeView, episodes: Sequence[EpisodeView]) -> int | None:
    """Position of the episode from the same initial state on the other side of the improvement."""
    other = {"before": "after", "after": "before"}.get(episode.group)
    for i, candidate in enumerate(episodes):
        if candidate.group == other and (candidate.task, candidate.index) == (episode.task, episode.index):
            return i
    return None


def _rounded(array: np.ndarray | None) -> Any:
    return None if array is None else np.round(array.astype(np.float64), 4).tolist()


def videos(episodes: Sequence[EpisodeView]) -> str:
    """One inert script tag for each video, so that the browser decodes only what is looked at."""
    tags = []
    for i, episode in enumerate(episodes):
        content = base64.b64encode(encode_mp4(side_by_side(episode.frames), episode.fps)).decode()
        tags.append(f'<script type="text/plain" id="video-{i}">{content}</script>')
    return "\n".join(tags)


def episode_list(episodes: Sequence[EpisodeView]) -> str:
    """Buttons with thumbnails, grouped by before / after and by outcome."""
    parts: list[str] = []
    heading = ""
    for i, episode in enumerate(episodes):
        won = "success" if episode.outcome is Outcome.SUCCESS else "no success"
        title = f"{GROUPS[episode.group]} \u00b7 {won}"
        if title != heading:
            parts.append(f'{"</div>" if heading else ""}<div class="episode-group"><h4>{title}</h4>')
            heading = title
        parts.append(_button(i, episode))
    return "".join(parts) + ("</div>" if heading else "")


def _button(i: int, episode: EpisodeView) -> str:
    first = next(iter(episode.frames.values()))
    picture = base64.b64encode(thumbnail_png(first[-1])).decode()
    outcome = episode.outcome.value
    sign = f'<span class="sign {outcome}">{OUTCOME_SIGNS.get(episode.outcome, "?")} {outcome}</span>'
    return (
        f'<button type="button" class="episode" data-episode="{i}"><img src="data:image/png;base64,{picture}" alt="">'
        f'<span class="episode-text"><b>{escape(episode.title)}</b>'
        f"<small>{sign} \u00b7 start {episode.index}</small></span></button>"
    )
