// Inlining that per-tier code depends on.
#pragma once

// A helper that is not inlined becomes a weak symbol, and the linker may then give one tier's copy
// to all of them. Helpers of kernels are WASTE_INLINE; entry points are WASTE_FLATTEN, which
// inlines what they call from elsewhere (xsimd, core). WASTE_KERNEL is for one instantiation of a
// kernel among many: templates on the tier that stay functions of their own, because one function
// that holds all of them takes minutes to compile.
#define WASTE_INLINE __attribute__((always_inline)) inline
#define WASTE_FLATTEN __attribute__((flatten))
#define WASTE_KERNEL __attribute__((flatten, noinline))

// On a loop of constant length whose array must stay in registers: GCC leaves some of these rolled,
// and the array in memory, at a third of the speed.
#if defined(__clang__)
#define WASTE_UNROLL _Pragma("unroll")
#else
#define WASTE_UNROLL _Pragma("GCC unroll 16")
#endif
