"""Answers as tokens and as text: what cannot be understood abstains, and numbers mean what they say."""

import numpy as np
import pytest
from tiny_models import tokenizer_of

from reward_models.answers import (
    distribution,
    mean_and_spread,
    parse_choice,
    parse_percentages,
    parse_rating,
    tokenised,
)
from robo_rl.errors import ConfigError


class Letters:
    """A tokenizer with one token a letter."""

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        assert not add_special_tokens
        return {"input_ids": [ord(letter) for letter in text]}


def test_options_part_where_they_differ() -> None:
    options = tokenised(Letters(), "Frame 2: ", ["0%", "10%", "100%"])
    assert "".join(map(chr, options.shared)) == "Frame 2: "
    assert ["".join(map(chr, branch)) for branch in options.branches] == ["0%", "10%", "100%"]
    assert not options.part_at_once  # "10%" and "100%" begin alike
    assert tokenised(Letters(), "", ["A", "B"]).part_at_once


@pytest.mark.parametrize("options", [["1", "10"], ["A", "A"]])
def test_options_that_cannot_be_told_apart_are_refused(options: list[str]) -> None:
    with pytest.raises(ConfigError, match="cannot be told apart"):
        tokenised(Letters(), "", options)


def test_options_of_a_real_tokenizer_join_to_the_whole_text() -> None:
    tokenizer = tokenizer_of(())
    options = tokenised(tokenizer, "progress ", ["0%", "10%", "100%"])
    whole = [tokenizer.decode([*options.shared, *branch]) for branch in options.branches]
    assert whole == ["progress 0%", "progress 10%", "progress 100%"]


def test_distribution() -> None:
    # 0.1, 0.1, 0.2 of all that could be said: 0.4 together, in shares 1/4, 1/4, 1/2
    share, mass = distribution(np.log([[0.1, 0.1, 0.2]]))
    np.testing.assert_allclose(share, [[0.25, 0.25, 0.5]])
    np.testing.assert_allclose(mass, [0.4])
    mean, spread = mean_and_spread(share, np.array([0.0, 0.5, 1.0]))
    # mean 0.125 + 0.5 = 0.625; E[x^2] = 0.0625 + 0.5 = 0.5625; variance 0.5625 - 0.390625 = 0.171875
    np.testing.assert_allclose(mean, [0.625])
    np.testing.assert_allclose(spread, [np.sqrt(0.171875)])


def test_impossible_options_are_no_nan() -> None:
    share, mass = distribution(np.array([-1e4, -1e4 + np.log(3.0)]))
    np.testing.assert_allclose(share, [0.25, 0.75])
    assert mass == 0.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Frame 1: 40%\nFrame 2: 100%\nFrame 3: 0 %", [0.4, 1.0, 0.0]),
        ("frame 3 - 12.5 percent", [None, None, 0.125]),
        ('```json\n[{"frame": 2, "percent": 30}, {"frame": 1, "percent": "70%"}]\n```', [0.7, 0.3, None]),
        ('{"frames": [{"frame": "Frame 2", "progress": 55}]}', [None, 0.55, None]),
        ('{"Frame 1": 10, "Frame 3": "90%"}', [0.1, None, 0.9]),
        ("Frame 1: 140%\nFrame 2: -5%\nFrame 9: 50%", [None, None, None]),  # beyond 100 %, below 0 %, no such frame
        ("Frame 1: the gripper is open\nFrame 2: 20%", [None, 0.2, None]),
        ("Frame 1: 10%\nno, Frame 1: 30%", [0.3, None, None]),
        ("I cannot say.", [None, None, None]),
        ('[{"frame": 1}]', [None, None, None]),
    ],
)
def test_percentages(text: str, expected: list[float | None]) -> None:
    assert parse_percentages(text, 3) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ANSWER: 4", 4),
        ("The cup moved.\nanswer: **2**", 2),
        ("ANSWER: 1 or rather ANSWER: 3", 3),
        ("5", 5),
        (" 5.\n", 5),
        ("ANSWER: 0", None),
        ("ANSWER: 6", None),
        ("ANSWER: 45", None),
        ("ANSWER: 3.5", None),
        ("2 of 5 cups", None),
        ("", None),
    ],
)
def test_rating(text: str, expected: int | None) -> None:
    assert parse_rating(text, 5) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A", 0),
        ("**B**", 1),
        ("Answer: C", 2),
        ("In picture A the cup is near, in B it is far. The answer is A.", 0),
        ("A or B, hard to say", None),
        ("A cup stands there; B shows more", None),  # "A" may be an article: two letters, no verdict
        ("neither", None),
    ],
)
def test_choice(text: str, expected: int | None) -> None:
    assert parse_choice(text, ["A", "B", "C"]) == expected
