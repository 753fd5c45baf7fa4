// The least machine layer under which one static Linux x86-64 program runs in an emulator.
//
// emulate_x86.sh compiles this file as a Multiboot kernel. It switches to 64-bit mode, turns on every
// vector state that the CPU has, loads the ELF file `program` of the cpio archive that is its only
// module and answers the few system calls of a single-threaded program that computes, reads the
// archive's files and prints. The program runs in ring 0 on an identity map, without interrupts. Its
// output and a last line "=== exit N" go to the first serial port. A CPU exception ends the run with
// its vector, address and instruction bytes, so an instruction that the emulated CPU lacks is named.

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long;
using i64 = long;

asm(R"(
    .code32
    .balign 4
    .long 0x1BADB002, 0x00000002, -(0x1BADB002 + 0x00000002)
    .globl _start
_start:
    cli
    movl %ebx, %edi
    movl $boot_pml4, %eax
    movl $boot_pdpt + 3, (%eax)
    movl $boot_pdpt, %eax
    movl $boot_pd + 3, (%eax)
    movl $boot_pd + 0x1003, 8(%eax)
    movl $boot_pd + 0x2003, 16(%eax)
    movl $boot_pd + 0x3003, 24(%eax)
    movl $boot_pd, %eax
    movl $0x83, %ecx
1:  movl %ecx, (%eax)
    addl $8, %eax
    addl $0x200000, %ecx
    cmpl $0x83, %ecx
    jne 1b
    movl $boot_pml4, %eax
    movl %eax, %cr3
    movl $0x40620, %eax         # OSXSAVE, OSXMMEXCPT, OSFXSR, PAE
    movl %eax, %cr4
    movl $0xC0000080, %ecx
    movl $0x101, %eax           # LME, SCE
    xorl %edx, %edx
    wrmsr
    movl $0x80010033, %eax
    movl %eax, %cr0
    lgdt boot_gdtr
    ljmp $8, $2f
    .code64
2:  movl %edi, %edi
    movl $16, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    xorl %eax, %eax
    movl %eax, %fs
    movl %eax, %gs
    movl $kernel_stack + 65536, %esp
    movl $0xD, %eax
    xorl %ecx, %ecx
    cpuid
    andl $0xE7, %eax            # x87, SSE, AVX, opmask, both ZMM halves
    xorl %edx, %edx
    xorl %ecx, %ecx
    xsetbv
    call kernel_main
3:  hlt
    jmp 3b

    .balign 8
boot_gdt:
    .quad 0, 0x00AF9B000000FFFF, 0x00CF93000000FFFF
boot_gdtr:
    .word 23
    .long boot_gdt, 0

    .globl syscall_entry        # system calls are made from ring 0: back by jump, not sysret
syscall_entry:
    movq %rsp, user_rsp
    movl $kernel_stack + 65536, %esp
    pushq %rcx
    pushq %r11
    pushq %rdi
    pushq %rsi
    pushq %rdx
    pushq %r10
    pushq %r8
    pushq %r9
    movq %r10, %rcx
    pushq %rax
    pushq %rax
    call system_call
    popq %rcx
    popq %rcx
    popq %r9
    popq %r8
    popq %r10
    popq %rdx
    popq %rsi
    popq %rdi
    popq %r11
    popq %rcx
    movq user_rsp, %rsp
    jmp *%rcx

    .globl enter_program
enter_program:
    movq %rsi, %rsp
    movq %rdi, %rcx
    xorl %edx, %edx
    xorl %ebp, %ebp
    jmp *%rcx

    .altmacro
    .macro trap n
    .balign 16
    .if !((\n >= 10 && \n <= 14) || \n == 8 || \n == 17 || \n == 21)
    pushq $0
    .endif
    pushq $\n
    jmp trap_common
    .endm
    .balign 16
    .globl trap_table
trap_table:
    .set n, 0
    .rept 32
    trap %n
    .set n, n + 1
    .endr
trap_common:
    popq %rdi
    popq %rsi
    popq %rdx
    movl $kernel_stack + 65536, %esp
    call trapped

    .bss
    .balign 4096
boot_pml4: .skip 4096
boot_pdpt: .skip 4096
    .globl boot_pd
boot_pd: .skip 16384
kernel_stack: .skip 65536
user_rsp: .skip 8
    .text
)");

extern "C" {
extern u8 trap_table[];
extern u64 boot_pd[];
void syscall_entry();
[[noreturn]] void enter_program(u64 entry, u64 stack);

void* memcpy(void* to, const void* from, u64 bytes) {
  void* start = to;
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
  return start;
}

void* memset(void* to, int value, u64 bytes) {
  void* start = to;
  asm volatile("rep stosb" : "+D"(to), "+c"(bytes) : "a"(value) : "memory");
  return start;
}
}

