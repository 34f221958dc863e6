"""The causal pass on tiny random models of the real architectures: one pass, a stream and a recomputation agree."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from huggingface_hub import errors as hub_errors
from tiny_models import VLMS, tiny
from torch import Tensor

from reward_models import hub
from reward_models.backbone import VlmBackbone, VlmConfig
from reward_models.fast_vision import PatchProduct, speed_up
from reward_models.hub import Source, fingerprint, load_dual_encoder, load_vlm
from reward_models.vlm_layout import IMAGE, REWARD, image_inputs, resized
from reward_models.vlm_state import PREFIX, State, attention_rule
from robo_rl.errors import ConfigError, RewardError

INSTRUCTIONS = ["put the red cube on the green pad", "push it"]  # of different lengths
CAMERAS = ("front", "wrist")
ROUNDING = 1e-4


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.getbasetemp() / "tiny"


def backbone(models: Path, family: str, **options: Any) -> VlmBackbone:
    torch.manual_seed(0)
    options = {"cameras": CAMERAS, "language": "none"} | options
    made = VlmBackbone(VlmConfig(path=str(tiny(family, models)), **options)).eval()
    with torch.no_grad():
        made.reward_token.normal_(std=0.05, generator=torch.Generator().manual_seed(3))
    return made


def frames(count: int, seed: int = 1, size: int = 64, cameras: tuple[str, ...] = CAMERAS) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        camera: torch.randint(0, 255, (count, size, size, 3), dtype=torch.uint8, generator=generator)
        for camera in cameras
    }


def clips(model: VlmBackbone, batch: int, length: int, seed: int = 1) -> Tensor:
    encoded = model.encode(frames(batch * length, seed, cameras=model.cameras))
    return encoded.view(batch, length, *encoded.shape[1:])


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("family", sorted(VLMS))
@torch.inference_mode()
def test_one_pass_stream_and_recomputation_agree(models: Path, family: str, window: int) -> None:
    model = backbone(models, family, window=window)
    features = clips(model, 2, 6)
    whole = model(features, INSTRUCTIONS)
    assert whole.shape == (2, 6, model.dim)
    assert whole.std(1).mean() > 0.05  # the frames matter: a constant would agree with itself
    state = model.start(INSTRUCTIONS)
    streamed = torch.cat([model.step(features[:, t : t + 1], state)[0] for t in range(6)], 1)
    assert (streamed - whole).abs().max() < ROUNDING
    state = model.start(INSTRUCTIONS)
    blocks = torch.cat([model.step(part, state)[0] for part in features.split([4, 2], 1)], 1)
    assert (blocks - whole).abs().max() < ROUNDING
    prefixes = torch.stack([model(features[:, : t + 1], INSTRUCTIONS)[:, -1] for t in range(6)], 1)
    assert (prefixes - whole).abs().max() < ROUNDING
    alone = torch.cat([model(features[row : row + 1], INSTRUCTIONS[row : row + 1]) for row in range(2)])
    assert (alone - whole).abs().max() < ROUNDING  # padding of the shorter instruction changes nothing


@pytest.mark.parametrize("family", sorted(VLMS))
@torch.inference_mode()
def test_a_frame_changes_what_follows_and_nothing_before(models: Path, family: str) -> None:
    model = backbone(models, family)
    features = clips(model, 1, 5)
    changed = features.clone()
    changed[:, 2] = clips(model, 1, 5, seed=9)[:, 2]
    before, after = model(features, INSTRUCTIONS[:1]), model(changed, INSTRUCTIONS[:1])
    difference = (before - after).abs().amax(-1)[0]
    assert difference[:2].max() < 1e-5
    assert difference[2:].min() > 1e-3
    other = model(features, ["push the blue cube off the table"])
    assert (before - other).abs().max() > 1e-3  # the instruction is read


@torch.inference_mode()
def test_a_window_is_what_it_says(models: Path) -> None:
    """Two layers of window 2 reach 2 (2 - 1) = 2 frames back: frame 3 sees a change of frame 1, not of frame 0."""
    model = backbone(models, "smolvlm", window=2)
    features = clips(model, 1, 4)
    reach = []
    for place in range(4):
        changed = features.clone()
        changed[:, place] = clips(model, 1, 4, seed=9)[:, place]
        moved = (model(changed, INSTRUCTIONS[:1]) - model(features, INSTRUCTIONS[:1]))[0, 3].abs().max()
        reach.append(float(moved) > 1e-4)
    assert reach == [False, True, True, True]
    state = model.start(INSTRUCTIONS)
    sizes = []
    for t in range(12):
        model.step(clips(model, 2, 12)[:, t : t + 1], state)
        sizes.append(state.valid.shape[1])
    assert sizes[2] == sizes[-1]  # what left the window is dropped
    assert state.cache.get_seq_length() == sizes[-1]


@pytest.mark.parametrize("family", ["qwen3_vl", "gemma3"])
@torch.inference_mode()
def test_rows_start_again_and_wait(models: Path, family: str) -> None:
    model = backbone(models, family, window=3)
    first, second = clips(model, 2, 4), clips(model, 1, 3, seed=5)
    state = model.start(INSTRUCTIONS)
    for t in range(4):
        model.step(first[:, t : t + 1], state)
    model.read(state, [1], ["put it down"])
    both = torch.tensor([True, True])
    mine = []
    for t in range(3):
        features = torch.cat([first[:1, t : t + 1], second[:, t : t + 1]])
        there = both if t != 1 else torch.tensor([False, True])  # row 0 waits once
        mine.append(model.step(features, state, there)[0])
    fresh = model(second, ["put it down"])
    assert (torch.stack([part[1, 0] for part in mine]) - fresh[0]).abs().max() < ROUNDING
    kept = torch.cat([first[:1], first[:1, [0, 2]]], 1)
    assert (mine[2][0, 0] - model(kept, INSTRUCTIONS[:1])[0, -1]).abs().max() < ROUNDING


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl", "smolvlm", "gemma3", "internvl", "llava_onevision"])
@torch.inference_mode()
def test_the_pass_is_the_model_s_own(models: Path, family: str) -> None:
    """Instruction and two frames through the model's own forward; the token before the second reward token agrees."""
    model = backbone(models, family, cameras=("front",))
    pictures = frames(2, cameras=("front",))
    features = model.encode(pictures)[None]
    layout = model.layout
    hidden: dict[str, Tensor] = {}
    real = model._at_reward
    model._at_reward = lambda states, count: hidden.setdefault("all", states) if count else states  # type: ignore[assignment, method-assign]
    model(features, INSTRUCTIONS[:1])
    model._at_reward = real  # type: ignore[method-assign]
    prefix, _ = model._prompts(INSTRUCTIONS[:1])
    inside = layout.ids[:-1].clone()  # without the reward token, which the model does not know
    inside[inside == IMAGE] = model.image_token
    ids = torch.cat([prefix[0], inside])[None]
    inputs = image_inputs(model.processor, pictures["front"][:1])
    types = (ids == model.image_token).long()
    extra: dict[str, Any] = {}
    extra = {"mm_token_type_ids": types} if family.startswith("qwen") else extra
    extra = {"token_type_ids": types} if family == "gemma3" else extra
    own = model.model(input_ids=ids, **inputs, **extra).last_hidden_state[0, prefix.shape[1] :]
    ours = hidden["all"][0, : layout.length - 1]
    assert own.shape == ours.shape
    assert (own - ours).abs().max() < ROUNDING


