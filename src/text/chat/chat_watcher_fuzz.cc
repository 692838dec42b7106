// Ids accepted and taken back, in any order, by the watchers of both chat formats: afterwards each
// is as one that has seen only what is left. Input: one byte for the format and the options, one
// for the grammar; then a byte a step: an id, the n-th that the mask allows, or how many to take
// back.
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <vector>

#include "text/chat/chat_stream.h"
#include "text/chat/harmony_for_test.h"
#include "text/chat/template_watcher.h"

namespace {

using namespace nibble;

constexpr int32_t kIds = 272;  // columns of the mask
constexpr int32_t kReturn = 256;
constexpr int kTakenBack = 64;  // at most

const Tokenizer& templates_tokenizer() {
  static const Tokenizer tokenizer =
      make_byte_tokenizer({"return", "<think>", "</think>", "<tool_call>", "</tool_call>"});
  return tokenizer;
}

Grammar grammar_of(const Tokenizer& tokenizer, uint8_t choice) {
  static const GrammarSpec kSpecs[] = {
      {.kind = GrammarSpec::Kind::kJsonObject},
      {.kind = GrammarSpec::Kind::kRegex, .text = "[ab]{0,9}c?"},
      {.kind = GrammarSpec::Kind::kChoice, .choices = {"yes", "yes, please", "no"}},
      {.kind = GrammarSpec::Kind::kJsonSchema,
       .text = R"({"type":"object","properties":{"x":{"type":"integer"}},"required":["x"]})"}};
  static std::map<std::pair<const Tokenizer*, int>, Grammar> made;
  const std::pair key{&tokenizer, choice % 4};
  auto at = made.find(key);
  if (at == made.end()) {
    const GrammarCompiler compiler(tokenizer, kIds);
    at = made.emplace(key, *compiler.compile(kSpecs[key.second])).first;
  }
  return at->second;
}

std::unique_ptr<TokenWatcher> make_watcher(uint8_t flags, uint8_t choice) {
  static const Harmony harmony(byte_tokenizer());
  const bool is_harmony = (flags & 1) != 0, has_grammar = (flags & 2) != 0;
  ChatStreamOptions options;
  if ((flags & 4) != 0) options.stop = StopStrings({"END", "aa"});
  const Tokenizer& tokenizer = is_harmony ? byte_tokenizer() : templates_tokenizer();
  options.tools = std::make_shared<std::vector<FunctionTool>>(
      std::vector<FunctionTool>{{.name = "f", .description = "", .parameters = "{}"}});
  options.functions = {"f"};
  options.end_ids = {kReturn};
  if (is_harmony) {
    options.start = start_of(static_cast<char>(flags >> 4));
    if (has_grammar) options.content = grammar_of(tokenizer, choice);
    if (has_grammar) options.arguments.emplace("f", grammar_of(tokenizer, choice));
    return std::make_unique<ChatWatcher>(harmony, options);
  }
  const AnswerMarkup markup{.tools = static_cast<ToolFormat>((flags >> 4) % 4),
                            .think = (flags & 64) != 0};
  options.in_reasoning = markup.think && (flags & 8) != 0;
  if (has_grammar) options.answer = grammar_of(tokenizer, choice);
  return std::make_unique<TemplateWatcher>(tokenizer, markup, options);
}

using Bits = std::array<uint32_t, (kIds + 31) / 32>;

Bits allowed(TokenWatcher& watcher) {
  Bits bits;
  bits.fill(~uint32_t{0});
  watcher.mask(bits);
  bits.back() &= ~uint32_t{0} >> (bits.size() * 32 - kIds);
  return bits;
}

// The n-th of them, counted round and round; -1: there is none.
int32_t nth_of(const Bits& bits, int n) {
  int all = 0;
  for (const uint32_t word : bits) all += std::popcount(word);
  if (all == 0) return -1;
  n %= all;
  int32_t id = 0;
  for (; n >= std::popcount(bits[id / 32]); id += 32) n -= std::popcount(bits[id / 32]);
  uint32_t word = bits[id / 32];
  for (; n > 0; --n) word &= word - 1;
  return id + std::countr_zero(word);
}

// Watchers that have seen what is left alone, and took nothing back: the last one goes on for as
// long as what it has seen is the beginning of it.
class Straight {
 public:
  Straight(uint8_t flags, uint8_t choice) : flags_(flags), choice_(choice) {}

  TokenWatcher& after(const std::vector<int32_t>& ids) {
    if (!watcher_ || seen_.size() > ids.size() ||
        !std::equal(seen_.begin(), seen_.end(), ids.begin())) {
      watcher_ = make_watcher(flags_, choice_);
      seen_.clear();
    }
    for (size_t i = seen_.size(); i < ids.size(); ++i) watcher_->accept(ids[i]);
    seen_ = ids;
    return *watcher_;
  }

 private:
  const uint8_t flags_, choice_;
  std::unique_ptr<TokenWatcher> watcher_;
  std::vector<int32_t> seen_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2 || size > 200) return 0;
  const auto watcher = make_watcher(data[0], data[1]);
  Straight straight(data[0], data[1]);
  std::vector<int32_t> ids;
  int can_take_back = 0;
  for (size_t at = 2; at < size; ++at) {
    const uint8_t step = data[at];
    if (step < 128) {
      ids.push_back(step < 122 ? step : kReturn + step - 122);
    } else if (step < 224) {
      const int32_t fitting = nth_of(allowed(*watcher), (step - 128) * 7);
      if (fitting < 0) continue;
      ids.push_back(fitting);
    } else {
      const int n = std::min<int>(step - 224, can_take_back);
      watcher->rollback(n);
      ids.resize(ids.size() - static_cast<size_t>(n));
      can_take_back -= n;
      CHECK(allowed(straight.after(ids)) == allowed(*watcher));
      continue;
    }
    can_take_back = std::min(can_take_back + 1, kTakenBack);
    watcher->accept(ids.back());
  }
  // What ends it is the same too: every id from here on.
  const auto fresh = make_watcher(data[0], data[1]);
  for (const int32_t id : ids) fresh->accept(id);
  for (const char c : std::string("aEND{\"x\": 1}")) {
    CHECK(allowed(*fresh) == allowed(*watcher));
    CHECK(fresh->accept(c) == watcher->accept(c));
  }
  return 0;
}
