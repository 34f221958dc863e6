"""lerobot pre- and post-processors of CompactVLA: bytes for the text, normalisation for the numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from lerobot.configs import FeatureType, PipelineFeatureType, PolicyFeature
from lerobot.lerobot_types import TransitionKey
from lerobot.processor import (
    AddBatchDimensionProcessorStep,
    DeviceProcessorStep,
    NormalizerProcessorStep,
    ObservationProcessorStep,
    PolicyAction,
    PolicyProcessorPipeline,
    ProcessorStepRegistry,
    RenameObservationsProcessorStep,
    UnnormalizerProcessorStep,
)
from lerobot.processor.converters import policy_action_to_transition, transition_to_policy_action

from robo_rl.nets import MAX_BYTES, tokenize
from robo_rl.policies.compact_vla.configuration_compact_vla import CompactVLAConfig
from robo_rl.policies.compact_vla.modeling_compact_vla import TOKENS


@dataclass
@ProcessorStepRegistry.register(name="robo_rl_byte_tokenizer")
class ByteTokenizerProcessorStep(ObservationProcessorStep):
    """Writes the instruction's UTF-8 bytes as `observation.language.tokens`, int64 (B, 96), 0 = padding.

    Any text is valid input, in any language: there is no vocabulary to miss.
    """

    task_key: str = "task"

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        data = self.transition.get(TransitionKey.COMPLEMENTARY_DATA) or {}
        task = data.get(self.task_key)
        if task is None:
            raise ValueError(f"CompactVLA needs the instruction under {self.task_key!r} in every batch")
        observation[TOKENS] = tokenize([task] if isinstance(task, str) else list(task))
        return observation

    def get_config(self) -> dict[str, Any]:
        return {"task_key": self.task_key}

    def transform_features(
        self, features: dict[PipelineFeatureType, dict[str, PolicyFeature]]
    ) -> dict[PipelineFeatureType, dict[str, PolicyFeature]]:
        features[PipelineFeatureType.OBSERVATION][TOKENS] = PolicyFeature(type=FeatureType.LANGUAGE, shape=(MAX_BYTES,))
        return features


def make_compact_vla_pre_post_processors(
    config: CompactVLAConfig,
    dataset_stats: dict[str, dict[str, torch.Tensor]] | None = None,
) -> tuple[
    PolicyProcessorPipeline[dict[str, Any], dict[str, Any]], PolicyProcessorPipeline[PolicyAction, PolicyAction]
]:
    """The two pipelines lerobot saves beside the policy; `dataset_stats` are a dataset's `meta.stats`."""
    features = {**(config.input_features or {}), **(config.output_features or {})}
    before = PolicyProcessorPipeline[dict[str, Any], dict[str, Any]](
        steps=[
            RenameObservationsProcessorStep(rename_map={}),
            AddBatchDimensionProcessorStep(),
            ByteTokenizerProcessorStep(),
            DeviceProcessorStep(device=config.device or "cpu"),
            NormalizerProcessorStep(features=features, norm_map=config.normalization_mapping, stats=dataset_stats),
        ],
        name="policy_preprocessor",
    )
    after = PolicyProcessorPipeline[PolicyAction, PolicyAction](
        steps=[
            UnnormalizerProcessorStep(
                features=config.output_features or {}, norm_map=config.normalization_mapping, stats=dataset_stats
            ),
            DeviceProcessorStep(device="cpu"),
        ],
        name="policy_postprocessor",
        to_transition=policy_action_to_transition,
        to_output=transition_to_policy_action,
    )
    return before, after
