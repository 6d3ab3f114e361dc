# Sourced by the scripts beside it: where the tree is, and how they speak.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV="$ROOT/build/venv"
JOBS=${JOBS:-$(nproc)}
cd "$ROOT"

say() { printf '== %s\n' "$*"; }
die() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }

# The comment at the head of the script is its help.
help_if_asked() {
  case "${1:-}" in
    -h | --help) sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0"; exit 0 ;;
  esac
}

# Debian packages out of "$@" that are not installed.
missing_packages() {
  local package
  for package in "$@"; do
    [[ " $INSTALLED " == *" $package "* ]] || printf '%s ' "$package"
  done
}

# install_packages NAME ...: those that are missing, with apt; one call of dpkg-query when none is.
install_packages() {
  command -v dpkg-query >/dev/null || die "this is no Debian system: install by hand $*"
  local INSTALLED missing sudo=()
  INSTALLED=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "$@" 2>/dev/null |
    sed -n 's/ installed$//p' | tr '\n' ' ' || true)
  missing=$(missing_packages "$@")
  [[ -n "$missing" ]] || return 0
  if [[ $(id -u) != 0 ]]; then
    command -v sudo >/dev/null || die "not root and no sudo: have somebody run apt-get install $missing"
    sudo=(sudo)
  fi
  say "installing: $missing"
  # shellcheck disable=SC2086  # a list of words
  local install=("${sudo[@]}" env DEBIAN_FRONTEND=noninteractive DEBCONF_NOWARNINGS=yes
    apt-get install -y -q --no-install-recommends $missing)
  { "${sudo[@]}" apt-get update -q && "${install[@]}"; } </dev/null ||
    die "apt could not install: $missing(its message is above; the package lists need a network)"
}

# build_preset NAME [TARGET ...]; CMAKE_FLAGS has more flags for cmake.
build_preset() {
  local preset=$1
  shift
  local log="build/$preset-configure.log"
  mkdir -p build
  say "building preset $preset in build/$preset"
  # Each time, as it is quick: what an earlier configuration cached must not decide what is built.
  # shellcheck disable=SC2086  # a list of words
  cmake --preset "$preset" ${CMAKE_FLAGS:-} >"$log" 2>&1 || { cat "$log"; die "cmake --preset $preset failed"; }
  ninja -C "build/$preset" -j "$JOBS" "$@" || die "the build of preset $preset failed"
}
