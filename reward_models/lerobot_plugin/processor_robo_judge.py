"""What happens to a batch before a judge sees it: hardly anything, judges take pictures as they are."""

from __future__ import annotations

from typing import Any

from lerobot.processor import (
    AddBatchDimensionProcessorStep,
    DeviceProcessorStep,
    PolicyProcessorPipeline,
    RenameObservationsProcessorStep,
    policy_action_to_transition,
    transition_to_policy_action,
)
from lerobot.utils.constants import POLICY_POSTPROCESSOR_DEFAULT_NAME, POLICY_PREPROCESSOR_DEFAULT_NAME

from reward_models.lerobot_plugin.configuration_robo_judge import RoboJudgeConfig


def make_robo_judge_pre_post_processors(
    config: RoboJudgeConfig, dataset_stats: Any = None
) -> tuple[PolicyProcessorPipeline, PolicyProcessorPipeline]:
    """Pipelines of the form that lerobot wants. `dataset_stats` are not used: nothing is normalised."""
    return (
        PolicyProcessorPipeline(
            steps=[
                RenameObservationsProcessorStep(rename_map={}),
                AddBatchDimensionProcessorStep(),
                DeviceProcessorStep(device=config.device or "cpu"),
            ],
            name=POLICY_PREPROCESSOR_DEFAULT_NAME,
        ),
        PolicyProcessorPipeline(
            steps=[DeviceProcessorStep(device="cpu")],
            name=POLICY_POSTPROCESSOR_DEFAULT_NAME,
            to_transition=policy_action_to_transition,
            to_output=transition_to_policy_action,
        ),
    )
