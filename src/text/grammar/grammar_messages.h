// What a server and its grammar processes say to each other, each over a socket of its own.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace nibble {

enum class GrammarMessage : uint32_t {
  // To a process.
  kVocabulary,  // once, to the first: GrammarVocabulary
  kFork,        // make one like you; it has the socket that comes along
  kCompile,     // once: a list of WantedGrammar
  kStart,       // a text, `run`, that follows grammar `value`; its end ids
  kAccept,      // id `value`
  kRollback,    // to when `value` ids had been accepted
  kEnd,         // of the text
  // From it.
  kBorn,      // `value`: its pid
  kCompiled,  // what should be logged
  kRefused,   // grammar `run`; why
  kMask       // of text `run`, after the ids of `version`: a bit an id
};

struct GrammarHeader {
  GrammarMessage kind;
  uint32_t size = 0;  // of what follows
  int64_t run = 0, version = 0, value = 0;
  int64_t held_bytes = 0;  // from a process: memory that is its own
};
static_assert(std::is_trivially_copyable_v<GrammarHeader>);

// Values of the body, one behind the other; both ends run the same program.
class GrammarWriter {
 public:
  template <typename T>
  requires std::is_integral_v<T> || std::is_enum_v<T>
  void put(T value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  void put(std::string_view text) {
    put(static_cast<uint32_t>(text.size()));
    bytes_ += text;
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class GrammarReader {
 public:
  explicit GrammarReader(std::string_view bytes) : bytes_(bytes) {}
  template <typename T>
  T get() {
    T value{};
    const std::string_view part = take(sizeof value);
    if (part.size() == sizeof value) std::memcpy(&value, part.data(), sizeof value);
    return value;
  }
  std::string text() { return std::string(take(get<uint32_t>())); }

 private:
  std::string_view take(size_t n) {
    const std::string_view part = bytes_.substr(0, n);
    bytes_.remove_prefix(part.size());
    return part;
  }
  std::string_view bytes_;
};

}  // namespace nibble
