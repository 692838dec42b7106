// JSON Schemas in the words that xgrammar keeps to: some keywords it leaves out without one.
#pragma once

#include <functional>
#include <string>

namespace nibble {

// What allows no more than `schema` does: what xgrammar would not look at is moved to where it
// does. What stands beside `const`, `enum`, `$ref`, `anyOf`, `oneOf` and `allOf` is such, what is
// said of a value whose type is not said, and properties that are required and not described.
// False: it would not be kept to, `why` says what, fit for the caller; where `lenient` it is left
// out. `fits` tells whether a pattern can be kept to inside a JSON string. A text that is no JSON
// stays as it is.
bool keep_schema(std::string& schema, bool lenient,
                 const std::function<bool(const std::string& pattern)>& fits, std::string& why);

}  // namespace nibble
