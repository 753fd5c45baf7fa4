#!/usr/bin/env bash
# Installs the system packages that building and testing need and that are missing (Debian, Ubuntu).
# Usage: tests/install_dependencies.sh [build|test|sanitize|cross|combinations|ci]
# Each includes build, all but that test, and ci everything, the Python module, CMake and a browser besides.
set -eu
what=${1:-build}
for_step() { [ "$what" = "$1" ] || [ "$what" = ci ]; }
packages="g++ meson ninja-build pkg-config libxsimd-dev libeigen3-dev nlohmann-json3-dev zlib1g-dev libcli11-dev libpcre2-dev liburing-dev"
if [ "$what" != build ]; then packages="$packages catch2 libbenchmark-dev python3-numpy binutils"; fi
if for_step sanitize; then packages="$packages valgrind"; fi
if for_step cross; then packages="$packages g++-aarch64-linux-gnu qemu-user zlib1g-dev:arm64 libpcre2-dev:arm64"; fi
if for_step combinations; then packages="$packages clang libomp-dev"; fi
if for_step ci; then packages="$packages pybind11-dev python3-dev cmake chromium-headless-shell"; fi
command -v dpkg-query >/dev/null 2>&1 || {
  echo "Not a Debian system: please install the equivalents of: $packages" >&2
  exit 0
}
missing=""
for p in $packages; do
  state=$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null || true)
  case $state in
    installed*) ;;  # once for each architecture
    *) missing="$missing $p" ;;
  esac
done
[ -n "$missing" ] || { echo "All needed system packages are there."; exit 0; }
sudo=""
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null 2>&1 || { echo "Please install as root:$missing" >&2; exit 1; }
  sudo=sudo
fi
echo "Installing system packages:$missing"
log=$(mktemp)
case $missing in *:arm64*) $sudo dpkg --add-architecture arm64 ;; esac
if ! { $sudo apt-get update -q && $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing; } >"$log" 2>&1; then
  cat "$log" >&2
  rm -f "$log"
  exit 1
fi
rm -f "$log"
