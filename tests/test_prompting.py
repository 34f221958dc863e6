"""Questions to tiny random models of seven families: kept keys and values change nothing but the time."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import VLMS, tiny
from torch import Tensor
from torch.nn import functional as F

from reward_models.answers import tokenised
from reward_models.hub import Source
from reward_models.prompting import Asker, Content, _placeholder
from reward_models.reading import _Tree
from robo_rl.errors import ConfigError, RewardError

# transformers' InternVL processor hands a tensor to numpy.cumsum
pytestmark = pytest.mark.filterwarnings("ignore:__array_wrap__ must accept context:DeprecationWarning")
FAMILIES = sorted(VLMS)
SEVERAL = [family for family in FAMILIES if family != "paligemma"]  # take several pictures
LETTERS = ["A", "B", "C"]
PERCENT = ["0%", "10%", "100%"]
ROUNDING = 2e-5


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.getbasetemp() / "tiny"


@pytest.fixture(scope="module")
def askers(models: Path) -> dict[str, Asker]:
    return {family: Asker(Source(path=str(tiny(family, models)))) for family in FAMILIES}


def pictures(count: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 255, (64, 64, 3), dtype=np.uint8) for _ in range(count)]


def prompts(family: str) -> list[Content]:
    one, two, three = pictures(3)
    if family == "paligemma":
        return [["push the cube", one], ["is the green cube on the pad?", two], ["yes or no", three]]
    return [
        ["push the cube\nFrame 1: ", one, "\nFrame 2: ", two, "\nwell?"],
        ["is the green cube on the pad?", two, " or ", three],
        ["yes or no", three],
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_together_are_prompts_alone(askers: dict[str, Asker], family: str) -> None:
    asker, contents = askers[family], prompts(family)
    together = asker.log_probs(contents, LETTERS)
    assert together.shape == (3, 3)
    assert np.abs(np.diff(together, axis=0)).min() > 1e-4  # the prompts matter: a constant would agree with itself
    alone = np.concatenate([asker.log_probs([content], LETTERS) for content in contents])
    np.testing.assert_allclose(together, alone, atol=ROUNDING)
    kept = np.concatenate([asker.read(content).log_probs(LETTERS) for content in contents])
    np.testing.assert_allclose(kept, alone, atol=ROUNDING)


def forced(asker: Asker, content: Content, answer: list[int], scored: int) -> float:
    """log P of the last `scored` tokens of an answer: one official pass over the prompt and the answer."""
    inputs = asker.inputs([content])

    def longer(name: str, value: Tensor) -> Tensor:
        if value.shape != inputs["input_ids"].shape:
            return value
        fill = {"input_ids": answer, "attention_mask": [1] * len(answer)}
        if not asker.has_template:  # PaliGemma marks what is not looked at from before
            fill["token_type_ids"] = [1] * len(answer)
        return torch.cat([value, torch.tensor([fill.get(name, [0] * len(answer))])], 1)

    with torch.inference_mode():
        logits = asker.model(**{name: longer(name, value) for name, value in inputs.items()}).logits[0]
    log_p = F.log_softmax(logits[-1 - scored : -1], -1)
    return float(log_p[torch.arange(scored), torch.tensor(answer[len(answer) - scored :])].sum())


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_of_several_tokens_have_the_probability_of_one_official_pass(
    askers: dict[str, Asker], family: str
) -> None:
    asker, content = askers[family], prompts(family)[0]
    starts = ["Frame 1: ", "Frame 12: "]
    found = asker.read(content).log_probs(PERCENT, starts)
    for row, start in zip(found, starts, strict=True):
        options = tokenised(asker.tokenizer, start, PERCENT)
        assert not options.part_at_once  # so that sums over several tokens are what is tested
        expected = [forced(asker, content, [*options.shared, *b], len(b)) for b in options.branches]
        np.testing.assert_allclose(row, expected, atol=ROUNDING)


def test_eager_attention_and_a_short_window(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for family, attention in (("gemma3", "sdpa"), ("gemma3", "eager"), ("smolvlm", "eager")):
        asker = Asker(Source(path=str(tiny(family, models)), attention=attention))
        content = prompts(family)[0]
        before = asker.read(content).log_probs(PERCENT, ["Frame 1: "])
        if family == "gemma3":  # shorter than the prompt
            text = asker.model.model.language_model.config
            assert asker.model.config.get_text_config() is text
            monkeypatch.setattr(text, "sliding_window", 12)
        found = asker.read(content).log_probs(PERCENT, ["Frame 1: "])
        if family == "gemma3":
            assert np.abs(found - before).max() > 1e-3
        options = tokenised(asker.tokenizer, "Frame 1: ", PERCENT)
        expected = [forced(asker, content, [*options.shared, *b], len(b)) for b in options.branches]
        np.testing.assert_allclose(found[0], expected, atol=ROUNDING)
        monkeypatch.undo()


def test_what_answers_begin_with_is_run_once() -> None:
    # 7 | 1 2 x, 1 2 y, 1 3: the shared 1 and 2 stand once; x, y, 3 are asked for, not run
    tree = _Tree([7], [([1, 2, 8], 1), ([1, 2, 9], 1), ([1, 3], 2)])
    assert tree.tokens == [7, 1, 2]
    assert tree.depth().tolist() == [0, 1, 2]
    assert tree.ancestors().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert tree.asked == [0, 1, 2]
    assert tree.scored() == ([2, 2, 0, 1], [8, 9, 1, 3], [0, 1, 2, 2])
    apart = _Tree([7], [([1, 2], 1), ([3, 4], 1)])
    assert apart.tokens == [7, 1, 3]
    assert apart.ancestors().tolist() == [[1, 0, 0], [1, 1, 0], [1, 0, 1]]  # 3 does not see 1
    assert apart.depth().tolist() == [0, 1, 1]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_first_token_after_a_beginning(askers: dict[str, Asker], family: str) -> None:
    asker, content = askers[family], prompts(family)[0]
    options = tokenised(asker.tokenizer, "ANSWER: ", ["1", "5"])
    assert options.part_at_once
    (found,) = asker.log_probs([content], ["1", "5"], "ANSWER: ")
    expected = [forced(asker, content, [*options.shared, branch[0]], 1) for branch in options.branches]
    np.testing.assert_allclose(found, expected, atol=ROUNDING)


@pytest.mark.parametrize("family", SEVERAL)
def test_a_part_of_a_prompt_is_that_prompt(askers: dict[str, Asker], family: str) -> None:
    asker, frames = askers[family], pictures(4, seed=5)
    content: list[Any] = ["The robot moves the cube."]
    for number, frame in enumerate(frames):
        content += [f"\nFrame {number + 1}: ", frame]
    reading = asker.read([*content, "\nHow far?"])
    for count in (1, 2, 3, 4):
        cut = 1 + 2 * count
        found = reading.log_probs(LETTERS, ["", "Answer "], cut=cut, tail=["\nHow far?"])
        short = [*content[:cut], "\nHow far?"]
        expected = np.concatenate([asker.log_probs([short], LETTERS, start) for start in ("", "Answer ")])
        np.testing.assert_allclose(found, expected, atol=ROUNDING)
    whole = reading.log_probs(LETTERS)
    np.testing.assert_array_equal(whole, reading.log_probs(LETTERS))  # questions leave nothing behind


@pytest.mark.parametrize("family", SEVERAL)
def test_pictures_are_read_in_their_places(askers: dict[str, Asker], family: str) -> None:
    asker, (one, two) = askers[family], pictures(2)
    found = asker.log_probs([["a ", one, " b ", two], ["a ", two, " b ", one], ["b ", one, " a ", two]], LETTERS)
    assert np.abs(found[0] - found[1]).max() > 1e-3
    assert np.abs(found[0] - found[2]).max() > 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_written_answers(askers: dict[str, Asker], family: str) -> None:
    asker, contents = askers[family], prompts(family)
    texts = asker.write(contents, 4)
    assert texts == [text for content in contents for text in asker.write([content], 4)]
    # the first written token is the most probable one
    inputs = asker.inputs(contents[:1])
    with torch.inference_mode():
        best = int(asker.model(**inputs).logits[0, -1].argmax())
    assert asker.write(contents[:1], 1) == [asker.tokenizer.decode([best], skip_special_tokens=True)]


def test_frames_are_resized_before_the_models_own_preprocessing(models: Path) -> None:
    small = Asker(Source(path=str(tiny("internvl", models))), image_size=32)
    (picture,) = pictures(1)
    assert small._pictures([picture])[0].shape == (3, 32, 32)


def test_one_picture_where_there_is_no_chat_template(askers: dict[str, Asker]) -> None:
    asker, (one, two) = askers["paligemma"], pictures(2)
    asker.log_probs([["how far?", one]], LETTERS)
    with pytest.raises(ConfigError, match="no chat template and takes a single one"):
        asker.log_probs([["which?", one, two]], LETTERS)
    with pytest.raises(ConfigError, match="GVL shows several pictures"):
        asker.require_several("GVL")
    askers["smolvlm"].require_several("GVL")


def test_an_instruction_cannot_pose_as_a_picture(askers: dict[str, Asker]) -> None:
    with pytest.raises(RewardError, match="the sign of a picture"):
        askers["smolvlm"].log_probs([["push the <image>", *pictures(1)]], LETTERS)


def test_attention_without_masks_is_refused(models: Path) -> None:
    with pytest.raises(ConfigError, match="needs attention sdpa or eager"):
        Asker(Source(path=str(tiny("smolvlm", models)), attention="flash_attention_2"))


def test_a_model_is_held_once(askers: dict[str, Asker]) -> None:
    again = Asker(Source(path=askers["smolvlm"].path), image_size=32)
    assert again.model is askers["smolvlm"].model
    assert Asker(Source(path=askers["smolvlm"].path, dtype="bf16")).model is not again.model


def test_a_front_loading_template_keeps_the_order(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LLaVA-OneVision's own template writes all pictures first; written into the text, they keep their places."""
    asker = Asker(Source(path=str(tiny("llava_onevision", models))))
    template = (
        "{% for m in messages %}<|im_start|>{{m.role}}\n"
        "{% for c in m.content %}{% if c.type=='image' %}<image>{% endif %}{% endfor %}"
        "{% for c in m.content %}{% if c.type=='text' %}{{c.text}}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    )
    monkeypatch.setattr(asker.processor, "chat_template", template)
    assert _placeholder(asker.processor, asker.image_token) == "<image>"
