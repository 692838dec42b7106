#include "cli/hub_listing.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace nibble::cli {
namespace {

using nlohmann::json;

[[noreturn]] void refuse(const std::string& text) {
  throw Error(ErrorKind::kCheckpoint, "the hub's list of files: " + text);
}

bool is_hex(const std::string& text, size_t size) {
  return text.size() == size && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// No part of it is "." or "..", nor empty, as a leading '/' would make one.
bool is_inside(const std::string& path) {
  for (size_t begin = 0;;) {
    const size_t slash = path.find('/', begin);
    const std::string part = path.substr(begin, slash - begin);
    if (part.empty() || part == "." || part == "..") return false;
    if (slash == std::string::npos) break;
    begin = slash + 1;
  }
  return std::none_of(path.begin(), path.end(),
                      [](unsigned char c) { return c < ' ' || c == '\\'; });
}

std::string text_of(const json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_string() ? at->get<std::string>() : "";
}

int64_t size_of(const json& object) {
  const auto at = object.find("size");
  if (at == object.end() || !at->is_number_unsigned() ||
      at->get<uint64_t>() > (uint64_t{1} << 44)) {
    return -1;
  }
  return at->get<int64_t>();
}

HubFile read_file(const json& item) {
  if (!item.is_object()) refuse("an item is no object");
  HubFile file{.path = text_of(item, "rfilename"), .size = size_of(item), .hash = {}};
  if (!is_inside(file.path)) refuse("'" + file.path + "' is no name of a file");
  const auto lfs = item.find("lfs");
  const bool is_large = lfs != item.end() && lfs->is_object();
  file.hash = is_large ? text_of(*lfs, "sha256") : text_of(item, "blobId");
  if (is_large) file.size = size_of(*lfs);
  if (!is_hex(file.hash, is_large ? 64 : 40)) refuse(file.path + " has no hash");
  if (file.size < 0) refuse(file.path + " has no size");
  return file;
}

}  // namespace

HubListing read_hub_listing(std::string_view text) {
  const json list = json::parse(text, nullptr, false);
  if (!list.is_object()) refuse("it is no JSON object");
  HubListing listing{.commit = text_of(list, "sha"), .files = {}};
  if (!is_hex(listing.commit, 40)) refuse("it names no commit");
  const auto siblings = list.find("siblings");
  if (siblings == list.end() || !siblings->is_array()) refuse("it names no files");
  for (const json& item : *siblings) listing.files.push_back(read_file(item));
  return listing;
}

}  // namespace nibble::cli
