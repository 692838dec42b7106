#include "text/chat/harmony_header.h"

#include <algorithm>
#include <array>

namespace nibble {
namespace {

constexpr std::string_view kAssistant = "assistant";
constexpr std::string_view kTo = "to=";
constexpr std::string_view kFunctions = "functions.";
constexpr std::array<std::string_view, 3> kChannels = {"analysis", "commentary", "final"};

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_type_char(char c) { return is_harmony_name_char(c) || c == '+'; }
// What has been seen glued to channel names ("commentary?"), and special tokens that are spelled
// out.
bool is_channel_char(char c) {
  return is_harmony_name_char(c) || std::string_view("?!<|>").find(c) != std::string_view::npos;
}

template <typename Predicate>
size_t count_leading(std::string_view text, Predicate predicate) {
  return std::find_if_not(text.begin(), text.end(), predicate) - text.begin();
}

bool is_role(std::string_view word) {
  return word == "system" || word == "developer" || word == "user" || word == kAssistant;
}

// The words of a header, one after the other. Each take_... returns how many of the word's bytes
// belong to the header, and notes what they say.
class HeaderReader {
 public:
  HeaderReader(const HarmonyHeaderText& source, HeaderEnd end) : source_(source), end_(end) {}

  HeaderReading run();

 private:
  bool run_segment(size_t begin, size_t end);
  size_t take(std::string_view word);
  size_t take_author(std::string_view word);
  size_t take_channel(std::string_view word);
  size_t take_recipient(std::string_view word, size_t skip);
  size_t take_type(std::string_view word, bool marked);

  size_t flaw(size_t taken) {
    out_.clean = false;
    return taken;
  }
  // The word may grow into `whole`.
  bool may_become(std::string_view word, std::string_view whole) const {
    return partial_ && whole.starts_with(word);
  }
  bool may_become_channel(std::string_view word) const {
    return std::any_of(kChannels.begin(), kChannels.end(),
                       [&](std::string_view channel) { return may_become(word, channel); });
  }

