// xgrammar gives a string of at most n characters a rule for each of them, and looks through the
// vocabulary for each: 3 s for maxLength 100. Its character budgets say the same with one rule.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace nibble {

// Shorter strings compile fast with a rule a character. They keep those: where rules are ambiguous,
// as behind an anyOf, xgrammar's mask can offer an id to a budget that it then does not take.
inline constexpr int32_t kBudgetFrom = 64;  // characters at most

// `rules`: EBNF, as xgrammar prints what it makes of a JSON schema. Every string of at most `from`
// or more characters in it gets a budget, and characters that JSON allows there. Returns the rules
// as they are where there is none.
std::string with_string_budgets(std::string_view rules, int32_t from = kBudgetFrom);

}  // namespace nibble