namespace {

constexpr u64 archive_at = 0x20000000;  // where the module is moved; grows up
constexpr u64 heap_end = 0x0FE00000;    // the program's break ends below this kernel
constexpr u64 memory_end = 0x3F000000;
constexpr u64 stack_bytes = 0x800000;

void out8(u16 port, u8 value) { asm volatile("outb %0, %1" : : "a"(value), "Nd"(port)); }
u8 in8(u16 port) {
  u8 value;
  asm volatile("inb %1, %0" : "=a"(value) : "Nd"(port));
  return value;
}
void write_msr(u32 msr, u64 value) {
  asm volatile("wrmsr" : : "c"(msr), "a"(static_cast<u32>(value)), "d"(value >> 32));
}

void put(const char* text, u64 bytes) {
  for (u64 i = 0; i < bytes; ++i) {
    while ((in8(0x3FD) & 0x20) == 0) {
    }
    out8(0x3F8, static_cast<u8>(text[i]));
  }
}
void put(const char* text) {
  u64 bytes = 0;
  while (text[bytes] != 0) ++bytes;
  put(text, bytes);
}
void put_number(u64 value, u64 base) {
  char digits[24];
  u64 at = 24;
  do {
    digits[--at] = "0123456789abcdef"[value % base];
    value /= base;
  } while (value != 0);
  put(digits + at, 24 - at);
}

[[noreturn]] void finish(u64 status) {
  put("\n=== exit ");
  put_number(status, 10);
  put("\n");
  while ((in8(0x3FD) & 0x40) == 0) {
  }
  for (const char* c = "Shutdown"; *c != 0; ++c) out8(0x8900, static_cast<u8>(*c));
  for (;;) asm volatile("hlt");
}

struct File {
  const char* name;
  const u8* data;
  u64 bytes;
};
constexpr u64 most_files = 256;
File files[most_files];
u64 file_count = 0;
struct Open {
  const File* file;
  u64 offset;
};
Open open_files[64];
u64 heap_start, heap_at, map_at, last_map;

u64 hex8(const u8* text) {
  u64 value = 0;
  for (int i = 0; i < 8; ++i) {
    value = value * 16 + (text[i] <= '9' ? text[i] - '0' : (text[i] | 32) - 'a' + 10);
  }
  return value;
}

bool same(const char* a, const char* b) {
  while (*a != 0 && *a == *b) ++a, ++b;
  return *a == *b;
}
const char* plain(const char* path) {
  for (;;) {
    if (path[0] == '/') {
      path += 1;
    } else if (path[0] == '.' && path[1] == '/') {
      path += 2;
    } else {
      return path;
    }
  }
}
const File* find(const char* path) {
  for (u64 i = 0; i < file_count; ++i) {
    if (same(files[i].name, plain(path))) return &files[i];
  }
  return nullptr;
}

// Format "newc": 6 bytes of magic, 13 fields of 8 hexadecimal digits, name and data padded to 4.
void read_archive(const u8* at) {
  for (;;) {
    const u64 bytes = hex8(at + 54), name_bytes = hex8(at + 94);
    const char* name = reinterpret_cast<const char*>(at + 110);
    if (same(name, "TRAILER!!!")) return;
    const u8* data = at + ((110 + name_bytes + 3) & ~3UL);
    if (file_count < most_files) files[file_count++] = {plain(name), data, bytes};
    at = data + ((bytes + 3) & ~3UL);
  }
}

u64 map_memory(u64 bytes) {
  bytes = (bytes + 4095) & ~4095UL;
  if (bytes > memory_end - map_at) return static_cast<u64>(-12);
  last_map = map_at;
  map_at += bytes;
  memset(reinterpret_cast<void*>(last_map), 0, bytes);
  return last_map;
}

u64 fill_stat(u8* to, const File* file) {
  memset(to, 0, 144);
  *reinterpret_cast<u64*>(to + 16) = 1;
  *reinterpret_cast<u32*>(to + 24) = file != nullptr ? 0100444 : 020666;
  *reinterpret_cast<u64*>(to + 48) = file != nullptr ? file->bytes : 0;
  *reinterpret_cast<u64*>(to + 56) = 4096;
  return 0;
}

Open* opened(u64 fd) {
  return fd >= 3 && fd < 64 && open_files[fd].file != nullptr ? &open_files[fd] : nullptr;
}

u64 read_at(const Open& from, u64 offset, void* to, u64 bytes) {
  if (offset >= from.file->bytes) return 0;
  if (bytes > from.file->bytes - offset) bytes = from.file->bytes - offset;
  memcpy(to, from.file->data + offset, bytes);
  return bytes;
}

u64 open_file(const char* path, u64 flags) {
  const File* file = find(path);
  if (file == nullptr) return static_cast<u64>(-2);
  if ((flags & 3) != 0) return static_cast<u64>(-30);
  for (u64 fd = 3; fd < 64; ++fd) {
    if (open_files[fd].file == nullptr) {
      open_files[fd] = {file, 0};
      return fd;
    }
  }
  return static_cast<u64>(-24);
}

u64 ticks() {
  u32 low, high;
  asm volatile("rdtsc" : "=a"(low), "=d"(high));
  return low | static_cast<u64>(high) << 32;
}

template <class T>
T* pointer(u64 address) {
  return reinterpret_cast<T*>(address);
}

}  // namespace

