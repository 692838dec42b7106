#include "text/chat/header_mask.h"

#include <algorithm>
#include <string_view>

namespace nibble {
namespace {

// Special tokens in the text of a header; no name or type has these bytes.
constexpr char kChannel = 1, kConstrain = 2, kMessage = 3;
constexpr std::string_view kMarks = "\1\2\3";
constexpr std::string_view kAssistant = "assistant";

using Must = HeaderRules::Must;

void clear_all(std::span<uint32_t> bits) { std::fill(bits.begin(), bits.end(), 0); }

void set_bit(std::span<uint32_t> bits, int32_t id, bool value) {
  const auto word = static_cast<size_t>(id) / 32;
  if (id < 0 || word >= bits.size()) return;
  const uint32_t bit = uint32_t{1} << (id % 32);
  bits[word] = value ? bits[word] | bit : bits[word] & ~bit;
}

// " to=functions.f" before or behind the channel, with the types that models write.
std::vector<std::string> call_headers(const std::vector<std::string>& recipients) {
  std::vector<std::string> out;
  for (const std::string& recipient : recipients) {
    for (const std::string channel : {"\1commentary", "\1analysis"}) {
      for (const std::string type : {"", " json", " code", " \2json", "\2json", " \2code"}) {
        const std::string to = " to=" + recipient;
        out.push_back(std::string(kAssistant) + channel + to + type + kMessage);
        out.push_back(std::string(kAssistant) + to + channel + type + kMessage);
      }
    }
  }
  return out;
}

}  // namespace

struct HeaderMask::Table {
  HarmonyIds ids;
  Tokenizer tokenizer;
  HeaderRules::Must must;
  std::vector<std::string> plain;       // headers of messages to nobody, sorted
  std::vector<std::string> calls;       // headers of calls, sorted
  std::vector<int32_t> other_specials;  // all special tokens but <|end|>, where something must come
};

HeaderMask::HeaderMask(const Harmony& harmony, const HarmonyStart& start, const HeaderRules& rules)
    : header_(kAssistant) {
  Table table{.ids = harmony.ids(),
              .tokenizer = harmony.tokenizer(),
              .must = rules.must,
              .plain = {},
              .calls = call_headers(rules.recipients),
              .other_specials = {}};
  for (const std::string_view header : {"\1analysis\3", "\1commentary\3", "\1final\3",
                                        "\1final json\3", "\1final \2json\3", "\1final\2json\3"}) {
    const bool allowed = rules.must == Must::kNothing || header == "\1analysis\3" ||
                         (rules.must == Must::kAnswer && header.starts_with("\1final"));
    if (allowed) table.plain.push_back(std::string(kAssistant).append(header));
  }
  std::sort(table.plain.begin(), table.plain.end());
  std::sort(table.calls.begin(), table.calls.end());
  const int32_t num_looked_at = rules.must == Must::kNothing ? 0 : table.tokenizer.size();
  for (int32_t id = 0; id < num_looked_at; ++id) {
    const bool other = table.tokenizer.is_special(id) && id != table.ids.end;
    if (other) table.other_specials.push_back(id);
  }
  table_ = std::make_shared<const Table>(std::move(table));
  if (!start.in_content) return;
  enter_content(!start.header.recipient.empty(), start.header.channel);
}

void HeaderMask::enter_content(bool is_call, std::string_view channel) {
  state_ = State::kContent;
  done_ = done_ || is_call || (table_->must == Must::kAnswer && channel == "final");
  reasoned_ = reasoned_ || (!is_call && channel == "analysis");
}

void HeaderMask::accept(int32_t id) {
  const HarmonyIds& ids = table_->ids;
  if (id == ids.start) {
    state_ = State::kHeader;
    header_.clear();
  } else if (id == ids.channel && state_ != State::kHeader) {  // a header that leaves out the rest
    state_ = State::kHeader;
    header_ = std::string(kAssistant) + kChannel;
  } else if (id == ids.end || id == ids.stop || id == ids.call) {
    state_ = State::kBetween;
  } else if (state_ == State::kHeader) {
    if (id == ids.channel) {
      header_ += kChannel;
    } else if (id == ids.constrain) {
      header_ += kConstrain;
    } else if (id == ids.message) {
      const bool is_call = header_.find(" to=") != std::string::npos;
      const bool is_final = header_.find("\1final") != std::string::npos;
      enter_content(is_call, is_final                          ? "final"
                             : header_.ends_with("\1analysis") ? "analysis"
                                                               : "commentary");
    } else {
      header_ += table_->tokenizer.token_bytes(id);
    }
  }
}

// What may follow the header at hand: special tokens, and every token that is a prefix of the text
// up to the next special token. Empty: no legal header starts like this.
std::vector<int32_t> HeaderMask::next_ids() const {
  std::vector<int32_t> out;
  const auto add = [&](const std::vector<std::string>& sorted) {
    std::string_view before;  // its prefixes have been looked up
    for (auto it = std::lower_bound(sorted.begin(), sorted.end(), header_); it != sorted.end();
         ++it) {
      if (!it->starts_with(header_)) break;
      std::string_view rest = std::string_view(*it).substr(header_.size());
      if (rest.empty()) continue;
      if (rest[0] == kChannel) out.push_back(table_->ids.channel);
      if (rest[0] == kConstrain) out.push_back(table_->ids.constrain);
      if (rest[0] == kMessage) out.push_back(table_->ids.message);
      rest = rest.substr(0, rest.find_first_of(kMarks));
      const auto shared = std::mismatch(rest.begin(), rest.end(), before.begin(), before.end());
      for (size_t n = shared.first - rest.begin() + 1; n <= rest.size(); ++n) {
        const int32_t id = table_->tokenizer.find_text(rest.substr(0, n));
        if (id >= 0) out.push_back(id);
      }
      before = rest;
    }
  };
  if (table_->must != Must::kCall || !reasoned_) add(table_->plain);
  add(table_->calls);
  return out;
}

bool HeaderMask::mask(std::span<uint32_t> bits) const {
  const bool may_stop = table_->must == Must::kNothing || done_;
  if (state_ == State::kContent) {
    if (may_stop) return false;
    for (const int32_t id : table_->other_specials) set_bit(bits, id, false);
    return true;
  }
  std::vector<int32_t> allowed = {table_->ids.start};
  if (state_ == State::kHeader) {
    allowed = next_ids();
  } else if (may_stop) {
    allowed.push_back(table_->ids.stop);
  }
  if (allowed.empty()) return false;
  clear_all(bits);
  for (const int32_t id : allowed) set_bit(bits, id, true);
  return true;
}

}  // namespace nibble
