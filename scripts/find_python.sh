#!/usr/bin/env bash
# Prints the path of a Python 3.12 or 3.13 that really runs; explains what is missing otherwise.
# PYTHON=/path/to/python chooses one. Nothing is downloaded.
set -u

check='
import sys
if not (3, 12) <= sys.version_info[:2] <= (3, 13):
    sys.exit(1)
print(sys.executable)
'

works() { # a file on PATH is not enough: a version manager may leave a shim there that refuses to run
  [ -n "$1" ] && "$1" -c "$check" 2>/dev/null
}

if [ -n "${PYTHON:-}" ]; then
  works "$PYTHON" && exit 0
  echo "PYTHON=$PYTHON is not a working Python 3.12 or 3.13" >&2
  exit 1
fi

for name in python3.12 python3.13 python3 python; do
  command -v "$name" >/dev/null 2>&1 && works "$name" && exit 0
done
for path in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12*/bin/python "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.13*/bin/python; do
  [ -x "$path" ] && works "$path" && exit 0
done
if command -v uv >/dev/null 2>&1; then
  works "$(UV_PYTHON_DOWNLOADS=never uv python find '>=3.12,<3.14' 2>/dev/null)" && exit 0
fi

cat >&2 <<'MESSAGE'
robo_rl needs Python 3.12 or 3.13, and none was found on this machine.
  Debian 13 / Ubuntu 24.04:  apt-get install python3 python3-venv
  macOS with Homebrew:       brew install python@3.12
  pyenv:                     pyenv install 3.12
  uv:                        uv python install 3.12
A Python in another place can be named:  make demo PYTHON=/path/to/python3.12
MESSAGE
exit 1
