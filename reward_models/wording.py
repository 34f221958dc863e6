"""When do two instructions certainly ask for different things? Decided from their words alone.

A counterfactual instruction may be labelled "not fulfilled" only if that is certain: "place the red cube into the
bowl" is no wrong instruction for "put the red cube in the bowl". So doubt counts as "perhaps the same".
"""

from __future__ import annotations

import re
from functools import lru_cache

# Words that can change without changing what is asked: function words, and verbs of bringing a thing to a place.
_FREE = frozenset(
    [
        "a",
        "an",
        "the",
        "this",
        "that",
        "these",
        "those",
        "to",
        "in",
        "into",
        "inside",
        "on",
        "onto",
        "of",
        "at",
        "from",
        "for",
        "with",
        "by",
        "and",
        "then",
        "please",
        "it",
        "its",
        "up",
        "top",
        "edge",
        "side",
        "so",
        "robot",
        "arm",
        "gripper",
        "over",
        "upon",
        "put",
        "place",
        "move",
        "drop",
        "set",
        "lay",
        "bring",
        "take",
        "carry",
        "pick",
        "grasp",
        "grab",
        "get",
        "transfer",
        "deliver",
        "push",
        "slide",
        "shove",
        "nudge",
        "stack",
        "pile",
        "go",
        "you",
        "should",
        "can",
    ]
)


SYNONYMS = {
    **{"put": "place", "place": "put", "pick": "grab", "grab": "pick", "push": "slide", "slide": "push"},
    **{"move": "bring", "bring": "move", "stack": "pile", "open": "pull open", "close": "shut", "shut": "close"},
    **{"cube": "block", "block": "cube", "into": "in", "onto": "on", "bowl": "dish", "box": "container"},
    **{"clean": "tidy", "table": "tabletop", "towel": "cloth", "cup": "mug", "mug": "cup"},
}


def reworded(text: str) -> str | None:
    """A paraphrase: every word with a known synonym is exchanged; None where there is none."""
    words = [SYNONYMS.get(word.lower(), word) for word in re.split(r"(\W+)", text)]
    other = "".join(words)
    return other if other != text else None


@lru_cache(maxsize=4096)
def _parse(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(words that carry the meaning, in order; the whole sentence with a blank for each of them)."""
    words = re.findall(r"[\w'-]+", text.lower())
    return tuple(w for w in words if w not in _FREE), tuple(w if w in _FREE else "_" for w in words)


def certainly_different(a: str, b: str, task_a: str = "", task_b: str = "") -> bool:
    """Whether fulfilling instruction `a` certainly is not fulfilling `b`.

    True when the tasks' names differ, when each sentence names something that the other does not ("red cube" and
    "blue cube"), or when the same things stand in other places of the same sentence ("red on blue", "blue on red").
    A mere paraphrase, or a sentence that only says more than the other, is not certain.
    """
    if a.strip().lower() == b.strip().lower():
        return False
    if task_a and task_b and task_a != task_b:
        return True
    meaning_a, frame_a = _parse(a)
    meaning_b, frame_b = _parse(b)
    if set(meaning_a) - set(meaning_b) and set(meaning_b) - set(meaning_a):
        return True
    return sorted(meaning_a) == sorted(meaning_b) and meaning_a != meaning_b and frame_a == frame_b


def likeness(a: str, b: str) -> float:
    """Share of meaningful words in common, in [0, 1]: a wrong instruction is harder the more it shares."""
    words_a, words_b = set(_parse(a)[0]), set(_parse(b)[0])
    union = words_a | words_b
    return len(words_a & words_b) / len(union) if union else 1.0
