// xgrammar gives a string of at most n characters a rule for each of them, and looks through the
// vocabulary for each: 3 s for maxLength 100. Its character budgets say the same with one rule.
#pragma once

#include <string>
#include <string_view>

namespace nibble {

// `rules`: EBNF, as xgrammar prints what it makes of a JSON schema. Every bounded string in it gets
// a budget, and characters that JSON allows there. Returns the rules as they are where there is
// none.
std::string with_string_budgets(std::string_view rules);

}  // namespace nibble