// Linux numbers of x86-64; errors are negated errno values. Time is the cycle counter read as ns.
extern "C" u64 system_call(u64 a, u64 b, u64 c, u64 d, u64 e, u64 f, u64 number, u64) {
  Open* file = opened(a);
  switch (number) {
    case 0:  // read
    case 17: {  // pread64
      if (file == nullptr) return a == 0 ? 0 : static_cast<u64>(-9);
      const u64 got = read_at(*file, number == 17 ? d : file->offset, pointer<void>(b), c);
      if (number == 0) file->offset += got;
      return got;
    }
    case 1:  // write
      if (a != 1 && a != 2) return static_cast<u64>(-9);
      put(pointer<char>(b), c);
      return c;
    case 19:    // readv
    case 20: {  // writev
      u64 total = 0;
      for (u64 i = 0; i < c; ++i) {
        const u64* part = pointer<u64>(b) + 2 * i;
        const u64 got = system_call(a, part[0], part[1], 0, 0, 0, number - 19, 0);
        if (static_cast<i64>(got) < 0) return got;
        total += got;
      }
      return total;
    }
    case 257:  // openat
      return open_file(pointer<char>(b), c);
    case 2:  // open
      return open_file(pointer<char>(a), b);
    case 3:  // close
      if (file != nullptr) file->file = nullptr;
      return 0;
    case 5:  // fstat
      if (file == nullptr && a > 2) return static_cast<u64>(-9);
      return fill_stat(pointer<u8>(b), file != nullptr ? file->file : nullptr);
    case 262: {  // newfstatat
      if ((d & 0x1000) != 0 && *pointer<char>(b) == 0) return system_call(a, c, 0, 0, 0, 0, 5, 0);
      const File* found = find(pointer<char>(b));
      return found != nullptr ? fill_stat(pointer<u8>(c), found) : static_cast<u64>(-2);
    }
    case 8:  // lseek
      if (file == nullptr) return static_cast<u64>(-29);
      file->offset = b + (c == 1 ? file->offset : c == 2 ? file->file->bytes : 0);
      return file->offset;
    case 9: {  // mmap: private copies only
      const u64 at = map_memory(b);
      Open* source = (d & 0x20) != 0 ? nullptr : opened(e);
      if (static_cast<i64>(at) > 0 && source != nullptr) read_at(*source, f, pointer<void>(at), b);
      return at;
    }
    case 11:  // munmap: only the newest mapping is taken back
      if (a == last_map && a + ((b + 4095) & ~4095UL) == map_at) map_at = a;
      return 0;
    case 12:  // brk
      if (a >= heap_start && a <= heap_end) {
        if (a > heap_at) memset(pointer<void>(heap_at), 0, a - heap_at);
        heap_at = a;
      }
      return heap_at;
    case 16:  // ioctl
      return static_cast<u64>(-25);
    case 158:  // arch_prctl
      if (a != 0x1002) return static_cast<u64>(-22);
      write_msr(0xC0000100, b);
      return 0;
    case 204:  // sched_getaffinity
      *pointer<u64>(c) = 1;
      return 8;
    case 228:  // clock_gettime
      pointer<u64>(b)[0] = ticks() / 1000000000;
      pointer<u64>(b)[1] = ticks() % 1000000000;
      return 0;
    case 318:  // getrandom
      for (u64 i = 0; i < b; ++i) pointer<u8>(a)[i] = static_cast<u8>(37 * i + 11);
      return b;
    case 39:   // getpid
    case 186:  // gettid
    case 218:  // set_tid_address
      return 1;
    case 10:   // mprotect
    case 13:   // rt_sigaction
    case 14:   // rt_sigprocmask
    case 24:   // sched_yield
    case 28:   // madvise
    case 131:  // sigaltstack
    case 202:  // futex
    case 273:  // set_robust_list
      return 0;
    case 234:  // tgkill: abort() of the program
      finish(128 + c);
    case 60:
    case 231:  // exit, exit_group
      finish(a & 255);
    default:
      return static_cast<u64>(-38);
  }
}

