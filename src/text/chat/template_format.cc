#include "text/chat/template_format.h"

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/chat/chat_stream.h"
#include "text/chat/template_answer.h"
#include "text/chat/template_watcher.h"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// An object where the text is one: templates go through the arguments.
Json arguments_of(const std::string& text) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json : Json(text);
}

Json tool_json(const FunctionTool& tool) {
  Json function = {{"name", tool.name}};
  if (!tool.description.empty()) function["description"] = tool.description;
  if (!tool.parameters.empty()) {
    function["parameters"] = Json::parse(tool.parameters, nullptr, /*allow_exceptions=*/false);
  }
  return {{"type", "function"}, {"function", std::move(function)}};
}

class Variables {
 public:
  Variables(const Chat& chat, bool knows_developer)
      : chat_(chat), knows_developer_(knows_developer) {}

  Json run() {
    Json tools = nullptr;
    if (may_call(chat_)) {
      tools = Json::array();
      for (const FunctionTool& tool : chat_.tools) tools.push_back(tool_json(tool));
    }
    Json messages = Json::array();
    for (const ChatMessage& message : chat_.messages) messages.push_back(message_json(message));
    const ChatOptions& options = chat_.options;
    Json variables = {{"messages", std::move(messages)},
                      {"tools", std::move(tools)},
                      {"documents", nullptr},
                      {"add_generation_prompt", !options.continue_final_message}};
    if (options.skip_reasoning) variables["enable_thinking"] = false;
    if (options.effort) variables["reasoning_effort"] = reasoning_effort_name(*options.effort);
    const Json more = Json::parse(options.template_variables, nullptr, /*allow_exceptions=*/false);
    if (more.is_object()) {
      for (const auto& [key, value] : more.items()) {
        const bool ours = key == "messages" || key == "tools" || key == "add_generation_prompt";
        if (!ours) variables[key] = value;
      }
    }
    return variables;
  }

 private:
  Json message_json(const ChatMessage& message) {
    const bool as_system = message.role == Role::kDeveloper && !knows_developer_;
    Json json = {{"role", as_system ? "system" : role_name(message.role)},
                 {"content", message.content}};
    if (!message.name.empty()) json["name"] = message.name;
    if (!message.reasoning.empty()) json["reasoning_content"] = message.reasoning;
    for (const ToolCall& call : message.tool_calls) {
      names_[call.id] = call.name;
      json["tool_calls"].push_back(
          {{"id", call.id},
           {"type", "function"},
           {"function", {{"name", call.name}, {"arguments", arguments_of(call.arguments)}}}});
    }
    if (message.role == Role::kTool) {
      json["tool_call_id"] = message.tool_call_id;
      if (const auto it = names_.find(message.tool_call_id); it != names_.end()) {
        json["name"] = it->second;
      }
    }
    return json;
  }

  const Chat& chat_;
  const bool knows_developer_;
  std::map<std::string, std::string> names_;  // of functions, by call
};

// Noon of "2026-11-21"; now where there is no such date.
std::time_t time_of(const std::string& date) {
  std::tm day{.tm_hour = 12, .tm_isdst = -1};
  if (std::sscanf(date.c_str(), "%d-%d-%d", &day.tm_year, &day.tm_mon, &day.tm_mday) != 3) {
    return std::time(nullptr);
  }
  day.tm_year -= 1900;
  day.tm_mon -= 1;
  return std::mktime(&day);
}

size_t bytes_of(const std::vector<TemplatePiece>& pieces) {
  size_t bytes = 0;
  for (const TemplatePiece& piece : pieces) bytes += piece.text.size();
  return bytes;
}

std::string text_of(const std::vector<TemplatePiece>& pieces) {
  std::string text;
  for (const TemplatePiece& piece : pieces) text += piece.text;
  return text;
}

std::string_view without_blanks(std::string_view text) {
  const size_t last = text.find_last_not_of(" \n\r\t");
  return text.substr(0, last == text.npos ? 0 : last + 1);
}

// Cuts the prompt behind the unfinished last message. False: the message is not in it.
bool cut_behind(std::string_view message, std::vector<TemplatePiece>& pieces) {
  message = without_blanks(message);
  const std::string text = text_of(pieces);
  const size_t at = text.rfind(message);
  if (at == text.npos) return false;
  size_t left = at + message.size();
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].text.size() >= left) {
      pieces[i].text.resize(left);
      pieces.resize(i + 1);
      break;
    }
    left -= pieces[i].text.size();
  }
  return true;
}

}  // namespace

TemplateFormat::TemplateFormat(const Tokenizer& tokenizer, ChatTemplate chat_template,
                               AnswerMarkup markup,
                               std::vector<std::pair<std::string, std::string>> literals)
    : tokenizer_(tokenizer),
      template_(std::move(chat_template)),
      markup_(markup),
      literals_(std::move(literals)) {
  Chat probe;
  probe.messages.push_back({.role = Role::kUser, .content = "Hello"});
  for (const bool with_tool : {false, true}) {
    if (with_tool && markup_.tools == ToolFormat::kNone) break;
    if (with_tool)
      probe.tools.push_back(
          {.name = "f", .description = "d", .parameters = R"({"type":"object","properties":{}})"});
    const auto prompt = render(probe);
    if (!prompt) {
      throw Error(ErrorKind::kCheckpoint, "the chat template cannot render a question" +
                                              std::string(with_tool ? " with a tool: " : ": ") +
                                              prompt.error());
    }
  }
}

