"""CompactVLA: images + instruction + proprioception -> action chunk, by rectified flow matching.

Rectified flow (Liu et al. 2022) as flow-matching VLAs use it (pi0): x_t = (1 - t) noise + t action,
the network predicts the velocity action - noise, and inference integrates it with a few Euler steps.
Encoding a frame costs far more than one head evaluation, so every encoded frame is trained on several
(noise, time) draws. An auxiliary head regresses the chunk directly; it only speeds up the encoder.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from lerobot.policies.pretrained import PreTrainedPolicy
from torch import Tensor, nn

from robo_rl.nets import ConvTrunk, LanguageGrid, LanguagePool, TextEncoder
from robo_rl.policies.compact_vla.configuration_compact_vla import CompactVLAConfig

TOKENS = "observation.language.tokens"


class _Block(nn.Module):
    """Residual layer of the flow head, modulated by the context."""

    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.modulate = nn.Linear(context, 2 * width)
        last = nn.Linear(2 * width, width)
        nn.init.zeros_(last.weight)
        self.inner = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), last)

    def forward(self, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return x + self.inner(self.norm(x) * (1 + scale) + shift)


class FlowHead(nn.Module):
    """Velocity of a noisy chunk: (B, D, chunk*A), (B, D, 1), context (B, C) -> (B, D, chunk*A)."""

    frequencies: Tensor

    def __init__(self, flat: int, context: int, width: int, blocks: int) -> None:
        super().__init__()
        self.enter = nn.Linear(flat, width)
        self.time = nn.Sequential(nn.Linear(16, width), nn.GELU(), nn.Linear(width, width))
        self.blocks: list[_Block] = nn.ModuleList(_Block(width, context) for _ in range(blocks))  # type: ignore[assignment]
        self.norm = nn.LayerNorm(width)
        self.leave = nn.Linear(width, flat)
        self.register_buffer("frequencies", 2.0 ** torch.arange(8) * torch.pi / 2, persistent=False)

    def forward(self, noisy: Tensor, time: Tensor, context: Tensor) -> Tensor:
        phase = time * self.frequencies
        x = self.enter(noisy) + self.time(torch.cat([phase.sin(), phase.cos()], -1))
        for block in self.blocks:
            scale, shift = block.modulate(context).unsqueeze(1).chunk(2, -1)
            x = block(x, scale, shift)
        return self.leave(self.norm(x))


class CompactVLAPolicy(PreTrainedPolicy):
    """A language-conditioned policy of one to three million parameters.

    Batches are what the preprocessor leaves: `observation.images.<camera>` float (B, 3, H, W) in [0, 1],
    `observation.state` (B, S) and `action` (B, chunk, A) normalised, `observation.language.tokens`
    int64 (B, L), `action_is_pad` bool (B, chunk).
    """

    config_class = CompactVLAConfig
    name = "compact_vla"

    def __init__(self, config: CompactVLAConfig, **_: Any) -> None:
        super().__init__(config)
        config.validate_features()
        self.config: CompactVLAConfig = config
        self.cameras = list(config.image_features)
        self.action_dim = config.action_feature.shape[0]
        state_dim = config.robot_state_feature.shape[0]
        self.text = TextEncoder(config.text_dim)
        self.trunks = nn.ModuleList(ConvTrunk(config.channels) for _ in self.cameras)
        self.proprio = nn.Sequential(nn.Linear(state_dim, 64), nn.GELU(), nn.Linear(64, 64))
        pools = [LanguagePool(config.channels, config.text_dim, config.queries) for _ in self.cameras]
        grids = [LanguageGrid(config.channels, config.text_dim) for _ in self.cameras]
        self.pools, self.grids = nn.ModuleList(pools), nn.ModuleList(grids)
        seen = sum(p.out_dim for p in pools) + sum(g.out_dim for g in grids) + 64 + config.text_dim
        self.fuse = nn.Sequential(
            nn.LayerNorm(seen),
            nn.Linear(seen, 384),
            nn.GELU(),
            nn.Linear(384, config.context_dim),
            nn.LayerNorm(config.context_dim),
            nn.GELU(),
        )
        flat = config.chunk_size * self.action_dim
        self.head = FlowHead(flat, config.context_dim, config.head_width, config.head_blocks)
        self.regress = nn.Sequential(nn.Linear(config.context_dim, 256), nn.GELU(), nn.Linear(256, flat))
        self.reset()

    def get_optim_params(self) -> Any:
        return self.parameters()

    def reset(self) -> None:
        self._queue: deque[Tensor] = deque(maxlen=self.config.n_action_steps)

    def encode(self, batch: dict[str, Tensor]) -> Tensor:
        """Context of every sample: (B, context_dim)."""
        text = self.text(batch[TOKENS])
        seen: list[Tensor] = []
        for camera, trunk, pool, grid in zip(self.cameras, self.trunks, self.pools, self.grids, strict=True):
            maps = trunk(batch[camera])
            seen += [pool(maps, text).float(), grid(maps, text).float()]
        return self.fuse(torch.cat([*seen, self.proprio(batch["observation.state"]), text], -1))

    def forward(
        self,
        batch: dict[str, Tensor],
        reduction: str = "mean",
        noise: Tensor | None = None,
        time: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, float]]:
        """Flow-matching loss; `reduction="none"` gives one loss a sample, (B,).

        Padded actions count nothing and every valid action counts the same, so the mean of the
        per-sample losses is the plain loss, and unit sample weights are plain behaviour cloning.
        `noise` (B, draws, chunk, A) and `time` (B, draws) may be given; they are drawn otherwise.
        """
        context = self.encode(batch)
        actions = batch["action"].float()
        count, chunk, width = actions.shape
        target = actions.reshape(count, 1, -1)
        draws = self.config.flow_draws if noise is None else noise.shape[1]
        if noise is None:
            noise = torch.randn(count, draws, chunk, width, device=actions.device)
        if time is None:
            time = torch.rand(count, draws, device=actions.device)
        start, t = noise.reshape(count, draws, -1), time.unsqueeze(-1)
        velocity = self.head((1 - t) * start + t * target, t, context).float()
        squared = ((velocity - (target - start)) ** 2).mean(1)
        straight = (self.regress(context).float() - target[:, 0]).abs()
        element = squared + self.config.regression_weight * straight
        pad = batch.get("action_is_pad")
        valid = torch.ones_like(actions[..., 0]) if pad is None else (~pad).float()
        flow = (squared.view_as(actions) * valid.unsqueeze(-1)).mean((1, 2))
        per_sample = (element.view_as(actions) * valid.unsqueeze(-1)).mean((1, 2))
        info = {"flow_loss": float(flow.mean().detach()), "loss": float(per_sample.mean().detach())}
        return (per_sample if reduction == "none" else per_sample.mean()), info

    @torch.no_grad()
    def predict_action_chunk(self, batch: dict[str, Tensor], noise: Tensor | None = None, **_: Any) -> Tensor:
        """Normalised actions (B, chunk, A); `noise` (B, chunk, A) fixes the sample."""
        context = self.encode(batch)
        count, chunk = len(context), self.config.chunk_size
        if noise is None:
            noise = torch.randn(count, chunk, self.action_dim, device=context.device)
        x = noise.reshape(count, 1, -1).float()
        steps = self.config.denoise_steps
        for step in range(steps):
            time = torch.full((count, 1, 1), step / steps, device=x.device)
            x = x + self.head(x, time, context).float() / steps
        return x.view(count, chunk, self.action_dim)

    @torch.no_grad()
    def select_action(self, batch: dict[str, Tensor], **kwargs: Any) -> Tensor:
        if not self._queue:
            chunk = self.predict_action_chunk(batch, **kwargs)
            self._queue.extend(chunk[:, : self.config.n_action_steps].transpose(0, 1))
        return self._queue.popleft()

    def trunk_parameters(self) -> dict[str, dict[str, Tensor]]:
        """Parameters of the language-free trunk of every camera (bare camera name), for a judge to start from."""
        return {
            camera.removeprefix("observation.images."): {
                key: value.detach().clone() for key, value in trunk.state_dict().items()
            }
            for camera, trunk in zip(self.cameras, self.trunks, strict=True)
        }
