# Sourced by scripts that compile part of the library, and tests, in another way: with sanitizers or for coverage.
# The rest (kernels above all, which take many minutes so) comes from a finished build: objects named first win
# over the archive's.
#
#   instrument BUILD OUT "FLAGS" "SOURCE..." PROGRAM...
#
# A PROGRAM is the name of a test (as in tests/*/meson.build), damage_inputs or fuzz_TARGET; it is linked as
# OUT/PROGRAM.

instrument() {
  local build=$1 out=$2 flags=$3 sources=$4
  shift 4
  local common program files
  common="-std=c++20 -ffp-contract=off -Iinclude -Itests -Isrc $(pkg-config --cflags eigen3) $flags"
  mkdir -p "$out/o"
  declare -A of=()
  for program in "$@"; do
    if [[ $program == fuzz_* ]]; then
      of[$program]="tests/fuzz/$program.cpp tests/fuzz/replay_main.cpp"
    elif [ "$program" = damage_inputs ]; then
      of[$program]=$(echo tests/damage/*.cpp)
    else
      of[$program]=$(instrument_test_files "$program")
    fi
  done
  # shellcheck disable=SC2086
  printf '%s\n' $sources ${of[*]} | sort -u | xargs -P "${WASTE_JOBS:-2}" -I{} bash -c '
    object=$1/o/$(tr / _ <<<"$3").o
    if [ "$3" -nt "$object" ] || [ -n "$(find include src tests -name "*.hpp" -newer "$object" -print -quit 2>&1)" ]; then
      ${CXX:-g++} $2 -c "$3" -o "$object" || exit 255
    fi' _ "$out" "$common" {}
  local libs objects=()
  libs="$build/tests/libwaste_test_support.a $build/src/libwaste.a $(pkg-config --libs libpcre2-8 zlib) -fopenmp -pthread"
  libs="$libs $(pkg-config --libs catch2-with-main 2>/dev/null || true)"
  for source in $sources; do objects+=("$out/o/${source//\//_}.o"); done
  for program in "$@"; do
    files=""
    for source in ${of[$program]}; do files="$files $out/o/${source//\//_}.o"; done
    # shellcheck disable=SC2086
    ${CXX:-g++} $common $files "${objects[@]}" $libs -o "$out/$program"
  done
}

# The sources of a test program, from the line that names it.
instrument_test_files() {
  local found
  found=$(grep -n "^[^#]*'$1' : files(" tests/*/meson.build | head -1)
  [ -n "$found" ] || { echo "no test is named $1" >&2; return 1; }
  local folder
  folder=$(dirname "${found%%:*}")
  grep -o "'[a-z_0-9]*\.cpp'" <<<"$found" | tr -d "'" | sed "s#^#$folder/#" | tr '\n' ' '
}
