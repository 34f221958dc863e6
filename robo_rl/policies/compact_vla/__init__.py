"""CompactVLA: a small language-conditioned flow-matching policy that trains on a CPU in minutes.

Importing this package registers it with lerobot (`--policy.discover_packages_path=robo_rl.policies.compact_vla`).
"""

from robo_rl.policies.compact_vla.configuration_compact_vla import CompactVLAConfig
from robo_rl.policies.compact_vla.modeling_compact_vla import CompactVLAPolicy
from robo_rl.policies.compact_vla.processor_compact_vla import make_compact_vla_pre_post_processors

__all__ = ["CompactVLAConfig", "CompactVLAPolicy", "make_compact_vla_pre_post_processors"]
