#!/usr/bin/env bash
# Tries thousands of damaged containers, side files and checkpoints; prints a line for each kind of damage.
# Usage: tests/damage/run.sh [BUILD_DIR [INPUTS [SEED]]]     default: build, 2400, 1
set -eu
cd "$(dirname "$0")/../.."
build=${1:-build}
ninja -C "$build" tests/damage_inputs
exec "$build/tests/damage_inputs" --inputs "${2:-2400}" --seed "${3:-1}"