extern "C" [[noreturn]] void trapped(u64 vector, u64 error, u64 address) {
  u64 fault;
  asm volatile("movq %%cr2, %0" : "=r"(fault));
  put("\n=== exception ");
  put_number(vector, 10);
  put(" error ");
  put_number(error, 16);
  put(" at ");
  put_number(address, 16);
  put(" cr2 ");
  put_number(fault, 16);
  put(" bytes");
  for (u64 i = 0; vector != 14 && i < 12; ++i) {
    put(" ");
    put_number(pointer<u8>(address)[i], 16);
  }
  finish(200 + vector);
}

// Splits a file of 0-terminated strings into pointers; returns the next free slot.
static u64* push_strings(u64* slot, const char* name, u64* count) {
  const File* file = find(name);
  u64 at = 0;
  while (file != nullptr && at < file->bytes) {
    *slot++ = reinterpret_cast<u64>(file->data) + at;
    if (count != nullptr) ++*count;
    while (at < file->bytes && file->data[at] != 0) ++at;
    ++at;
  }
  *slot++ = 0;
  return slot;
}

extern "C" void kernel_main(u64 boot_info) {
  out8(0x3FB, 0x83);  // serial port: 115200 baud, 8 data bits
  out8(0x3F8, 1);
  out8(0x3F9, 0);
  out8(0x3FB, 3);
  const u32* module = pointer<u32>(pointer<u32>(boot_info)[6]);
  const u64 from = module[0], archive_bytes = module[1] - module[0];
  if (from + archive_bytes > archive_at) finish(125);
  memcpy(pointer<void>(archive_at), pointer<void>(from), archive_bytes);
  map_at = (archive_at + archive_bytes + 4095) & ~4095UL;
  read_archive(pointer<u8>(archive_at));

  static u64 gates[64];
  for (u64 i = 0; i < 32; ++i) {
    const u64 handler = reinterpret_cast<u64>(trap_table) + 16 * i;
    gates[2 * i] = (handler & 0xFFFF) | 8UL << 16 | 0x8EUL << 40 | (handler >> 16 & 0xFFFF) << 48;
    gates[2 * i + 1] = handler >> 32;
  }
  struct [[gnu::packed]] {
    u16 limit;
    u64 base;
  } const table = {sizeof gates - 1, reinterpret_cast<u64>(gates)};
  asm volatile("lidt %0" : : "m"(table));
  write_msr(0xC0000081, 8UL << 32);
  write_msr(0xC0000082, reinterpret_cast<u64>(&syscall_entry));
  write_msr(0xC0000084, 0x700);

  const File* program = find("program");
  if (program == nullptr) finish(127);
  const u8* elf = program->data;
  const u64 entry = *reinterpret_cast<const u64*>(elf + 24);
  const u64 headers = *reinterpret_cast<const u64*>(elf + 32);
  const u64 header_count = *reinterpret_cast<const u16*>(elf + 56);
  u64 headers_at = 0;
  for (u64 i = 0; i < header_count; ++i) {
    const u8* header = elf + headers + 56 * i;
    const u64* field = reinterpret_cast<const u64*>(header);  // offset 1, address 2, file 4, memory 5
    if (*reinterpret_cast<const u32*>(header) != 1) continue;
    if (field[2] < 0x200000 || field[2] + field[5] > heap_end) finish(126);
    memcpy(pointer<void>(field[2]), elf + field[1], field[4]);
    memset(pointer<void>(field[2] + field[4]), 0, field[5] - field[4]);
    if (field[1] <= headers && headers < field[1] + field[4]) {
      headers_at = field[2] + headers - field[1];
    }
    const u64 end = (field[2] + field[5] + 4095) & ~4095UL;
    if (end > heap_start) heap_start = end;
  }
  heap_at = heap_start;
  boot_pd[0] = 0;  // a null pointer shall fault
  asm volatile("movq %%cr3, %%rax; movq %%rax, %%cr3" : : : "rax", "memory");

  const u64 top = map_memory(stack_bytes) + stack_bytes - 0x10000;
  u64* stack = pointer<u64>(top);
  u64 count = 0;
  u64* slot = push_strings(stack + 1, "argv", &count);
  stack[0] = count;
  slot = push_strings(slot, "env", nullptr);
  const u64 vector[] = {3, headers_at, 4, 56, 5,  header_count, 6,  4096, 9,  entry,     11, 0, 12, 0,
                        13, 0,         14, 0, 17, 100,          23, 0,    25, top + 0xF000, 0, 0};
  memcpy(slot, vector, sizeof vector);
  put("=== begin\n");
  enter_program(entry, top);
}
