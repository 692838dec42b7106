#include "text/chat/header_mask.h"

#include <algorithm>
#include <set>
#include <string_view>

namespace nibble {
namespace {

// Special tokens in the text of a header; no name or type has these bytes.
constexpr char kChannel = 1, kConstrain = 2, kMessage = 3;
constexpr std::string_view kMarks = "\1\2\3";
constexpr std::string_view kAssistant = "assistant";

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
  bool must_call;
  std::vector<std::string> plain;       // headers of messages to nobody
  std::vector<std::string> calls;       // headers of calls
  std::vector<int32_t> other_specials;  // all special tokens but <|end|>
};

HeaderMask::HeaderMask(const Harmony& harmony, const HarmonyStart& start, const HeaderRules& rules)
    : header_(kAssistant) {
  Table table{.ids = harmony.ids(),
              .tokenizer = harmony.tokenizer(),
              .must_call = rules.must_call,
              .plain = {},
              .calls = call_headers(rules.recipients),
              .other_specials = {}};
  for (const std::string_view header : {"\1analysis\3", "\1commentary\3", "\1final\3",
                                        "\1final json\3", "\1final \2json\3", "\1final\2json\3"}) {
    const bool allowed = !rules.must_call || header == "\1analysis\3";
    if (allowed) table.plain.push_back(std::string(kAssistant).append(header));
  }
  for (int32_t id = 0; id < table.tokenizer.size(); ++id) {
    const bool other = table.tokenizer.is_special(id) && id != table.ids.end;
    if (other) table.other_specials.push_back(id);
  }
  table_ = std::make_shared<const Table>(std::move(table));
  if (!start.in_content) return;
  state_ = State::kContent;
  called_ = !start.header.recipient.empty();
  reasoned_ = start.header.channel == "analysis";
}

void HeaderMask::accept(int32_t id) {
  const HarmonyIds& ids = table_->ids;
  if (id == ids.start) {
    state_ = State::kHeader;
    header_.clear();
  } else if (id == ids.end || id == ids.stop || id == ids.call) {
    state_ = State::kBetween;
  } else if (state_ == State::kHeader) {
    if (id == ids.channel) {
      header_ += kChannel;
    } else if (id == ids.constrain) {
      header_ += kConstrain;
    } else if (id == ids.message) {
      state_ = State::kContent;
      called_ = called_ || header_.find(" to=") != std::string::npos;
      reasoned_ = reasoned_ || header_.ends_with("\1analysis");
    } else {
      header_ += table_->tokenizer.token_bytes(id);
    }
  }
}

// What may follow the header at hand: special tokens, and every token that is a prefix of the text
// up to the next special token. Empty: no legal header starts like this.
std::vector<int32_t> HeaderMask::next_ids() const {
  std::vector<int32_t> out;
  std::set<std::string_view> texts;
  const auto add = [&](const std::vector<std::string>& headers) {
    for (const std::string& header : headers) {
      if (header.size() <= header_.size() || !header.starts_with(header_)) continue;
      const std::string_view rest = std::string_view(header).substr(header_.size());
      if (rest[0] == kChannel) out.push_back(table_->ids.channel);
      if (rest[0] == kConstrain) out.push_back(table_->ids.constrain);
      if (rest[0] == kMessage) out.push_back(table_->ids.message);
      const size_t size = std::min(rest.find_first_of(kMarks), rest.size());
      for (size_t n = 1; n <= size; ++n) texts.insert(rest.substr(0, n));
    }
  };
  if (!table_->must_call || !reasoned_) add(table_->plain);
  add(table_->calls);
  for (const std::string_view text : texts) {
    const std::vector<int32_t> ids = table_->tokenizer.encode(text, Specials::kAsText);
    if (ids.size() == 1) out.push_back(ids[0]);
  }
  return out;
}

bool HeaderMask::mask(std::span<uint32_t> bits) const {
  const bool may_stop = !table_->must_call || called_;
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
