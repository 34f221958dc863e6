"""Our judges as a reward model of lerobot, registered as `robo_judge`.

lerobot finds reward models of other packages only when it is told where to look:

    lerobot-train --reward_model.discover_packages_path=reward_models.lerobot_plugin --reward_model.type=robo_judge \\
        --dataset.repo_id=local/mine --dataset.root=data/mine --steps=3000 --output_dir=outputs/judge

(It imports installed distributions by themselves only for robots, cameras, teleoperators, policies and simulators.)
The judge of a checkpoint lies in `pretrained_model/judge`, where `load_judge` opens it.
"""

from reward_models.lerobot_plugin.configuration_robo_judge import RoboJudgeConfig

__all__ = ["RoboJudgeConfig"]
