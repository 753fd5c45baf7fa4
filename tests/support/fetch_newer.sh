#!/usr/bin/env bash
# Unpacks newer versions of the header packages than this Debian has into a folder, for tests/combinations.sh: xsimd 14
# to FOLDER/xsimd14, Catch2 3 to FOLDER/catch3, each with pkg-config files that name that place. Nothing is installed;
# what the mirror lacks is left out and named. Usage: fetch_newer.sh FOLDER
set -u
mkdir -p "$1"
folder=$(cd "$1" && pwd)
apt="$folder/apt"
mirror=$(apt-get indextargets --format '$(REPO_URI)' "Codename: $(. /etc/os-release && echo "${VERSION_CODENAME:-}")" 2>/dev/null | head -1)
keys=/usr/share/keyrings/debian-archive-keyring.gpg

private() {  # apt with lists and a cache of its own; a mirror may be a snapshot of some age
  "$1" -qq -o Dir::State="$apt" -o Dir::State::status=/dev/null -o Dir::Cache="$apt" -o Dir::Etc::sourcelist="$apt/list" \
    -o Dir::Etc::sourceparts=/dev/null -o Dir::Etc::preferencesparts=/dev/null -o APT::Architectures="$(dpkg --print-architecture)" \
    -o Acquire::Languages=none -o Acquire::Check-Valid-Until=false -o APT::Sandbox::User=root "${@:2}"
}

fetch() {  # NAME PACKAGE MAJOR
  local prefix="$folder/$1" version
  [ ! -e "$prefix/version" ] || return 0
  version=$(private apt-cache madison "$2" 2>/dev/null | awk -v major="$3." '{ v = $3 } !found && index(v, major) == 1 { print v; found = 1 }')
  [ -n "$version" ] || { echo "missing: no $2 $3 on the mirror"; return; }
  rm -rf "$prefix" && mkdir -p "$prefix" || return
  (cd "$apt" && private apt-get download "$2=$version") && dpkg -x "$apt/$2"_*.deb "$prefix" || { echo "missing: $2 $version"; return; }
  find "$prefix" -name '*.pc' -exec sed -i "s#=/usr#=$prefix/usr#" {} +
  echo "$version" >"$prefix/version"
}

links() { echo 'int main() {}' | g++ -x c++ - -x none -Wl,--whole-archive "$1" -Wl,--no-whole-archive -o "$apt/tried" 2>/dev/null; }

# A library built with a newer compiler asks for names that this one's runtime may lack.
complete() {
  local library="$folder/catch3/usr/lib/libCatch2.a"
  if [ ! -e "$library" ] || links "$library"; then return; fi
  # <iostream> is for its initializer, which newer compilers leave to the runtime.
  g++ -x c++ -O1 -c - -o "$apt/newer_names.o" <<'CPP' && ar r "$library" "$apt/newer_names.o" 2>/dev/null
#include <cstdlib>
#include <exception>
#include <iostream>
extern "C" unsigned long long __isoc23_strtoull(const char* text, char** end, int base) { return std::strtoull(text, end, base); }
extern "C" void _ZSt21ios_base_library_initv() {}
extern "C" void __cxa_call_terminate(void*) { std::terminate(); }
CPP
  links "$library" || { echo "missing: a Catch2 3 that links with this g++"; rm -rf "$folder/catch3"; }
}

if ! { [ -e "$folder/xsimd14/version" ] && [ -e "$folder/catch3/version" ]; }; then
  mkdir -p "$apt/lists/partial" "$apt/archives/partial"
  for suite in testing unstable; do echo "deb [signed-by=$keys] $mirror $suite main"; done >"$apt/list"
  private apt-get update || echo "missing: newer suites of the mirror"
  fetch xsimd14 libxsimd-dev 14
  fetch catch3 libcatch2-dev 3
  complete
fi
