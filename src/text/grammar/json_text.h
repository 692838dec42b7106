// Where what xgrammar takes for JSON is none.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace nibble {

// Bits of the ids whose texts hold a control character other than the blanks \n and \r. JSON
// escapes them in strings; xgrammar lets them, and tabs, into strings of a given length as they
// are.
std::vector<uint32_t> ids_never_in_json(const std::vector<std::string>& texts);

// The schema with patterns for the formats that xgrammar spells without a string's escapes: the
// quotes and backslashes of JSON pointers and of quoted mail addresses (which are left out) would
// end the string. Others it spells too widely: days that no month has, seconds 60, bytes of an
// address with zeros in front, labels of host names longer than 63. Where a schema has a pattern of
// its own, that stands, and the format goes.
std::string with_patterns_for_formats(const std::string& schema);

}  // namespace nibble
