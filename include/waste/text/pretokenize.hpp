// Cuts text into the pieces that are merged on their own: the released models' pattern.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

namespace waste::text {

/// The cuts of one text, from left to right. The pattern, in the syntax it was released in
/// (leftmost alternative first, greedy, with backtracking; `&&` intersects classes; Unicode 16
/// properties; \s is White_Space; Han is the Script property):
///
///     [\p{Han}]+
///     [^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?
///     [^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?
///     \p{N}{1,3}
///      ?[^\s\p{L}\p{N}]+[\r\n]*
///     \s*[\r\n]+
///     \s+(?!\S)
///     \s+
///
/// Every character is in some piece, so the pieces joined are the text. A byte that is in no
/// well-formed UTF-8 character is cut as U+FFFD would be (a symbol) and stays the byte it is.
/// Time is linear in the text. The text must outlive the cursor.
class PieceCursor {
 public:
  explicit PieceCursor(std::string_view text);
  ~PieceCursor();
  PieceCursor(const PieceCursor&) = delete;
  PieceCursor& operator=(const PieceCursor&) = delete;

  /// The next piece, never empty; an empty view after the last. Throws Error (over_budget) when
  /// the matcher's limits are met, which no text of up to 400,000 characters is known to do.
  std::string_view next();

 private:
  struct Matcher;
  std::unique_ptr<Matcher> matcher_;
};

/// All pieces of `text`; views into it.
std::vector<std::string_view> pretokenize(std::string_view text);

}  // namespace waste::text