def test_what_is_trained(models: Path) -> None:
    model = backbone(models, "qwen3_vl", language="lora", lora_rank=4, vision_layers=1)
    names = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert "reward_token" in names
    adapters = {name for name in names if "lora_" in name}
    assert len(adapters) == 2 * 2 * 7  # A and B, two layers, seven matrices
    vision = names - adapters - {"reward_token"}
    assert all(".blocks.1." in name for name in vision)
    assert vision
    assert model.trains_vision
    frozen = backbone(models, "qwen3_vl")
    assert [name for name, parameter in frozen.named_parameters() if parameter.requires_grad] == ["reward_token"]


def gradient(model: VlmBackbone) -> Tensor:
    model.train()
    out = model(clips(model, 2, 3), INSTRUCTIONS)
    (out * torch.linspace(-1, 1, model.dim)).sum().backward()
    assert model.reward_token.grad is not None
    return model.reward_token.grad


def test_gradient_checkpointing_changes_no_gradient(models: Path) -> None:
    options = {"language": "lora", "lora_dropout": 0.0}
    plain = gradient(backbone(models, "smolvlm", **options))
    saving = gradient(backbone(models, "smolvlm", gradient_checkpointing=True, **options))
    assert plain.abs().max() > 1e-3
    assert torch.allclose(plain, saving, rtol=1e-3, atol=1e-4)


