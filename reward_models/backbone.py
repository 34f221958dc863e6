"""Any Hugging Face vision-language model as a judge's backbone: one causal pass over all frames.

The instruction comes first, then for each step the image tokens of every camera and one learned reward token.
Heads read the hidden state at the reward tokens, so a pass over T + 1 frames gives T + 1 outputs, and each depends
on the instruction and the frames up to it alone (the idea of Robometer's per-frame token and of eVTA0's reward
token, METHODS 2.2 and 5, in one pass instead of one prompt a frame [O]).

`window` limits how many frames a token looks back, its own included. It is a rule of attention in every layer, so
one pass, a stream with a cache and a recomputation agree exactly; as in every layered model, layer k reaches
k (window - 1) frames back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from reward_models.fast_vision import speed_up
from reward_models.hub import Source, load_vlm
from reward_models.vlm_layout import (
    IMAGE,
    REWARD,
    FrameLayout,
    frame_layout,
    image_features,
    image_inputs,
    prompt_head,
    prompt_ids,
    resized,
    surroundings,
)
from reward_models.vlm_state import PREFIX, State, attention_rule
from robo_rl.errors import ConfigError, RewardError

PROMPT = "A robot is asked to: {instruction}\nAfter every picture, judge how far it has come.\n"
LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class Backbone(Protocol):
    """Frames and an instruction in, one hidden state a frame out; causal."""

    dim: int
    cameras: tuple[str, ...]

    def encode(self, frames: Mapping[str, Tensor]) -> Tensor:
        """camera -> uint8 (N, H, W, 3) to features (N, ...) that do not depend on the instruction."""
        ...

    def start(self, instructions: Sequence[str]) -> Any:
        """A state of B rows that have read their instructions."""
        ...

    def step(self, features: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Features (B, L, ...) of the next L frames of all rows -> hidden (B, L, dim), the new state."""
        ...

    def forward(self, features: Tensor, instructions: Sequence[str]) -> Tensor:
        """Features (B, L, ...) from the first frame on -> hidden (B, L, dim), with a gradient."""
        ...


@dataclass(frozen=True, kw_only=True)
class VlmConfig:
    """Which model, how it looks, and what of it is trained. Raises ConfigError."""

    path: str  # hub id or folder
    revision: str = ""
    dtype: str = "fp32"  # fp32 | bf16 | fp16
    attention: str = "sdpa"  # eager | sdpa | flash_attention_2
    device: str = "cpu"
    cameras: tuple[str, ...] = ()  # empty: those of the data it is first fitted to
    image_size: int = 0  # frames are resized to this square before the model's own preprocessing; 0: not
    window: int = 0  # frames a token looks back; 0: all
    prompt: str = PROMPT
    language: str = "lora"  # what of the language model is trained: none | lora | all
    lora_rank: int = 16
    lora_alpha: int = 32
    lora_dropout: float = 0.05
    vision_layers: int = 0  # last layers of the vision tower that are trained; -1: all of it
    gradient_checkpointing: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "cameras", tuple(self.cameras))
        if self.language not in ("none", "lora", "all"):
            raise ConfigError(f"backbone.language must be none, lora or all, got {self.language!r}")
        if "{instruction}" not in self.prompt:
            raise ConfigError("backbone.prompt must contain {instruction}")
        if self.window < 0 or self.image_size < 0 or self.vision_layers < -1:
            raise ConfigError("backbone: window and image_size must not be negative, vision_layers not below -1")
        if self.window and self.attention == "flash_attention_2":
            raise ConfigError("backbone: flash_attention_2 takes no window; use attention sdpa")
        self.source()

    def source(self) -> Source:
        return Source(
            path=self.path, revision=self.revision, dtype=self.dtype, attention=self.attention, device=self.device
        )


