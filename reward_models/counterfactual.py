"""Instructions that an episode certainly does not fulfil: from the dataset, a list of words, or a language model.

The dataset's own other tasks are ReWiND's (METHODS 7). Words and the language model are for datasets with one task,
where nothing else shows that the instruction matters [O].
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from reward_models.hub import Source
from reward_models.wording import certainly_different, likeness
from robo_rl.errors import ConfigError
from robo_rl.types import Trajectory

# Words of one line exclude each other: what is red is not blue, what was opened was not closed.
WORDS: tuple[tuple[str, ...], ...] = (
    ("red", "blue", "green", "yellow", "black", "white", "orange", "purple", "pink", "brown", "grey"),
    ("cube", "ball", "cylinder", "cup", "mug", "bottle", "can", "spoon", "fork", "knife", "banana", "apple", "towel"),
    ("bowl", "box", "basket", "plate", "tray", "drawer", "shelf", "bin", "pad", "sink", "pot"),
    ("left", "right"),
    ("open", "close"),
    ("front", "back"),
    ("top", "bottom"),
    ("push", "pull"),
    ("fold", "unfold"),
    ("on", "off"),
    ("first", "second", "third"),
)

Texts = Mapping[str, Sequence[str]]


def from_dataset(episodes: Sequence[Trajectory]) -> dict[str, list[str]]:
    """Instruction -> the dataset's other instructions that certainly ask for something else."""
    asked = sorted({(episode.task, episode.instruction) for episode in episodes})
    found: dict[str, list[str]] = {}
    for task, text in asked:
        others = {other for name, other in asked if certainly_different(text, other, task, name)}
        found[text] = sorted(set(found.get(text, ())) | others)
    return found


def from_words(instruction: str, words: Sequence[Sequence[str]] = WORDS) -> list[str]:
    """The instruction with one word changed for another of its line; [] where no word is known.

    A word that occurs twice, or whose new word is in the sentence already, is left alone: "put the red cube left of
    the blue one" with red for blue would name two red things.
    """
    lower = instruction.lower()
    tokens = re.findall(r"[\w'-]+", lower)
    made = []
    for line in words:
        for word in line:
            if tokens.count(word) != 1:
                continue
            for other in line:
                if other != word and other not in tokens:
                    made.append(re.sub(rf"(?<![\w'-]){re.escape(word)}(?![\w'-])", other, lower))
    return made


PROMPT = (
    "Rewrite the robot instruction so that it asks for something clearly different with the same kind of objects. "
    "One line, no explanation.\nInstruction: {instruction}\nDifferent instruction:"
)


def from_language_model(
    instructions: Sequence[str], source: Source, *, count: int = 4, seed: int = 0, generate: Callable | None = None
) -> dict[str, list[str]]:
    """Instruction -> at most `count` rewrites by a local causal language model that certainly differ from it.

    Rewrites that are empty, repeated or perhaps the same task are thrown away; a small model may leave none.
    `generate(prompt, count, seed) -> texts` stands in for the model. Raises ConfigError when it cannot be opened.
    """
    write = generate or _writer(source)
    found = {}
    for place, text in enumerate(dict.fromkeys(instructions)):
        given = write(PROMPT.format(instruction=text), count, seed + place)
        lines = [line.strip().strip('".') for answer in given for line in answer.strip().splitlines()[:1]]
        found[text] = [line for line in dict.fromkeys(lines) if line and certainly_different(text, line)]
    return found


def _writer(source: Source) -> Callable[[str, int, int], list[str]]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"revision": source.revision} if source.revision else {}
    try:
        tokenizer = AutoTokenizer.from_pretrained(source.path, **where)
        model = AutoModelForCausalLM.from_pretrained(source.path, **where).to(source.device).eval()
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).strip().splitlines()[:1])
        raise ConfigError(f"{source.path}: cannot be opened as a language model ({reason})") from None

    def write(prompt: str, count: int, seed: int) -> list[str]:
        inputs = tokenizer(prompt, return_tensors="pt").to(source.device)
        with torch.random.fork_rng(devices=[]), torch.inference_mode():
            torch.manual_seed(seed)
            written = model.generate(
                **inputs, do_sample=True, num_return_sequences=count, max_new_tokens=32, pad_token_id=0
            )
        return list(tokenizer.batch_decode(written[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True))

    return write


def merged(episodes: Sequence[Trajectory], *others: Texts) -> list[tuple[list[str], np.ndarray] | None]:
    """For each episode, all its wrong instructions and how often to draw each; None where there is none.

    The alike ones ("red" for "blue") are drawn more often: e^(3 likeness).
    """
    found: dict[str, tuple[list[str], np.ndarray] | None] = {}
    for text in {episode.instruction for episode in episodes}:
        texts = sorted({other for source in others for other in source.get(text, ())})
        odds = np.exp([3.0 * likeness(text, other) for other in texts])
        found[text] = (texts, odds / odds.sum()) if texts else None
    return [found[episode.instruction] for episode in episodes]
