"""ARM: progress from steps, by hand."""

import numpy as np
import pytest

from robo_rl.credit.arm import (
    anchor_piecewise,
    completion_peaks,
    reconstruct_progress,
    step_from_tri_state,
    tri_state_labels,
    unit_step,
)
from robo_rl.errors import DataError


def test_one_step_back_of_65_is_the_papers_figure():
    # Fig. 7: 86.15 % -> 84.62 % over one -1 step: 56/65 -> 55/65, so a step is 1 / net sum.
    # 56 forward, one back, ten forward: net 65
    steps = np.array([1] * 56 + [-1] + [1] * 10)
    progress = reconstruct_progress(steps, completion_frame=67)
    assert progress[56] == pytest.approx(56 / 65)
    assert progress[57] == pytest.approx(55 / 65)
    assert (round(100 * progress[56], 2), round(100 * progress[57], 2)) == (86.15, 84.62)
    assert (progress[0], progress[-1]) == (0, 1)
    # dividing by the number of steps instead (67) is another number: the example tells them apart
    assert round(100 * 56 / 67, 2) != 86.15


def test_progress_is_anchored_at_completion_and_clipped_after():
    # complete at frame 2 (sum 2); a third step would be 1.5, a fall below the start is 0
    assert reconstruct_progress(np.array([1, 1, 1]), completion_frame=2).tolist() == [0, 0.5, 1, 1]
    assert reconstruct_progress(np.array([-1, 1, 1]), completion_frame=3).tolist() == [0, 0, 0, 1]


def test_fragments_use_the_worth_of_a_step():
    assert unit_step([np.ones(4), np.ones(8), np.ones(3)], [4, 8, None]) == pytest.approx((1 / 4 + 1 / 8) / 2)
    np.testing.assert_allclose(
        reconstruct_progress(np.array([1, -1, 0, 1]), unit=0.1, start=0.4), [0.4, 0.5, 0.4, 0.4, 0.5]
    )
    # steps that do not add up to progress are a fragment even with a completion frame
    np.testing.assert_allclose(
        reconstruct_progress(np.array([-1, 0]), completion_frame=2, unit=0.1, start=0.5), [0.5, 0.4, 0.4]
    )
    with pytest.raises(DataError, match="needs unit="):
        reconstruct_progress(np.array([1, 1]))
    with pytest.raises(DataError, match="none of 1 episodes"):
        unit_step([np.array([-1.0])], [1])
    with pytest.raises(DataError, match=r"1\.\.2"):
        reconstruct_progress(np.array([1, 1]), completion_frame=3)


def test_steps_from_probabilities():
    tri_state = np.array([[0.7, 0.2, 0.1], [0.2, 0.5, 0.3], [0.1, 0.3, 0.6]])
    np.testing.assert_allclose(step_from_tri_state(tri_state), [0.6, -0.1, -0.5])
    assert step_from_tri_state(tri_state, soft=False).tolist() == [1, 0, -1]
    with pytest.raises(DataError, match=r"\(T, 3\)"):
        step_from_tri_state(np.zeros((4, 2)))


def test_labels_from_progress():
    # differences .1, 0, -.1, .02; the median size is .06, a quarter .015: +, 0, -, +
    progress = np.array([0.0, 0.1, 0.1, 0.0, 0.02])
    assert tri_state_labels(progress).tolist() == [1, 0, -1, 1]
    # never below .01: differences of .009 are waiting
    assert tri_state_labels(np.array([0.0, 0.009, 0.018])).tolist() == [0, 0]
    assert tri_state_labels(progress, kappa=(0.05, 0.2)).tolist() == [1, 0, 0, 0]
    # over two frames: .1, -.1, -.08
    assert tri_state_labels(progress, hop=2, kappa=(0.05, 0.05)).tolist() == [1, -1, -1]
    with pytest.raises(DataError, match="more frames"):
        tri_state_labels(progress, hop=5)


def test_labels_and_reconstruction_are_inverse_for_unit_steps():
    steps = np.array([1, 1, 0, -1, 1, 1, 0, 1], dtype=float)
    progress = reconstruct_progress(steps, completion_frame=8)
    assert tri_state_labels(progress).tolist() == steps.tolist()


def test_several_completions_are_anchored_piece_by_piece():
    completion = np.array([0.1, 0.2, 0.9, 0.6, 0.1, 0.1, 0.7])
    assert completion_peaks(completion).tolist() == [2, 6]
    assert completion_peaks(np.zeros(4)).tolist() == []
    # raw .8 at frame 2 (drift .2), .6 at frame 6 (drift .4)
    raw = np.array([0.0, 0.4, 0.8, 0.2, 0.2, 0.4, 0.6])
    # drift by frame: 0, .1, .2, .25, .3, .35, .4
    expected = [0, 0.5, 1, 0.45, 0.5, 0.75, 1]
    np.testing.assert_allclose(anchor_piecewise(raw, np.array([2, 6])), expected)
    np.testing.assert_allclose(anchor_piecewise(raw, np.array([], dtype=int)), raw)
    with pytest.raises(DataError, match="rise within"):
        anchor_piecewise(raw, np.array([6, 2]))
