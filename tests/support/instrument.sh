# Sourced by scripts that compile part of the library, and tests, in another way: with sanitizers or for coverage.
# What is not named comes from a finished build, whose archives come last.
#
#   instrument BUILD OUT "FLAGS" "SOURCE..." PROGRAM...
#
# A PROGRAM is the name of a test (as in tests/*/meson.build), damage_inputs or fuzz_TARGET; it is linked as
# OUT/PROGRAM. A SOURCE under src/arch is compiled for the tier baseline. test_flags, where set, come after FLAGS
# for whatever is under tests/, which finds tests/support/precompiled.hpp precompiled. The seconds that each file took go
# to OUT/seconds.tsv. Objects newer than their source and every header are kept. Fails at the first file that does
# not compile or link.

instrument() {
  local build=$1 out=$2 flags=$3 sources=$4
  shift 4
  local common libs program
  common="-std=c++20 -ffp-contract=off -Iinclude -Itests -Isrc $(pkg-config --cflags eigen3) $flags"
  libs="$build/tests/libwaste_test_support.a $build/src/libwaste.a $(pkg-config --libs libpcre2-8 zlib) -fopenmp -pthread"
  libs="$libs $(pkg-config --libs catch2-with-main 2>/dev/null || true)"
  if pkg-config --exists liburing; then
    common="$common -DWASTE_LIBURING" libs="$libs $(pkg-config --libs liburing)"
  fi
  mkdir -p "$out/o"
  declare -A of=()
  for program in "$@"; do
    if [[ $program == fuzz_* ]]; then
      of[$program]="tests/fuzz/$program.cpp tests/fuzz/replay_main.cpp"
    elif [ "$program" = damage_inputs ]; then
      of[$program]=$(echo tests/damage/*.cpp)
    else
      of[$program]=$(instrument_test_files "$program") || return 1
    fi
  done
  export -f instrument_compile instrument_link
  if [ ! -e "$out/o/tests.hpp.gch" ] ||
    [ -n "$(find include tests/support -name '*.hpp' -newer "$out/o/tests.hpp.gch" -print -quit)" ]; then
    # shellcheck disable=SC2086
    ${CXX:-g++} $common ${test_flags:-} -x c++-header tests/support/precompiled.hpp -o "$out/o/tests.hpp.gch" || return 1
  fi
  # The largest first, so that no long one is left for the end.
  # shellcheck disable=SC2086
  printf '%s\n' $sources ${of[*]} | sort -u | xargs ls -S | xargs -P "${WASTE_JOBS:-2}" -I{} \
    bash -c 'instrument_compile "$@" || exit 255' _ "$out" "$common" "${test_flags:-}" {} || return 1
  local objects=()
  for source in $sources; do objects+=("$out/o/${source//\//_}.o"); done
  for program in "$@"; do echo "$program ${of[$program]}"; done | xargs -P "${WASTE_JOBS:-2}" -I{} \
    bash -c 'instrument_link "$@" || exit 255' _ "$out" "$common" "${objects[*]} -- $libs" {} || return 1
}

instrument_compile() {  # OUT FLAGS TEST_FLAGS SOURCE
  local out=$1 flags=$2 source=$4 start=$SECONDS
  local object=$out/o/${source//\//_}.o
  case $source in
    src/arch/*) flags="$flags -DWASTE_TIER=baseline" ;;
    tests/*) flags="$flags $3 -include $out/o/tests.hpp" ;;
  esac
  if [ ! -e "$object" ] || [ "$source" -nt "$object" ] ||
    [ -n "$(find include src tests -name '*.hpp' -newer "$object" -print -quit)" ]; then
    # shellcheck disable=SC2086
    ${CXX:-g++} $flags -c "$source" -o "$object" || { rm -f "$object"; return 1; }
    printf '%s\t%s\n' "$((SECONDS - start))" "$source" >>"$out/seconds.tsv"
  fi
}

# The library's objects come first: of an inline function that several define, the linker takes the first.
instrument_link() {  # OUT FLAGS "OBJECT... -- LIBRARY..." "PROGRAM SOURCE..."
  local out=$1 program=${4%% *} files="" source
  for source in ${4#* }; do files="$files $out/o/${source//\//_}.o"; done
  local linker=""
  if command -v ld.gold >/dev/null 2>&1; then linker="-fuse-ld=gold"; fi
  # shellcheck disable=SC2086
  ${CXX:-g++} $linker $2 ${3%% -- *} $files ${3##* -- } -o "$out/$program"
}

# The sources of a test program, from the line that names it.
instrument_test_files() {
  local found
  found=$(grep -n "[{ ]'$1' : files(" tests/*/meson.build | grep -v '# test_programs' | head -1)
  [ -n "$found" ] || { echo "no test is named $1" >&2; return 1; }
  local folder
  folder=$(dirname "${found%%:*}")
  grep -o "'$1' : files([^)]*)" <<<"$found" | grep -o "'[a-z_0-9]*\.cpp'" | tr -d "'" | sed "s#^#$folder/#" | tr '\n' ' '
}
