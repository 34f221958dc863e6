from __future__ import annotations

import io

import av
import numpy as np
import pytest
from report_sample import clock_width, draw_frames

from robo_rl.report import charts, wording
from robo_rl.report.model import Curve
from robo_rl.report.video import encode_mp4, side_by_side, thumbnail_png

# ---- wording and charts


def test_wording() -> None:
    assert wording.percent(123 / 200) == "61.5\u00a0%"
    assert wording.percent(0.78) == "78\u00a0%"
    assert wording.percent(None) == "undefined"
    assert wording.points(-0.0312) == "\u22123.1\u00a0points"
    assert wording.points(0.01) == "+1\u00a0point"
    assert wording.points(-0.0001) == "0\u00a0points"  # rounds to nothing: no sign
    assert wording.p_value(0.0004) == "p\u00a0<\u00a00.001"
    assert wording.duration(3723) == "1\u00a0h 2\u00a0min"  # 3600 + 2 * 60 + 3
    assert wording.duration(75.2) == "1\u00a0min 15\u00a0s"
    assert wording.duration(59.7) == "1\u00a0min 0\u00a0s"


def test_ticks_are_round_and_inside() -> None:
    assert charts.nice_ticks(0.0, 1.0) == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert charts.nice_ticks(0.3, 9.1) == [2.5, 5.0, 7.5]
    for low, high in ((-3.0, 4.0), (1e-5, 3e-5), (10.0, 123456.0)):
        ticks = charts.nice_ticks(low, high)
        assert 2 <= len(ticks) <= 6
        assert low <= ticks[0] < ticks[-1] <= high


def test_a_long_curve_keeps_its_spikes() -> None:
    points = [(float(i), 0.0) for i in range(10_000)]
    points[4321] = (4321.0, 9.0)
    points[77] = (77.0, -5.0)
    thinned = charts.thin(points)
    assert len(thinned) <= 2 * charts.MAX_POINTS
    assert (4321.0, 9.0) in thinned
    assert (77.0, -5.0) in thinned
    assert thinned == sorted(thinned)


def test_a_constant_curve_and_a_single_point_can_be_drawn() -> None:
    for x, y in (([0.0, 1.0], [2.0, 2.0]), ([3.0], [0.0]), ([0.0, 1.0], [None, None])):
        chart = charts.curve_chart([Curve(name="c", group="g", x_label="x", y_label="y", x=x, y=y)])
        assert "nan" not in chart
    assert "undefined" in chart


# ---- pictures


def test_every_frame_survives_the_video_at_its_time() -> None:
    frames = side_by_side({"front": draw_frames(40, 64, 1.0, 3)})
    assert frames.shape == (41, 128, 128, 3)  # 64 is below MIN_HEIGHT = 128, so every pixel became 2 x 2
    content = encode_mp4(frames, 10.0)
    with av.open(io.BytesIO(content)) as video:  # no B frames: every frame is decoded when it is shown
        assert all(packet.pts == packet.dts for packet in video.demux(video=0))
    with av.open(io.BytesIO(content)) as video:
        decoded = [(float(f.pts * f.time_base), f.to_ndarray(format="rgb24")) for f in video.decode(video=0)]
    assert len(decoded) == 41
    for i, (seconds, image) in enumerate(decoded):
        assert seconds == pytest.approx(i / 10)
        white = (image[3, :, 0] > 128).sum()
        assert white == 2 * clock_width(i, 64)
        assert np.abs(image.astype(int) - frames[i]).mean() < 4


def test_cameras_of_different_odd_sizes_stand_side_by_side() -> None:
    left = np.full((2, 31, 41, 3), 200, np.uint8)
    right = np.full((2, 21, 11, 3), 100, np.uint8)
    joined = side_by_side({"left": left, "right": right})
    # factor ceil(128 / 31) = 5: 155 high and 205 wide, then a gap of 4, then 105 high and 55 wide; both made even
    assert joined.shape == (2, 156, 264, 3)
    assert (joined[:, :155, :205] == 200).all()
    assert (joined[:, :155, 205:209] == 0).all()
    assert (joined[:, 25:130, 209:264] == 100).all()


def test_a_thumbnail_is_the_picture_thinned() -> None:
    image = np.random.default_rng(0).integers(0, 255, (192, 100, 3)).astype(np.uint8)
    with av.open(io.BytesIO(thumbnail_png(image)), format="png_pipe") as picture:
        back = next(picture.decode(video=0)).to_ndarray(format="rgb24")
    np.testing.assert_array_equal(back, image[::2, ::2])  # ceil(192 / 96) = 2
