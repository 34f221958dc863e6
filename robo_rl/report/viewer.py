"""The episode viewer: its list in HTML, its curves as JSON and its videos as base64, for static/viewer.js."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from robo_rl.report.episode import EpisodeView
from robo_rl.report.video import encode_mp4, side_by_side, thumbnail_png
from robo_rl.report.wording import escape
from robo_rl.types import Outcome

GROUPS = {"before": "Before", "after": "After", "demonstration": "Demonstrations", "judged": "Episodes"}
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
    names = list(dict.fromkeys(name for episode in episodes for name in episode.others))
    return embed_json([facts(episode, twin=_twin(episode, episodes), judges=names) for episode in episodes])


def facts(episode: EpisodeView, *, twin: int | None = None, judges: Sequence[str] = ()) -> dict[str, Any]:
    """One episode without its video, as JSON. `judges` are all names in `others` of any episode, in their order."""
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
        "samples": episode.num_samples,
        "note": episode.note,
        "cameras": list(episode.frames),
        "shares": [frames.shape[2] for frames in episode.frames.values()],
        "twin": twin,
        "progress": _rounded(episode.progress),
        "success": _rounded(episode.success_prob),
        "tri": _rounded(episode.tri_state),
        "weight": _rounded(episode.weight),
        "truth": _rounded(episode.true_progress),
        "others": [
            {
                "name": name,
                "place": judges.index(name),
                "values": _rounded(values),
                "success": _rounded(episode.others_success.get(name)),
            }
            for name, values in episode.others.items()
        ],
        "marks": [[round(float(frame), 2), name] for frame, name in episode.marks],
    }


def _twin(episode: EpisodeView, episodes: Sequence[EpisodeView]) -> int | None:
    """Position of the episode from the same initial state on the other side of the improvement."""
    other = {"before": "after", "after": "before"}.get(episode.group)
    for i, candidate in enumerate(episodes):
        if candidate.group == other and (candidate.task, candidate.index) == (episode.task, episode.index):
            return i
    return None


def _rounded(array: np.ndarray | None) -> Any:
    if array is None:
        return None
    numbers = np.round(array.astype(np.float64), 4)
    unknown = np.isnan(numbers)
    if not unknown.any():
        return numbers.tolist()
    return [None if gap else value for value, gap in zip(numbers.tolist(), unknown.tolist(), strict=True)]


def videos(episodes: Sequence[EpisodeView]) -> str:
    """One inert script tag for each video, so that the browser decodes only what is looked at."""
    return "\n".join(video(i, episode) for i, episode in enumerate(episodes))


def video(place: int, episode: EpisodeView) -> str:
    """The script tag with the video of the episode that is `place` in the list."""
    content = base64.b64encode(encode_mp4(_joined(episode), episode.fps)).decode()
    return f'<script type="text/plain" id="video-{place}">{content}</script>'


def _joined(episode: EpisodeView, chunk: int = 32) -> Iterator[np.ndarray]:
    """Frames with the cameras side by side, a few at a time: joining copies."""
    for start in range(0, episode.num_frames, chunk):
        yield from side_by_side({camera: frames[start : start + chunk] for camera, frames in episode.frames.items()})


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
        parts.append(button(i, episode, f"start {episode.index}"))
    return "".join(parts) + ("</div>" if heading else "")


def button(i: int, episode: EpisodeView, detail: str) -> str:
    """What chooses the episode that is `i` in the list; `detail` is a word about it."""
    first = next(iter(episode.frames.values()))
    picture = base64.b64encode(thumbnail_png(first[-1])).decode()
    outcome = episode.outcome.value
    sign = f'<span class="sign {outcome}">{OUTCOME_SIGNS.get(episode.outcome, "?")} {outcome}</span>'
    return (
        f'<button type="button" class="episode" data-episode="{i}"><img src="data:image/png;base64,{picture}" alt="">'
        f'<span class="episode-text"><b>{escape(episode.title)}</b>'
        f"<small>{sign} \u00b7 {escape(detail)}</small></span></button>"
    )
