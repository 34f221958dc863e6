"""robo_rl: improve vision-language-action policies with learned, audited progress rewards."""

__version__ = "0.1.0"