// Added tokens that stand in a literal become their ids; all between two of them is encoded as one
// text, so that words which reach over pieces get the ids that they have in the whole.
std::vector<int32_t> TemplateFormat::ids_of(const std::vector<TemplatePiece>& pieces) const {
  std::vector<int32_t> ids;
  std::string text;
  const auto encode_text = [&] {
    const auto more = tokenizer_.encode(text, Specials::kNone);
    ids.insert(ids.end(), more.begin(), more.end());
    text.clear();
  };
  for (const TemplatePiece& piece : pieces) {
    std::string_view rest = piece.text;
    while (piece.literal && !rest.empty()) {
      const auto added = tokenizer_.find_added(rest);
      if (!added) break;
      text += rest.substr(0, added->begin);
      encode_text();
      ids.push_back(added->id);
      rest.remove_prefix(added->end);
    }
    text += rest;
  }
  encode_text();
  return ids;
}

Result<ChatPrompt> TemplateFormat::render(const Chat& chat, const TakeBytes& take) const {
  const bool knows_developer = template_.source().find("developer") != std::string::npos;
  const ChatOptions& options = chat.options;
  if (options.continue_final_message &&
      (chat.messages.back().role != Role::kAssistant || !chat.messages.back().tool_calls.empty())) {
    return Failure{
        "continue_final_message: the last message must be an assistant's without tool calls"};
  }
  if (!take(json_bytes(chat) + text_bytes(chat))) return Failure{kNoRoom};
  bool granted = true;
  const auto take_more = [&](size_t bytes) { return granted = take(bytes); };
  auto pieces = template_.render(dump(Variables(chat, knows_developer).run()), literals_,
                                 time_of(options.current_date), take_more);
  if (granted && pieces) take_more(kEncodedBytes * bytes_of(*pieces));
  if (!granted) return Failure{kNoRoom};
  if (!pieces) return Failure{"the chat template: " + pieces.error()};
  if (options.continue_final_message && !cut_behind(chat.messages.back().content, *pieces)) {
    return Failure{"continue_final_message: the template does not write the last message as it is"};
  }
  ChatPrompt prompt{.ids = ids_of(*pieces)};
  if (options.continue_final_message) {
    prompt.start.in_content = true;
  } else {
    const std::string text = text_of(*pieces);
    prompt.in_reasoning = markup_.think && without_blanks(text).ends_with("<think>");
    prompt.start.in_content = markup_.think && without_blanks(text).ends_with("</think>");
  }
  return prompt;
}

std::unique_ptr<AnswerParser> TemplateFormat::parser(const ChatStreamOptions& options) const {
  return std::make_unique<TemplateAnswer>(tokenizer_, markup_, options);
}

std::shared_ptr<TokenWatcher> TemplateFormat::watcher(const ChatStreamOptions& options) const {
  if (options.stop.empty() && !options.answer) return nullptr;
  return std::make_shared<TemplateWatcher>(tokenizer_, markup_, options);
}

std::vector<WantedGrammar> TemplateFormat::forms(const Chat& chat,
                                                 const std::optional<WantedGrammar>& answer) const {
  const auto spec = answer ? std::optional(answer->spec) : std::nullopt;
  auto grammar = answer_grammar(chat, markup_.tools, spec, /*any_schema=*/false);
  if (!grammar) return {};
  WantedGrammar form{.spec = *std::move(grammar), .field = answer ? answer->field : "tools"};
  auto otherwise = answer_grammar(chat, markup_.tools, spec, /*any_schema=*/true);
  if (otherwise->text != form.spec.text) form.otherwise = std::move(otherwise);
  return {std::move(form)};
}

void TemplateFormat::take_forms(const Chat&, bool, std::vector<Grammar> grammars,
                                ChatStreamOptions& options) const {
  if (!grammars.empty()) options.answer = grammars.front();
}

std::vector<int32_t> TemplateFormat::stop_ids(std::vector<int32_t> of_files) const {
  for (const auto& [name, text] : literals_) {
    const auto id = name == "eos_token" ? tokenizer_.find_special(text) : std::nullopt;
    if (id) of_files.push_back(*id);
  }
  return of_files;
}

std::vector<std::pair<std::string, std::string>> template_literals(
    std::string_view tokenizer_config, const std::string& origin) {
  const Json json = Json::parse(tokenizer_config, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) throw Error(ErrorKind::kCheckpoint, origin + ": is not a JSON object");
  std::vector<std::pair<std::string, std::string>> literals;
  for (const char* name : {"bos_token", "eos_token", "pad_token", "unk_token"}) {
    Json token = json.value(name, Json());
    if (token.is_object()) token = token.value("content", Json());
    if (token.is_string()) literals.emplace_back(name, token.get<std::string>());
  }
  return literals;
}

std::string template_of_config(std::string_view tokenizer_config, const std::string& origin) {
  const Json json = Json::parse(tokenizer_config, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) throw Error(ErrorKind::kCheckpoint, origin + ": is not a JSON object");
  const Json found = json.value("chat_template", Json());
  if (found.is_null()) return "";
  if (found.is_string()) return found.get<std::string>();
  std::map<std::string, std::string> named;
  for (const Json& one : found.is_array() ? found : Json::array()) {
    const bool good = one.is_object() && one.value("name", Json()).is_string() &&
                      one.value("template", Json()).is_string();
    if (good) named[one["name"].get<std::string>()] = one["template"].get<std::string>();
  }
  for (const char* name : {"tool_use", "default"}) {
    if (const auto it = named.find(name); it != named.end()) return it->second;
  }
  throw Error(ErrorKind::kCheckpoint,
              origin +
                  ": chat_template: must be a string, or a list of {name, template} with a "
                  "\"default\"");
}

}  // namespace nibble
