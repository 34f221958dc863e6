#!/usr/bin/env bash
# Makes .venv hold the project and the extras it is asked for: scripts/setup.sh metaworld dev
# A stamp in .venv says what was installed, so a second call returns at once. An interrupted set-up starts afresh.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv
stamp=$venv/robo-rl-setup          # written last; its lines: the folder, `wanted`, the extras
marker=$venv/robo-rl-setup-running # there while an installation is going on: the process id

fail() {
  echo "set-up: $*" >&2
  exit 1
}

wanted="$(cat pyproject.toml constraints.txt | cksum)"

installed_extras() { # the extras of a complete, current environment; nothing otherwise
  [ -f "$stamp" ] && [ ! -e "$marker" ] && [ "$(head -n 2 "$stamp")" = "$PWD
$wanted" ] || return 0
  "$venv/bin/python" -c '' 2>/dev/null || return 0
  tail -n +3 "$stamp"
}

missing_extras() { # of those asked for, the ones that are not installed
  local have extra
  have=" $(installed_extras) "
  case "$have" in *" base "*) ;; *) echo base ;; esac
  for extra in "$@"; do
    case "$have" in *" $extra "*) ;; *) echo "$extra" ;; esac
  done
}

[ -n "$(missing_extras "$@")" ] || exit 0

# Another set-up of this folder may be running, or may have been killed half-way.
if [ -f "$marker" ]; then
  other="$(cat "$marker")"
  if [ -n "$other" ] && kill -0 "$other" 2>/dev/null; then
    echo "set-up: waiting for another set-up (process $other); if there is none, remove $marker" >&2
    while [ -f "$marker" ] && kill -0 "$other" 2>/dev/null; do sleep 1; done
    exec "$0" "$@"
  fi
  echo "set-up: the last one did not finish; starting afresh" >&2
  rm -rf "$venv"
fi

if [ -f "$stamp" ] && [ "$(head -n 1 "$stamp")" != "$PWD" ]; then
  echo "set-up: this folder was moved, and an environment holds its own path; starting afresh" >&2
  rm -rf "$venv"
fi

python="$(bash scripts/find_python.sh)" || exit 1
if ! "$venv/bin/python" -c 'import sys; sys.exit(not (3, 12) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
  rm -rf "$venv"
fi

extras="$(printf '%s\n' $(installed_extras) "$@" | grep -v '^base$' | sort -u | paste -s -d , -)"
mkdir -p "$venv"
echo $$ >"$marker"
rm -f "$stamp"
started=$(date +%s)
echo "set-up: installing robo_rl with extras $extras into $venv (several GB; minutes on the first time)" >&2

if command -v uv >/dev/null 2>&1; then
  export UV_PYTHON_DOWNLOADS=never
  [ -x "$venv/bin/python" ] || uv venv --quiet --allow-existing --python "$python" "$venv"
  uv pip install --quiet --python "$venv/bin/python" --constraint constraints.txt --editable ".[$extras]" ||
    fail "the installation failed; run the same command again to start afresh"
else
  if [ ! -x "$venv/bin/python" ]; then
    "$python" -m venv "$venv" ||
      fail "$python cannot make a virtual environment; on Debian and Ubuntu: apt-get install python3-venv"
  fi
  "$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$venv/bin/python" -m ensurepip >/dev/null
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    --constraint constraints.txt --editable ".[$extras]" ||
    fail "the installation failed; run the same command again to start afresh"
fi

printf '%s\n%s\nbase %s\n' "$PWD" "$wanted" "${extras//,/ }" >"$stamp.partial"
mv "$stamp.partial" "$stamp"
rm -f "$marker"
echo "set-up: done in $(($(date +%s) - started)) s" >&2
