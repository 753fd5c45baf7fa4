// Letters, marks and digits that Unicode 15 and 16 added, for matchers that know only Unicode 14.
#pragma once

#include <cstdint>

namespace waste::text {

/// What the pre-tokenizer's pattern can tell apart among the added characters. Added symbols and
/// punctuation are left out: the pattern treats them as it treats unassigned code points.
enum class AddedClass : std::uint8_t { han, upper, lower, other_letter, mark, number };

struct AddedRange {
  std::uint32_t first;
  std::uint32_t last;
  AddedClass kind;
};

/// Ascending. Unicode 14 to 16 changed no property of a character that was already there.
inline constexpr AddedRange added_ranges[] = {
    {0x0897, 0x0897, AddedClass::mark},           {0x0cf3, 0x0cf3, AddedClass::mark},
    {0x0ece, 0x0ece, AddedClass::mark},           {0x1c89, 0x1c89, AddedClass::upper},
    {0x1c8a, 0x1c8a, AddedClass::lower},          {0xa7cb, 0xa7cc, AddedClass::upper},
    {0xa7cd, 0xa7cd, AddedClass::lower},          {0xa7da, 0xa7da, AddedClass::upper},
    {0xa7db, 0xa7db, AddedClass::lower},          {0xa7dc, 0xa7dc, AddedClass::upper},
    {0x105c0, 0x105f3, AddedClass::other_letter}, {0x10d40, 0x10d49, AddedClass::number},
    {0x10d4a, 0x10d4f, AddedClass::other_letter}, {0x10d50, 0x10d65, AddedClass::upper},
    {0x10d69, 0x10d6d, AddedClass::mark},         {0x10d6f, 0x10d6f, AddedClass::other_letter},
    {0x10d70, 0x10d85, AddedClass::lower},        {0x10ec2, 0x10ec4, AddedClass::other_letter},
    {0x10efc, 0x10eff, AddedClass::mark},         {0x1123f, 0x11240, AddedClass::other_letter},
    {0x11241, 0x11241, AddedClass::mark},         {0x11380, 0x11389, AddedClass::other_letter},
    {0x1138b, 0x1138b, AddedClass::other_letter}, {0x1138e, 0x1138e, AddedClass::other_letter},
    {0x11390, 0x113b5, AddedClass::other_letter}, {0x113b7, 0x113b7, AddedClass::other_letter},
    {0x113b8, 0x113c0, AddedClass::mark},         {0x113c2, 0x113c2, AddedClass::mark},
    {0x113c5, 0x113c5, AddedClass::mark},         {0x113c7, 0x113ca, AddedClass::mark},
    {0x113cc, 0x113d0, AddedClass::mark},         {0x113d1, 0x113d1, AddedClass::other_letter},
    {0x113d2, 0x113d2, AddedClass::mark},         {0x113d3, 0x113d3, AddedClass::other_letter},
    {0x113e1, 0x113e2, AddedClass::mark},         {0x116d0, 0x116e3, AddedClass::number},
    {0x11bc0, 0x11be0, AddedClass::other_letter}, {0x11bf0, 0x11bf9, AddedClass::number},
    {0x11f00, 0x11f01, AddedClass::mark},         {0x11f02, 0x11f02, AddedClass::other_letter},
    {0x11f03, 0x11f03, AddedClass::mark},         {0x11f04, 0x11f10, AddedClass::other_letter},
    {0x11f12, 0x11f33, AddedClass::other_letter}, {0x11f34, 0x11f3a, AddedClass::mark},
    {0x11f3e, 0x11f42, AddedClass::mark},         {0x11f50, 0x11f59, AddedClass::number},
    {0x11f5a, 0x11f5a, AddedClass::mark},         {0x1342f, 0x1342f, AddedClass::other_letter},
    {0x13440, 0x13440, AddedClass::mark},         {0x13441, 0x13446, AddedClass::other_letter},
    {0x13447, 0x13455, AddedClass::mark},         {0x13460, 0x143fa, AddedClass::other_letter},
    {0x16100, 0x1611d, AddedClass::other_letter}, {0x1611e, 0x1612f, AddedClass::mark},
    {0x16130, 0x16139, AddedClass::number},       {0x16d40, 0x16d6c, AddedClass::other_letter},
    {0x16d70, 0x16d79, AddedClass::number},       {0x18cff, 0x18cff, AddedClass::other_letter},
    {0x1b132, 0x1b132, AddedClass::other_letter}, {0x1b155, 0x1b155, AddedClass::other_letter},
    {0x1ccf0, 0x1ccf9, AddedClass::number},       {0x1d2c0, 0x1d2d3, AddedClass::number},
    {0x1df25, 0x1df2a, AddedClass::lower},        {0x1e030, 0x1e06d, AddedClass::other_letter},
    {0x1e08f, 0x1e08f, AddedClass::mark},         {0x1e4d0, 0x1e4eb, AddedClass::other_letter},
    {0x1e4ec, 0x1e4ef, AddedClass::mark},         {0x1e4f0, 0x1e4f9, AddedClass::number},
    {0x1e5d0, 0x1e5ed, AddedClass::other_letter}, {0x1e5ee, 0x1e5ef, AddedClass::mark},
    {0x1e5f0, 0x1e5f0, AddedClass::other_letter}, {0x1e5f1, 0x1e5fa, AddedClass::number},
    {0x2b739, 0x2b739, AddedClass::han},          {0x2ebf0, 0x2ee5d, AddedClass::han},
    {0x31350, 0x323af, AddedClass::han},
};

/// A character of Unicode 14 of the same class with as many bytes in UTF-8: 3 and 4.
inline constexpr const char* added_stand_ins[][2] = {
    {"\xe4\xb8\x80", "\xf0\xa0\x80\x80"},  // han: U+4E00, U+20000
    {"\xe1\xb8\x80", "\xf0\x90\x90\x80"},  // upper: U+1E00, U+10400
    {"\xe1\xb8\x81", "\xf0\x90\x90\xa8"},  // lower: U+1E01, U+10428
    {"\xe0\xb8\x81", "\xf0\x90\x8a\x80"},  // other_letter: U+0E01, U+10280
    {"\xe0\xb8\xb1", "\xf0\x90\xa8\x81"},  // mark: U+0E31, U+10A01
    {"\xe0\xb9\x90", "\xf0\x90\x84\x87"},  // number: U+0E50, U+10107
};

}  // namespace waste::text
