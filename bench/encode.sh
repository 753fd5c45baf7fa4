#!/usr/bin/env bash
# Error and speed of the expert encoder for every law, format and effort; the arguments are those of
# bench/encode.cpp (--json: one object a line). Builds what it needs.
# Usage: bench/encode.sh [--build DIR] [ARGUMENTS]
set -eu
cd "$(dirname "$0")/.."
build=build
if [ "${1:-}" = --build ]; then
  build=$2
  shift 2
fi
if [ ! -d "$build/meson-private" ]; then
  meson setup --wrap-mode=nodownload "$build" . >&2
fi
ninja -C "$build" bench/encode >&2
exec "$build/bench/encode" "$@"
