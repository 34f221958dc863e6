"""How far a look ahead may reach inside one episode: never past a change of controller."""

from __future__ import annotations

import numpy as np

from robo_rl.errors import DataError


def last_step_of_segment(segment_ids: np.ndarray) -> np.ndarray:
    """(T,) ids, constant within a segment -> int64 (T,): index of the last step of each step's segment.

    A segment is a maximal run of equal ids, so an id that comes back later starts a new segment.
    """
    ids = np.asarray(segment_ids)
    if ids.ndim != 1 or len(ids) == 0:
        raise DataError(f"segment ids must be (T,) with T >= 1, got {ids.shape}")
    ends = np.flatnonzero(np.append(ids[1:] != ids[:-1], True))
    return ends[np.searchsorted(ends, np.arange(len(ids)))]


def look_ahead(segment_ids: np.ndarray, hop: int, final_row: int) -> np.ndarray:
    """Row that a jump of `hop` steps reaches from each step, int64 (T,).

    Shortened so that the row lies in the same segment; in the last segment the limit is `final_row`
    (T when the final observation may be read, T - 1 when the last step is terminal).
    """
    if hop < 1:
        raise DataError(f"hop must be at least 1 frame, got {hop}")
    last = last_step_of_segment(segment_ids)
    steps = len(last)
    limit = np.where(last == steps - 1, final_row, last)
    return np.minimum(np.arange(steps) + hop, limit)


def frame_deltas(values: np.ndarray, lengths: np.ndarray, hop: int, *, end: str) -> np.ndarray:
    """values[t + hop] - values[t] of each row, float64 (N,), never across episodes; vectorised.

    Args:
        values: (N,) rows of all episodes, one after the other.
        lengths: int (E,) rows of each episode, summing to N.
        hop: rows to look ahead.
        end: what the last `hop` rows of an episode get. "clamp": the look ahead stops at the last row,
            so the difference shrinks to 0 at the end, whatever happened there (lerobot's RA-BC).
            "last_window" [O]: the gain of the last complete window of `hop` rows, values[last] -
            values[last - hop]; in an episode with fewer rows, its whole gain scaled to `hop` rows.

    Raises:
        DataError: lengths that do not sum to N, an empty episode, hop < 1, an unknown `end`.
    """
    values, lengths = np.asarray(values, dtype=np.float64), np.asarray(lengths, dtype=np.int64)
    if values.ndim != 1 or lengths.sum() != len(values) or (lengths < 1).any():
        raise DataError(f"episode lengths sum to {lengths.sum()} rows but there are {values.shape} values")
    if hop < 1:
        raise DataError(f"hop must be at least 1 frame, got {hop}")
    last = np.repeat(np.cumsum(lengths) - 1, lengths)
    first = last - np.repeat(lengths, lengths) + 1
    rows = np.arange(len(values))
    if end == "clamp":
        return values[np.minimum(rows + hop, last)] - values
    if end != "last_window":
        raise DataError(f"end must be 'clamp' or 'last_window', got {end!r}")
    start = np.maximum(np.minimum(rows, last - hop), first)
    span = np.minimum(hop, last - start)
    return (values[start + span] - values[start]) * (hop / np.maximum(span, 1))
