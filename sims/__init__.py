"""Simulated worlds. Importing this package registers its gymnasium environments by name; no simulator is imported."""

from __future__ import annotations

TABLETOP_IDS: dict[str, dict[str, object]] = {
    "robo_rl/Tabletop-v0": {},
    "robo_rl/TabletopBowl-v0": {"tasks": ("bowl",)},
    "robo_rl/TabletopPad-v0": {"tasks": ("pad",)},
    "robo_rl/TabletopPush-v0": {"tasks": ("push",)},
    "robo_rl/TabletopStack-v0": {"tasks": ("stack",)},
}


def register() -> None:
    """Make `gymnasium.make("robo_rl/Tabletop-v0")` and its kin known; a second call changes nothing.

    Keyword arguments of `gymnasium.make` are the fields of `sims.tabletop.TabletopConfig`. Without importing this
    package first: `gymnasium.make("sims:robo_rl/Tabletop-v0")`.
    """
    import gymnasium

    for name, options in TABLETOP_IDS.items():
        if name not in gymnasium.registry:
            gymnasium.register(name, entry_point="sims.tabletop.env:TabletopEnv", kwargs=dict(options))


register()