@torch.inference_mode()
def test_attention_and_precision_are_options(models: Path) -> None:
    reference = backbone(models, "gemma3", window=2)
    features = clips(reference, 2, 3)
    whole = reference(features, INSTRUCTIONS)
    eager = backbone(models, "gemma3", window=2, attention="eager")
    eager.encode(frames(1))
    assert (eager(features, INSTRUCTIONS) - whole).abs().max() < ROUNDING
    half = backbone(models, "gemma3", window=2, dtype="bf16")
    out = half(clips(half, 2, 3), INSTRUCTIONS)
    assert out.dtype == torch.float32
    assert 1e-6 < (out - whole).abs().max() < 0.5


@torch.inference_mode()
def test_frames_of_any_size_are_resized_alike(models: Path) -> None:
    model = backbone(models, "qwen3_vl", image_size=64)
    assert model.encode(frames(2, size=96)).shape == model.encode(frames(2, size=64)).shape
    plain = backbone(models, "qwen3_vl")
    plain.encode(frames(1))
    with pytest.raises(RewardError, match=r"set backbone\.image_size"):
        plain.encode(frames(1, size=128))
    checker = torch.zeros(1, 4, 4, 3, dtype=torch.uint8)
    checker[:, :, ::2] = 200
    assert resized(checker, 2).unique().tolist() == [86, 114]  # weights .75, .75, .25 of 1.75 on 200, 0, 200
    assert resized(checker, 0) is checker


def test_the_rule_of_attention_by_hand() -> None:
    """Row 0: padding, instruction, frames 0, 0, 1 (new: the last two). Row 1 has no token in the last column."""
    valid = torch.tensor([[False, True, True, True, True], [True, True, True, True, False]])
    frame = torch.tensor([[PREFIX, PREFIX, 0, 0, 1], [PREFIX, PREFIX, 0, 1, 1]])
    group = torch.tensor([[-1, -1], [4, 4]])
    rule = attention_rule(key_valid=valid, key_frame=frame, query_frame=frame[:, 3:], query_group=group, window=1)
    assert rule[0, 0].int().tolist() == [[0, 1, 1, 1, 0], [0, 1, 0, 0, 1]]
    assert rule[1, 0].int().tolist() == [[1, 1, 0, 1, 0], [1, 1, 0, 1, 1]]  # the missing token sees itself
    both = attention_rule(
        key_valid=torch.ones(1, 3, dtype=torch.bool),
        key_frame=torch.zeros(1, 3, dtype=torch.int64),
        query_frame=torch.zeros(1, 2, dtype=torch.int64),
        query_group=torch.tensor([[2, 2]]),
        window=0,
    )
    assert both[0, 0].int().tolist() == [[1, 1, 1], [1, 1, 1]]  # tokens of one image see each other


def test_columns_of_no_row_are_dropped() -> None:
    state = State.empty(2, torch.device("cpu"))
    state.valid = torch.tensor([[True, True, True, False], [True, False, True, False]])
    state.frame = torch.tensor([[PREFIX, 0, 1, 1], [PREFIX, 0, 0, 1]])
    state.frames = torch.tensor([2, 1])
    state.forget(2)  # the next frames are 2 and 1, and see one frame before them: 1 and 0
    assert state.frame.tolist() == [[PREFIX, 1], [PREFIX, 0]]
    assert bool(state.valid.all())


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl"])
@torch.inference_mode()
def test_the_faster_vision_tower_gives_the_same_features(models: Path, family: str) -> None:
    """Pictures of one size in one call, of two sizes in several, and windows inside a picture (Qwen2.5)."""
    plain, fast = (load_vlm(Source(path=str(tiny(family, models)))) for _ in range(2))
    names = set(fast.model.state_dict())
    speed_up(fast.model.model)
    assert isinstance(fast.model.model.visual.patch_embed.proj, PatchProduct)
    assert set(fast.model.state_dict()) == names
    same = image_inputs(plain.processor, frames(5, size=96)["front"])
    small = image_inputs(plain.processor, frames(2, size=64)["front"])
    mixed = {name: torch.cat([same[name], small[name]]) for name in ("pixel_values", "image_grid_thw")}
    for inputs in (same, mixed):
        one, other = (m.model.model.get_image_features(**inputs).pooler_output for m in (plain, fast))
        assert len(one) == len(inputs["image_grid_thw"])
        assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(one, other, strict=True))
    speed_up(load_vlm(Source(path=str(tiny("smolvlm", models)))).model.model)  # other towers are left alone


