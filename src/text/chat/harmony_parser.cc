// Repairs, each counted in HarmonyCounts::malformed:
//  - An END, or text, behind an END: the END is ignored, the text starts a new message.
//  - Text where a header should be: content, from the first word that no header can hold.
//  - A header without <|message|>: what stands behind channel, recipient and type is content.
//  - Several channels: the last counts. A channel with something glued on counts as what it starts
//    with; any other is content.
//  - Names of functions without "functions.", recipients without the space before or behind,
//    headers that repeat "assistant".
//  - <|start|> or <|channel|> inside a message ends it; <|message|> and <|constrain|> there mean
//    nothing.
#include <algorithm>
#include <utility>

#include "text/chat/harmony.h"
#include "text/chat/harmony_header.h"

namespace nibble {
namespace {

constexpr size_t kMaxHeaderBytes = 512;
constexpr std::string_view kFunctions = "functions.";

// Tools that the model knows from its training, and may call unasked.
bool is_builtin(std::string_view recipient) {
  const std::string_view tool = recipient.substr(0, recipient.find('.'));
  return tool == "python" || tool == "browser" || tool == "container" || tool == "functions";
}

bool is_party(std::string_view recipient) {
  return recipient.empty() || recipient == "assistant" || recipient == "all" || recipient == "user";
}

}  // namespace

HarmonyParser::HarmonyParser(const Harmony& harmony, const HarmonyStart& start,
                             std::optional<std::vector<std::string>> functions)
    : ids_(harmony.ids()),
      tokenizer_(harmony.tokenizer()),
      start_(start),
      text_(harmony.tokenizer()) {
  if (functions) {
    functions_ = std::make_shared<const std::vector<std::string>>(*std::move(functions));
  }
  header_.author_given = true;
}

// The name of the function that a message with this header calls; empty: it calls none.
std::string HarmonyParser::called_function(const HarmonyHeader& header) const {
  const std::string& recipient = header.recipient;
  if (recipient.empty() ? !functions_ : is_party(recipient)) return "";
  const bool is_function = recipient.starts_with(kFunctions);
  const std::string name = is_function         ? recipient.substr(kFunctions.size())
                           : recipient.empty() ? header.content_type
                                               : recipient;
  if (!functions_) return is_function || !is_builtin(recipient) ? name : "";
  const bool given = std::find(functions_->begin(), functions_->end(), name) != functions_->end();
  return given ? name : "";
}

void HarmonyParser::repair() {
  if (!flawed_) ++counts_.malformed;
  flawed_ = true;
}

void HarmonyParser::open_header(bool author_given) {
  header_ = {};
  header_.author_given = author_given;
  state_ = State::kHeader;
  flawed_ = false;
}

void HarmonyParser::begin(HarmonyHeader header, std::string text,
                          std::vector<HarmonyEvent>& events) {
  std::string function = called_function(header);
  const bool nobody = is_party(header.recipient);
  part_ = !function.empty()                        ? ChatPart::kToolCall
          : nobody && header.channel == "analysis" ? ChatPart::kReasoning
                                                   : ChatPart::kContent;
  state_ = State::kContent;
  events.push_back({.kind = HarmonyEvent::Kind::kBegin,
                    .part = part_,
                    .text = std::move(text),
                    .header = std::move(header),
                    .function = std::move(function)});
}

void HarmonyParser::add_text(std::string text, std::vector<HarmonyEvent>& events) {
  if (text.empty()) return;
  events.push_back({.kind = HarmonyEvent::Kind::kText, .part = part_, .text = std::move(text)});
}

void HarmonyParser::end(std::vector<HarmonyEvent>& events) {
  events.push_back({.kind = HarmonyEvent::Kind::kEnd, .part = part_});
  state_ = State::kBetween;
}

void HarmonyParser::add_header_text(const std::string& text, std::vector<HarmonyEvent>& events) {
  if (text.empty()) return;
  if (state_ == State::kBetween) {
    open_header(true);
    repair();
  }
  header_.text += text;
  const bool may_be_header = header_.text.size() <= kMaxHeaderBytes &&
                             read_header(header_, HeaderEnd::kOpen).used == header_.text.size();
  if (!may_be_header) begin_cut_header(events);
}

// A message whose header never came to <|message|>.
void HarmonyParser::begin_cut_header(std::vector<HarmonyEvent>& events) {
  repair();
  HeaderReading reading = read_header(header_, HeaderEnd::kCut);
  begin(std::move(reading.header), header_.text.substr(0, reading.used), events);
  add_text(header_.text.substr(reading.used), events);
}

// A special token closes the header.
void HarmonyParser::close_header(std::vector<HarmonyEvent>& events) {
  repair();
  const HeaderReading reading = read_header(header_, HeaderEnd::kCut);
  const bool is_message = reading.used < header_.text.size() || !reading.header.channel.empty() ||
                          !reading.header.recipient.empty();
  if (is_message) {
    begin_cut_header(events);
    end(events);
  } else {
    add_stray(events);
  }
}

void HarmonyParser::add_stray(std::vector<HarmonyEvent>& events) {
  state_ = State::kBetween;
  if (header_.text.empty()) return;
  events.push_back({.kind = HarmonyEvent::Kind::kStray, .text = std::move(header_.text)});
}

void HarmonyParser::push(int32_t id, std::vector<HarmonyEvent>& events) {
  enter(events);
  if (id == ids_.start || id == ids_.channel || id == ids_.message || id == ids_.constrain) {
    flush(events);
    push_mark(id, events);
  } else if (id == ids_.end || id == ids_.stop || id == ids_.call) {
    flush(events);
    if (state_ == State::kContent) {
      end(events);
    } else if (state_ == State::kHeader) {
      close_header(events);
    } else {
      repair();
    }
  } else if (!tokenizer_.is_special(id)) {
    if (state_ == State::kContent) {
      counts_.reasoning_tokens += part_ == ChatPart::kReasoning;
      add_text(text_.push(id), events);
    } else {
      add_header_text(text_.push(id), events);
    }
  }
}

void HarmonyParser::push_mark(int32_t id, std::vector<HarmonyEvent>& events) {
  if (state_ == State::kContent) {
    if (id != ids_.channel) repair();  // else the header that it opens is counted
    if (id == ids_.message || id == ids_.constrain) return;
    end(events);
  }
  if (id == ids_.start) {
    if (state_ == State::kHeader) close_header(events);
    open_header(false);
    return;
  }
  if (state_ == State::kBetween) {
    open_header(true);
    repair();
  }
  if (id != ids_.message) {
    header_.marks.push_back({.at = header_.text.size(), .channel = id == ids_.channel});
    if (header_.marks.size() > kMaxHeaderBytes) begin_cut_header(events);
    return;
  }
  HeaderReading reading = read_header(header_, HeaderEnd::kMessage);
  if (!reading.clean) repair();
  begin(std::move(reading.header), std::move(header_.text), events);
}

// What the decoder still holds of an unfinished character.
void HarmonyParser::flush(std::vector<HarmonyEvent>& events) {
  if (state_ == State::kContent) {
    add_text(text_.flush(), events);
  } else {
    add_header_text(text_.flush(), events);
  }
}

// The message that the prompt opened.
void HarmonyParser::enter(std::vector<HarmonyEvent>& events) {
  if (!start_.in_content) return;
  start_.in_content = false;
  begin(std::move(start_.header), "", events);
}

void HarmonyParser::finish(std::vector<HarmonyEvent>& events) {
  enter(events);
  flush(events);
  if (state_ == State::kHeader) add_stray(events);
  if (state_ == State::kContent) end(events);
}

}  // namespace nibble