  const HarmonyHeaderText& source_;
  const HeaderEnd end_;
  HeaderReading out_;
  bool partial_ = false;       // the word at hand may grow
  bool strict_ = false;        // the word at hand may be content
  bool want_channel_ = false;  // the next word stands behind <|channel|>
  bool want_type_ = false;     // the next word stands behind <|constrain|>
  bool has_channel_ = false;
  bool has_author_ = false;
};

HeaderReading HeaderReader::run() {
  size_t begin = 0;
  bool whole = true;
  for (size_t i = 0; whole && i <= source_.marks.size(); ++i) {
    const bool last = i == source_.marks.size();
    strict_ = last && end_ == HeaderEnd::kCut;
    partial_ = false;
    whole = run_segment(begin, last ? source_.text.size() : source_.marks[i].at);
    if (last) break;
    begin = source_.marks[i].at;
    want_type_ = !source_.marks[i].channel;
    want_channel_ = source_.marks[i].channel;
    if (!want_channel_) continue;
    if (has_channel_) out_.clean = false;
    has_channel_ = true;
    out_.header.channel.clear();
  }
  if (out_.header.author.empty()) out_.header.author = kAssistant;
  const auto& channel = out_.header.channel;
  if (std::find(kChannels.begin(), kChannels.end(), channel) == kChannels.end()) {
    out_.clean = false;
  }
  if (whole || end_ == HeaderEnd::kMessage) {
    out_.used = source_.text.size();
  } else if (out_.used > 0) {
    out_.used += count_leading(std::string_view(source_.text).substr(out_.used), is_space);
  }
  return out_;
}

// False: some word is not (all) header, and the reading stops there.
bool HeaderReader::run_segment(size_t begin, size_t end) {
  const std::string_view text = std::string_view(source_.text).substr(0, end);
  const bool last = end == source_.text.size() && end_ == HeaderEnd::kOpen;
  size_t at = begin;
  while (true) {
    at += count_leading(text.substr(at), is_space);
    if (at == end) return true;
    const std::string_view word =
        text.substr(at, count_leading(text.substr(at), [](char c) { return !is_space(c); }));
    partial_ = last && at + word.size() == end;
    const size_t taken = take(word);
    if (taken > 0) out_.used = at + taken;
    at += word.size();
    if (taken == word.size()) continue;
    out_.clean = false;
    if (end_ == HeaderEnd::kOpen || strict_) return false;
  }
}

size_t HeaderReader::take(std::string_view word) {
  if (want_channel_) return want_channel_ = false, take_channel(word);
  if (want_type_) return want_type_ = false, take_type(word, true);
  if (word.starts_with(kTo)) return take_recipient(word, kTo.size());
  if (may_become(word, kTo)) return word.size();
  if (!has_author_ && !has_channel_) {
    has_author_ = true;
    if (const size_t taken = take_author(word)) return taken;
  }
  if (word.starts_with(kFunctions) && out_.header.recipient.empty()) {
    return take_recipient(word, 0);
  }
  if (!has_channel_ && !strict_) {  // <|channel|> left out
    const bool known = std::find(kChannels.begin(), kChannels.end(), word) != kChannels.end();
    if (known) out_.header.channel = word;
    if (known || may_become_channel(word)) return flaw(word.size());
  }
  return take_type(word, false);
}

size_t HeaderReader::take_author(std::string_view word) {
  std::string_view rest = word;
  while (rest.starts_with(kAssistant)) rest.remove_prefix(kAssistant.size());
  const size_t taken = word.size() - rest.size();
  if (taken > 0) {
    out_.header.author = kAssistant;
    if (taken > kAssistant.size() || source_.author_given) out_.clean = false;
    if (rest.empty()) return taken;
    if (rest.starts_with(kTo)) return flaw(taken + take_recipient(rest, kTo.size()));
    const bool named =
        rest.starts_with(':') && count_leading(rest, is_harmony_name_char) == rest.size();
    if (named) return out_.header.author += rest, word.size();
    const bool channel = std::find(kChannels.begin(), kChannels.end(), rest) != kChannels.end();
    if (channel && !strict_) return out_.header.channel = rest, flaw(word.size());
    const bool may_grow =
        may_become(rest, kAssistant) || may_become(rest, kTo) || may_become_channel(rest);
    return may_grow ? word.size() : taken;
  }
  if (may_become(word, kAssistant)) return word.size();
  if (source_.author_given) return 0;
  if (count_leading(word, is_harmony_name_char) < word.size()) return 0;
  if (strict_ && !is_role(word) && !word.starts_with(kFunctions)) return 0;
  out_.header.author = word;
  return flaw(word.size());
}

size_t HeaderReader::take_channel(std::string_view word) {
  for (const std::string_view channel : kChannels) {
    if (!word.starts_with(channel)) continue;
    out_.header.channel = channel;
    const std::string_view rest = word.substr(channel.size());
    if (rest.empty() || may_become(rest, kTo)) return word.size();
    out_.clean = false;
    if (rest.starts_with(kTo)) return channel.size() + take_recipient(rest, kTo.size());
    const bool glued = !strict_ && count_leading(rest, is_channel_char) == rest.size();
    return glued ? word.size() : channel.size();
  }
  if (strict_ || count_leading(word, is_channel_char) < word.size()) return 0;
  out_.header.channel = word;
  return word.size();
}

size_t HeaderReader::take_recipient(std::string_view word, size_t skip) {
  const std::string_view value = word.substr(skip);
  const size_t size = count_leading(value, is_harmony_name_char);
  out_.header.recipient = value.substr(0, size);
  const std::string_view rest = value.substr(size);
  if (rest.empty()) return word.size();
  // A special token that is spelled out.
  if (rest.starts_with("<|") || may_become(rest, "<|")) return flaw(word.size());
  return skip + size;
}

size_t HeaderReader::take_type(std::string_view word, bool marked) {
  const bool fits = has_channel_ || !out_.header.recipient.empty();
  if (!marked && (!fits || !out_.header.content_type.empty())) return 0;
  const size_t size = count_leading(word, is_type_char);
  const std::string_view type = word.substr(0, size);
  const bool sure = marked || type == "json" || type == "code";
  if (strict_ ? !sure : size < word.size() && !marked) return 0;
  out_.header.content_type = std::string(marked ? "<|constrain|>" : "").append(type);
  return size;
}

}  // namespace

bool is_harmony_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("_-.:/").find(c) != std::string_view::npos;
}

HeaderReading read_header(const HarmonyHeaderText& text, HeaderEnd end) {
  return HeaderReader(text, end).run();
}

}  // namespace nibble
