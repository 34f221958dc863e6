"""Errors a user can cause and mend. Each prints as one line and exits with code 2.

Say what is wrong, where (file, episode, frame, key), and what would be right.
"""


class RoboRLError(Exception):
    """A user's mistake, or data that cannot be used: one line, no traceback, exit code 2."""


class ConfigError(RoboRLError):
    """A configuration or command line that cannot be run."""


class DataError(RoboRLError):
    """A trajectory, dataset, reward table or checkpoint that cannot be used."""


class RewardError(RoboRLError):
    """A reward model that cannot score what it was given, or failed its audit."""


class SafetyError(RoboRLError):
    """A command a robot or simulator must not execute."""
