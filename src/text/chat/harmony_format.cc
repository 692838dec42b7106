#include "text/chat/harmony_format.h"

#include <mutex>
#include <utility>

#include "base/log.h"
#include "text/chat/chat_stream.h"

namespace nibble {
namespace {

class HarmonyAnswer : public AnswerParser {
 public:
  HarmonyAnswer(const Harmony& harmony, const ChatStreamOptions& options)
      : parser_(harmony, options.start, options.functions) {}

  void push(int32_t id, std::vector<ChatEvent>& events) override {
    parser_.push(id, harmonys_);
    hand_over(events);
  }
  void finish(std::vector<ChatEvent>& events) override {
    parser_.finish(harmonys_);
    hand_over(events);
  }
  int64_t reasoning_tokens() const override { return parser_.counts().reasoning_tokens; }

 private:
  void hand_over(std::vector<ChatEvent>& events) {
    for (HarmonyEvent& event : harmonys_) {
      events.push_back({.kind = event.kind,
                        .part = event.part,
                        .text = std::move(event.text),
                        .function = std::move(event.function)});
    }
    harmonys_.clear();
  }

  HarmonyParser parser_;
  std::vector<HarmonyEvent> harmonys_;
};

}  // namespace

Result<ChatPrompt> HarmonyFormat::render(const Chat& chat, const TakeBytes& take) const {
  // Clients of many models send the fields of all. Their names stay out of the log, since a
  // stranger chose them.
  static std::once_flag told;
  if (!chat.options.template_variables.empty()) {
    std::call_once(told, [] {
      LOG_WARN(
          "a request has chat_template_kwargs that this model's format does not know: they change "
          "nothing (said once)");
    });
  }
  if (!take(json_bytes(chat) + kEncodedBytes * text_bytes(chat))) return Failure{kNoRoom};
  return harmony_.render(chat);
}

std::unique_ptr<AnswerParser> HarmonyFormat::parser(const ChatStreamOptions& options) const {
  return std::make_unique<HarmonyAnswer>(harmony_, options);
}

std::shared_ptr<TokenWatcher> HarmonyFormat::watcher(const ChatStreamOptions& options) const {
  return std::make_shared<ChatWatcher>(harmony_, options);
}

// That of the final message, then one for the arguments of each function.
std::vector<WantedGrammar> HarmonyFormat::forms(const Chat& chat,
                                                const std::optional<WantedGrammar>& answer) const {
  std::vector<WantedGrammar> wanted;
  if (answer) wanted.push_back(*answer);
  if (!may_call(chat)) return wanted;
  const GrammarSpec any_object{.kind = GrammarSpec::Kind::kJsonObject};
  for (size_t i = 0; i < chat.tools.size(); ++i) {
    const FunctionTool& tool = chat.tools[i];
    WantedGrammar form{.spec = any_object, .field = "tools[" + std::to_string(i) + "]"};
    if (!tool.parameters.empty()) {
      form.spec = {
          .kind = GrammarSpec::Kind::kJsonSchema, .text = tool.parameters, .lenient = !tool.strict};
    }
    if (!tool.strict) form.otherwise = any_object;
    wanted.push_back(std::move(form));
  }
  return wanted;
}

void HarmonyFormat::take_forms(const Chat& chat, bool has_answer, std::vector<Grammar> grammars,
                               ChatStreamOptions& options) const {
  auto next = grammars.begin();
  if (has_answer) options.content = *next++;
  if (!may_call(chat)) return;
  for (const FunctionTool& tool : chat.tools) {
    options.arguments.insert_or_assign(tool.name, *next++);
  }
}

std::vector<int32_t> HarmonyFormat::stop_ids(std::vector<int32_t> of_files) const {
  // After <|end|> of the analysis the final message follows.
  std::erase(of_files, harmony_.ids().end);
  for (const int32_t id : harmony_.stop_ids()) of_files.push_back(id);
  return of_files;
}

}  // namespace nibble