class VlmBackbone(nn.Module):
    """A pretrained image-text model with a reward token. Raises ConfigError for a model that cannot be used."""

    def __init__(self, config: VlmConfig) -> None:
        super().__init__()
        pretrained = load_vlm(config.source())
        self.config, self.cameras = config, config.cameras
        self.processor, self.revision = pretrained.processor, pretrained.revision
        whole = pretrained.model
        self.model = whole.model if hasattr(whole, "model") else whole
        speed_up(self.model)
        self._language = [_decoder(self.model)]  # in a list: it is registered as part of `model` already
        text = self.model.config.get_text_config()
        self.dim = int(text.hidden_size)
        self.image_token = int(self.model.config.image_token_id)
        self.rows_and_columns = hasattr(self.model, "get_rope_index")
        self.both_ways = bool(getattr(self.model.config, "model_type", "") in ("gemma3", "paligemma"))
        self.sliding = int(text.sliding_window) if "sliding_attention" in (_layer_types(text)) else 0
        self.head = prompt_head(self.processor)
        self._layout: FrameLayout | None = None
        self._around: tuple[list[int], list[int]] | None = None
        start = self.language.get_input_embeddings().weight.detach().float().mean(0)
        self.reward_token = nn.Parameter(torch.zeros(self.dim, device=start.device) + start)
        _choose_trained(self, config)
        self._trained = {name for name, parameter in self.named_parameters() if parameter.requires_grad}

    @property
    def language(self) -> Any:
        return self._language[0]

    @property
    def device(self) -> torch.device:
        return self.reward_token.device

    @property
    def trains_vision(self) -> bool:
        """Whether features change while training, so that they cannot be computed once."""
        return self.config.vision_layers != 0

    def frozen(self) -> set[str]:
        """Names of tensors that belong to the pretrained model and are never changed."""
        return set(self.state_dict()) - self._trained

    def may_train(self) -> None:
        """Ask for a gradient where one is wanted."""
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name in self._trained)

    # --- frames ------------------------------------------------------------------------------------------

    def encode(self, frames: Mapping[str, Tensor]) -> Tensor:
        """Image features of N steps, (N, image tokens of all cameras, width); `width` is `dim` or a multiple of it."""
        parts, grids = [], []
        for camera in self.cameras:
            inputs = image_inputs(self.processor, resized(frames[camera], self.config.image_size))
            parts.append(image_features(self.model, inputs))
            if self.rows_and_columns:
                merge = self.model.config.vision_config.spatial_merge_size
                _, rows, columns = (int(number) for number in inputs["image_grid_thw"][0])
                grids.append((rows // merge, columns // merge))
        self._arrange([part.shape[1] for part in parts], grids)
        return torch.cat(parts, 1)

    def _arrange(self, tokens: list[int], grids: list[tuple[int, int]]) -> None:
        if self._around is None:
            self._around = surroundings(self.processor, self.image_token)
        made = frame_layout(self._around, tokens, grids)
        if self._layout is None:
            self._layout = made
        elif not torch.equal(made.ids, self._layout.ids):
            raise RewardError("frames changed their size between episodes; set backbone.image_size to resize them")

    @property
    def layout(self) -> FrameLayout:
        if self._layout is None:
            raise RewardError("the backbone has not encoded a frame yet")
        return self._layout

    @property
    def tokens(self) -> int:
        """Tokens of one step, 0 while no frame has been seen."""
        return 0 if self._layout is None else self._layout.length

    def camera_places(self) -> list[slice]:
        """Where each camera's image tokens are along the third axis of features (B, L, tokens, width)."""
        owner = self.layout.group[self.layout.group >= 0]
        ends = torch.bincount(owner, minlength=len(self.cameras)).cumsum(0).tolist()
        return [slice(first, last) for first, last in zip([0, *ends[:-1]], ends, strict=True)]

    # --- the causal pass -----------------------------------------------------------------------------------

    def forward(self, features: Tensor, instructions: Sequence[str]) -> Tensor:
        """(B, L, tokens, width) -> hidden states at the reward tokens, float32 (B, L, dim)."""
        ids, valid = self._prompts(instructions)
        prefix = self._embed(ids)
        steps, visual, deep = self._frame_tokens(features)
        count = features.shape[1]
        position, frame = self._prefix_places(valid)
        start = valid.sum(1)
        later, later_frame, group = self._frame_places(start, torch.zeros_like(start), count)
        embeds = torch.cat([prefix, steps], 1)
        visual = torch.cat([torch.zeros_like(valid), visual], 1)
        valid = torch.cat([valid, torch.ones_like(later_frame, dtype=torch.bool)], 1)
        frame = torch.cat([frame, later_frame], 1)
        group = torch.cat([torch.full_like(ids, -1), group], 1)
        hidden = self._run(embeds, torch.cat([position, later], 2), visual, deep, (valid, frame, group), None)
        return self._at_reward(hidden[:, ids.shape[1] :], count)

    def start(self, instructions: Sequence[str]) -> State:
        """Read B instructions."""
        state = State.empty(len(instructions), self.device)
        self.read(state, range(len(instructions)), instructions)
        return state

    def read(self, state: State, rows: Sequence[int], instructions: Sequence[str]) -> None:
        """Some rows start again, each with its instruction; the others wait."""
        ids, valid = self._prompts(instructions)
        everyone = torch.zeros(len(state.position), ids.shape[1], dtype=torch.int64, device=self.device)
        there = everyone.bool()
        chosen = torch.as_tensor(list(rows), device=self.device)
        everyone[chosen], there[chosen] = ids, valid
        state.valid[chosen] = False
        state.position[chosen] = state.frames[chosen] = 0
        position, frame = self._prefix_places(there)
        visual = torch.zeros_like(there)
        group = torch.full_like(everyone, -1)
        self._run(self._embed(everyone), position, visual, [], (there, frame, group), state)
        state.position[chosen] = valid.sum(1)
        state.forget(self.config.window)

    def step(self, features: Tensor, state: State, rows: Tensor | None = None) -> tuple[Tensor, State]:
        """The next L frames of all rows, or of those where `rows` bool (B,) is True; changes `state` in place."""
        count = features.shape[1]
        there = torch.ones_like(state.position, dtype=torch.bool) if rows is None else rows
        embeds, visual, deep = self._frame_tokens(features)
        position, frame, group = self._frame_places(state.position, state.frames, count)
        valid = there[:, None].expand_as(frame)
        hidden = self._run(embeds, position, visual, deep, (valid, frame, group), state)
        state.position += there * (count * self.layout.advance)
        state.frames += there * count
        state.forget(self.config.window)
        return self._at_reward(hidden, count), state

    def _run(
        self,
        embeds: Tensor,
        position: Tensor,
        visual: Tensor,
        deep: list[Tensor],
        marks: tuple[Tensor, Tensor, Tensor],
        state: State | None,
    ) -> Tensor:
        valid, frame, group = marks
        key_valid, key_frame = valid, frame
        if state is not None:
            key_valid, key_frame = torch.cat([state.valid, valid], 1), torch.cat([state.frame, frame], 1)
        extra: dict[str, Any] = {}
        if deep:
            extra = {"visual_pos_masks": visual, "deepstack_visual_embeds": deep}
        out = self.language(
            inputs_embeds=embeds,
            attention_mask=self._mask(key_valid, key_frame, frame, group),
            position_ids=position if self.rows_and_columns else position[0],
            past_key_values=None if state is None else state.cache,
            use_cache=state is not None,
            **extra,
        )
        if state is not None:
            state.valid, state.frame = key_valid, key_frame
        return out.last_hidden_state

    def _mask(self, key_valid: Tensor, key_frame: Tensor, frame: Tensor, group: Tensor) -> Any:
        """None where plain causal attention is all there is, which lets fast kernels run."""
        window, both_ways = self.config.window, self.both_ways and bool((group >= 0).any())
        if not (window or both_ways or self.sliding) and bool(key_valid.all()):
            return None
        if self.config.attention == "flash_attention_2":
            raise ConfigError("backbone: flash_attention_2 needs instructions of one length; use attention sdpa")
        rule = attention_rule(
            key_valid=key_valid,
            key_frame=key_frame,
            query_frame=frame,
            query_group=group if both_ways else None,
            window=window,
        )
        if not self.sliding:
            return self._as_bias(rule)
        keys, queries = rule.shape[-1], rule.shape[-2]
        place = torch.arange(keys, device=rule.device)
        near = place[None, :] > place[keys - queries :, None] - self.sliding
        return {"full_attention": self._as_bias(rule), "sliding_attention": self._as_bias(rule & near)}

    def _as_bias(self, rule: Tensor) -> Tensor:
        if self.config.attention == "sdpa":
            return rule
        dtype = next(self.language.parameters()).dtype
        return torch.zeros_like(rule, dtype=dtype).masked_fill(~rule, torch.finfo(dtype).min)

    # --- tokens ----------------------------------------------------------------------------------------------

    def _prompts(self, instructions: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Left-padded ids int64 (B, n) and bool (B, n)."""
        texts = [self.config.prompt.format(instruction=text) for text in instructions]
        rows = [prompt_ids(self.processor, self.head, text) for text in texts]
        longest = max(len(row) for row in rows)
        ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows], device=self.device)
        valid = torch.tensor([[False] * (longest - len(row)) + [True] * len(row) for row in rows], device=self.device)
        return ids, valid

    def _embed(self, ids: Tensor) -> Tensor:
        return self.language.get_input_embeddings()(ids)

    def _frame_tokens(self, features: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Embeddings (B, L n, dim), image places bool (B, L n), deep-stacked features of all image tokens in order."""
        batch, count = features.shape[:2]
        ids = self.layout.ids.to(self.device)
        plain = self._embed(ids.clamp(min=0))
        plain = torch.where((ids == REWARD)[:, None], self.reward_token.to(plain.dtype), plain)
        embeds = plain.expand(batch, count, -1, -1).clone()
        features = features.to(self.device, plain.dtype)
        embeds[:, :, ids == IMAGE] = features[..., : self.dim]
        deep = [part.reshape(-1, self.dim) for part in features[..., self.dim :].split(self.dim, -1) if part.numel()]
        visual = (ids == IMAGE).repeat(count).expand(batch, -1)
        return embeds.flatten(1, 2), visual, deep

    def _prefix_places(self, valid: Tensor) -> tuple[Tensor, Tensor]:
        place = (valid.cumsum(1) - 1).clamp(min=0)
        return place.expand(3, -1, -1), torch.full_like(place, PREFIX)

    def _frame_places(self, position: Tensor, seen: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Positions (3, B, L n), frame numbers (B, L n) and image groups (B, L n) of the next L frames."""
        layout, rows = self.layout, len(position)
        number = torch.arange(count, device=self.device)
        first = position[:, None] + number * layout.advance  # (B, L)
        places = first[None, :, :, None] + layout.offsets.to(self.device)[:, None, None, :]
        frame = (seen[:, None] + number).repeat_interleave(layout.length, 1)
        images = len(self.cameras)
        group = layout.group.to(self.device)
        group = torch.where(group >= 0, number[:, None] * images + group, -1).flatten().expand(rows, -1)
        return places.flatten(2), frame, group

    def _at_reward(self, hidden: Tensor, count: int) -> Tensor:
        return hidden.unflatten(1, (count, self.layout.length))[:, :, -1].float()


def _decoder(model: Any) -> Any:
    for name in ("language_model", "text_model"):
        if hasattr(model, name):
            return getattr(model, name)
    raise ConfigError(f"{type(model).__name__}: no language model found in it; this architecture is not supported")


def _layer_types(text: Any) -> Sequence[str]:
    return getattr(text, "layer_types", None) or ()


def _choose_trained(backbone: VlmBackbone, config: VlmConfig) -> None:
    """Freeze everything but the reward token and what the config names."""
    backbone.model.requires_grad_(False)
    if config.language == "all":
        backbone.language.requires_grad_(True)
    elif config.language == "lora":
        _add_lora(backbone.language, config)
    if config.vision_layers:
        _train_vision(backbone.model, config.vision_layers)
    if config.gradient_checkpointing:
        backbone.model.gradient_checkpointing_enable({"use_reentrant": False})


def _add_lora(language: Any, config: VlmConfig) -> None:
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise ConfigError("backbone.language=lora needs the peft package; install robo_rl[vlm]") from None
    adapter = LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules=list(LORA_TARGETS),
    )
    inject_adapter_in_model(adapter, language)


def _train_vision(model: Any, layers: int) -> None:
    tower = next((getattr(model, n) for n in ("visual", "vision_tower", "vision_model") if hasattr(model, n)), None)
    if tower is None:
        raise ConfigError(f"{type(model).__name__}: no vision tower found; use vision_layers: 0")
    if layers == -1:
        tower.requires_grad_(True)
        return
    stacks = [part for part in tower.modules() if isinstance(part, nn.ModuleList) and len(part) > 1]
    if not stacks or layers > len(stacks[0]):
        has = len(stacks[0]) if stacks else 0
        raise ConfigError(f"backbone.vision_layers: {layers} asked for, but the vision tower has {has}")
    for layer in list(stacks[0])[-layers:]:
        layer.requires_grad_(True)
