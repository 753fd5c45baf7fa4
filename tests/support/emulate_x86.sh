#!/usr/bin/env bash
# Runs a static x86-64 Linux program on an emulated CPU: how the tiers avx512bw and icelake are
# tested where the machine at hand has no AVX-512.
#
#   emulate_x86.sh CPU SECONDS PROGRAM [FILE...] -- [NAME=VALUE...] [ARGUMENT...]
#
# CPU      a Bochs CPU model: corei7_icelake_u (AVX-512 with VBMI, VNNI, VPCLMULQDQ, GFNI),
#          corei7_skylake_x (AVX-512 F, CD, DQ, BW, VL), corei7_haswell_4770 (AVX2), ...
# SECONDS  the run is ended after this time: exit code 124.
# PROGRAM  linked with -static. It runs alone and single-threaded under emulate_x86_boot.cpp, which
#          knows the system calls of a program that computes, reads files and prints; no threads,
#          no signals, no writing of files.
# FILE     files or folders that the program reads, under the same path as named here.
#
# Prints the program's output and exits with its exit code: 200 + n after CPU exception n (206: an
# instruction that the CPU lacks), 125 when the machine itself failed, 77 when a tool is missing.
#
# Needs the Debian packages bochs, bochsbios, bochs-term, vgabios, grub-pc-bin, grub-common,
# xorriso, mtools, cpio, bsdutils and a C++ compiler (CXX, default g++).
set -euo pipefail

usage() { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2; }
[ $# -ge 4 ] || usage
cpu=$1 limit=$2 program=$3
shift 3
files=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do files+=("$1"); shift; done
[ $# -gt 0 ] || usage
shift
variables=(OMP_NUM_THREADS=1)
while [ $# -gt 0 ] && [[ $1 =~ ^[A-Z_]+= ]]; do variables+=("$1"); shift; done

for tool in bochs grub-mkrescue xorriso mformat cpio script timeout "${CXX:-g++}"; do
  command -v "$tool" >/dev/null || { echo "emulate_x86: skipped: no $tool" >&2; exit 77; }
done
share=/usr/share/bochs
for file in "$share/BIOS-bochs-latest" "$share/VGABIOS-lgpl-latest" /usr/lib/grub/i386-pc/multiboot.mod; do
  [ -e "$file" ] || { echo "emulate_x86: skipped: no $file" >&2; exit 77; }
done

support=$(cd "$(dirname "$0")" && pwd)
dir=$(mktemp -d "${TMPDIR:-/tmp}/emulate_x86.XXXXXX")
emulator=
trap '[ -z "$emulator" ] || kill "$emulator" 2>/dev/null || true; rm -rf "$dir"' EXIT

mkdir -p "$dir/root" "$dir/iso/boot"
# No optimisation may turn the loops of memcpy and memset into calls of themselves, and no vector
# register may be used before the CPU's vector state is on.
"${CXX:-g++}" -std=c++20 -O1 -ffreestanding -fno-builtin -fno-exceptions -fno-rtti -fno-pic -no-pie \
  -fno-stack-protector -fno-toplevel-reorder -fno-asynchronous-unwind-tables -mno-red-zone \
  -mgeneral-regs-only -nostdlib -static \
  -Wl,-n,-z,noseparate-code,--build-id=none,-Ttext-segment=0x10000000 \
  -o "$dir/iso/boot/kernel" "$support/emulate_x86_boot.cpp"
cp -L "$program" "$dir/root/program"
strip "$dir/root/program" 2>/dev/null || true
printf '%s\0' "$program" "$@" >"$dir/root/argv"
printf '%s\0' "${variables[@]}" >"$dir/root/env"
for file in "${files[@]}"; do
  mkdir -p "$dir/root/$(dirname "$file")"
  cp -rL "$file" "$dir/root/$(dirname "$file")/"
done
(cd "$dir/root" && find . -type f | cpio -o -H newc --quiet >"$dir/iso/boot/archive")
mkdir -p "$dir/iso/boot/grub"
printf 'multiboot /boot/kernel\nmodule /boot/archive\nboot\n' >"$dir/iso/boot/grub/grub.cfg"
grub-mkrescue -o "$dir/cd.iso" "$dir/iso" >/dev/null 2>&1

# A slow device clock (ips) makes waits for devices short; the program's speed does not depend on it.
cat >"$dir/bochsrc" <<RC
cpu: model=$cpu, count=1, ips=4000000, reset_on_triple_fault=0
megs: 1024
romimage: file=$share/BIOS-bochs-latest
vgaromimage: file=$share/VGABIOS-lgpl-latest
ata0-master: type=cdrom, path=$dir/cd.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=$dir/serial
log: $dir/log
display_library: term
clock: sync=none
error: action=report
panic: action=fatal
RC
echo c >"$dir/debugger"  # Debian's Bochs has a debugger, which waits for "continue"
touch "$dir/serial"
# The terminal display needs a terminal, which `script` lends.
TERM=xterm timeout -k 5 "$limit" script -qec \
  "bochs -q -f '$dir/bochsrc' -rc '$dir/debugger'" /dev/null </dev/null >"$dir/screen" 2>&1 &
emulator=$!
while kill -0 "$emulator" 2>/dev/null && ! grep -aq '^=== exit [0-9]' "$dir/serial"; do sleep 0.5; done
timed_out=0
kill -0 "$emulator" 2>/dev/null || { wait "$emulator" || [ $? -ne 124 ] || timed_out=1; }
kill "$emulator" 2>/dev/null || true
wait "$emulator" 2>/dev/null || true
emulator=

tr -d '\r' <"$dir/serial" | sed -n '/^=== begin$/,${/^=== begin$/d;/^=== exit [0-9]*$/!p}'
code=$(tr -d '\r' <"$dir/serial" | sed -n 's/^=== exit \([0-9]*\)$/\1/p' | tail -1)
if [ -n "$code" ]; then exit "$code"; fi
[ -z "${EMULATE_X86_KEEP:-}" ] || cp -r "$dir" "$EMULATE_X86_KEEP"
if [ "$timed_out" = 1 ]; then
  echo "emulate_x86: over $limit seconds" >&2
  exit 124
fi
echo "emulate_x86: the emulator ended by itself:" >&2
grep -a 'PANIC' "$dir/log" >&2 || tail -n 3 "$dir/log" >&2
exit 125
