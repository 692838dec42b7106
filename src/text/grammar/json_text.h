// Where what xgrammar takes for JSON is none.
#pragma once

#include <string>

namespace nibble {

// The schema with patterns for the formats that xgrammar spells without a string's escapes: the
// quotes and backslashes of JSON pointers and of quoted mail addresses (which are left out) would
// end the string. Others it spells too widely: days that no month has, seconds 60, bytes of an
// address with zeros in front, labels of host names longer than 63. Where a schema has a pattern of
// its own, that stands, and the format goes.
std::string with_patterns_for_formats(const std::string& schema);

}  // namespace nibble