def test_layout_puts_the_reward_token_last(models: Path) -> None:
    model = backbone(models, "qwen3_vl")
    model.encode(frames(1))
    ids = model.layout.ids.tolist()
    assert ids[-1] == REWARD
    assert ids.count(IMAGE) == 8  # two cameras, 64 / 16 = 4 x 4 patches merged two by two
    start = model.processor.tokenizer.convert_tokens_to_ids("<|vision_start|>")
    assert ids[0] == start
    assert model.layout.offsets[:, 1:5].tolist() == [[1, 1, 1, 1], [1, 1, 2, 2], [1, 2, 1, 2]]  # time, row, column
    assert model.layout.offsets[0, 5] == 3  # goes on after the larger of 2 rows and 2 columns


# --- opening a model -----------------------------------------------------------------------------------------


def test_missing_models_say_what_to_do(models: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such model folder"):
        load_vlm(Source(path=str(tmp_path / "nowhere")))
    with pytest.raises(ConfigError, match=r"not a model folder, config\.json is missing"):
        load_vlm(Source(path=str(tmp_path)))
    with pytest.raises(ConfigError, match=r"some/model@abc: not in the local cache, and HF_HUB_OFFLINE is set"):
        load_vlm(Source(path="some/model", revision="abc"))
    folder = tiny("smolvlm", models)
    with pytest.raises(ConfigError, match="a folder has no revision"):
        load_vlm(Source(path=str(folder), revision="main"))
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        (bare / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(ConfigError, match="the model is there but not its processor"):
        load_vlm(Source(path=str(bare)))
    with pytest.raises(ConfigError, match="cannot be opened as an image-text model"):
        load_vlm(Source(path=str(tiny("clip", models))))
    with pytest.raises(ConfigError, match="use a CLIP or SigLIP model"):
        load_dual_encoder(Source(path=str(tiny("qwen3_vl", models))))


@pytest.mark.parametrize(
    ("cause", "says"),
    [
        (hub_errors.GatedRepoError, "gated; accept its licence"),
        (hub_errors.RevisionNotFoundError, "no such revision"),
        (hub_errors.RepositoryNotFoundError, "no such model, or it is private"),
    ],
)
def test_refusals_of_the_hub(monkeypatch: pytest.MonkeyPatch, cause: Any, says: str) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("a long text") from cause.__new__(cause)

    monkeypatch.setattr(transformers.AutoModelForImageTextToText, "from_pretrained", refuse)
    with pytest.raises(ConfigError, match=says):
        load_vlm(Source(path="some/model"))


def test_a_folder_s_fingerprint_sees_every_change(models: Path, tmp_path: Path) -> None:
    folder = tiny("clip", models)
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    assert fingerprint(copy) == fingerprint(folder)
    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[len(weights) // 2] ^= 1
    (copy / "model.safetensors").write_bytes(bytes(weights))
    assert fingerprint(copy) != fingerprint(folder)
    assert hub.load_dual_encoder(Source(path=str(copy))).revision == fingerprint(copy)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"language": "some"}, "none, lora or all"),
        ({"prompt": "judge"}, r"must contain \{instruction\}"),
        ({"window": -1}, "must not be negative"),
        ({"dtype": "int8"}, "dtype must be one of"),
        ({"window": 2, "attention": "flash_attention_2"}, "takes no window"),
        ({"path": ""}, "path is empty"),
    ],
)
def test_bad_options(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        VlmConfig(**({"path": "x/y"} | options))


def test_more_vision_layers_than_there_are(models: Path) -> None:
    with pytest.raises(ConfigError, match="9 asked for, but the vision tower has 2"):
        backbone(models, "smolvlm", vision_layers=9)
