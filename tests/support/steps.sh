# Sourced by scripts of several steps:
#
#   steps=FOLDER                what each step says and its exit code lie here; emptied when this is sourced
#   step NAME COMMAND...        runs one; a failure stops nothing
#   sum_steps                   prints "N passed, N failed[, N skipped]" over all steps and fails if one did
mkdir -p "$steps"
rm -f "$steps"/*.log "$steps"/*.rc

step() {
  local name=$1 begin=$SECONDS
  shift
  echo "== $name"
  "$@" 2>&1 | tee "$steps/$name.log"
  echo "${PIPESTATUS[0]}" >"$steps/$name.rc"
  echo "== $name took $((SECONDS - begin)) s"
}

sum_steps() { python3 tests/support/total.py "$steps"; }
