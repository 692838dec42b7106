#include "server/anthropic_blocks.h"

#include <algorithm>
#include <array>

#include "server/openai_chat_types.h"

namespace nibble::server {
namespace {

// Keys whose strings are for readers, in any block and in what it holds.
constexpr std::array<std::string_view, 9> kTextKeys = {
    "title", "context", "source", "url", "text", "content", "stdout", "stderr", "error_code"};

// Beside those of results, which end in _tool_result, and those that change what is offered.
constexpr std::array<std::string_view, 10> kKnownTypes = {
    "image",        "document",         "search_result",    "server_tool_use",
    "mcp_tool_use", "container_upload", "mcp_tool_listing", "browser_state",
    "compaction",   "fallback"};

bool is_one_of(const auto& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

std::string left_out(std::string_view what) {
  return "[left out: " + std::string(what) + ", since this model takes text only]";
}

std::string string_of(const Json& object, const char* name) {
  const auto at = object.find(name);
  return at != object.end() && at->is_string() ? at->get<std::string>() : std::string();
}

// Gathers the texts in a value, a line each, in its order.
class TextGatherer {
 public:
  TextGatherer(ToolOffer& tools, std::optional<ApiError>& error) : tools_(tools), error_(error) {}

  void gather(const Json& value) {  // as deep as a body may be
    if (value.is_array()) {
      for (const Json& one : value) gather(one);
    } else if (value.is_object()) {
      gather_object(value, string_of(value, "type"));
    }
  }
  std::string take() { return std::move(text_); }

 private:
  void gather_object(const Json& object, const std::string& type) {
    if (type == "tool_reference") {
      const std::string name = string_of(object, "tool_name");
      add_line(text_, tools_.offer(name) ? "[" + name + " can be called from now on]"
                                         : "[there is no tool " + name + "]");
    } else if (type == "tool_addition" || type == "tool_removal") {
      change_tools(object, type == "tool_addition");
    } else if (type == "server_tool_use" || type == "mcp_tool_use") {
      const auto input = object.find("input");
      add_line(text_, "[the server ran " + string_of(object, "name") + " with " +
                          (input == object.end() ? "{}" : to_text(*input)) + "]");
    } else {
      for (const auto& [key, inner] : object.items()) {
        if (key == "source" && inner.is_object()) {
          gather_source(inner, type);
        } else if (!inner.is_string()) {
          gather(inner);
        } else if (is_one_of(kTextKeys, key)) {
          add_line(text_, inner.get<std::string>());
        }
      }
    }
  }

  // A file: its text, or that it is none.
  void gather_source(const Json& source, const std::string& of) {
    const std::string type = string_of(source, "type");
    if (type == "text") return add_line(text_, string_of(source, "data"));
    if (type == "content") return gather(source.value("content", Json()));
    const std::string media = string_of(source, "media_type");
    add_line(text_, left_out(of + (media.empty() ? "" : " of type " + media)));
  }

  void change_tools(const Json& block, bool offered) {
    const auto change = block.find("tool");
    if (change == block.end()) return;
    const auto definition = change->find("definition");
    if (definition != change->end()) {
      JsonFields fields(*definition, "tool.definition", error_);
      tools_.declare(fields);
    }
    tools_.offer(string_of(definition == change->end() ? *change : *definition, "name"), offered);
  }

  ToolOffer& tools_;
  std::optional<ApiError>& error_;
  std::string text_;
};

}  // namespace

void ToolOffer::declare(JsonFields& tool) {
  if (tool.string("type", "custom") != "custom") return;  // Anthropic runs it, not the client
  FunctionTool function{.name = read_name(tool, "name"), .description = tool.string("description")};
  if (const Json* schema = tool.object("input_schema")) function.parameters = to_text(*schema);
  function.strict = tool.boolean("strict", false);
  const bool deferred = tool.boolean("defer_loading", false);
  if (tool.failed()) return;
  const auto [at, is_new] = index_.try_emplace(function.name, entries_.size());
  if (is_new) entries_.emplace_back();
  entries_[at->second] = {.tool = std::move(function), .offered = !deferred};
}

bool ToolOffer::offer(std::string_view name, bool offered) {
  const auto at = index_.find(name);
  if (at == index_.end()) return false;
  entries_[at->second].offered = offered;
  return true;
}

std::vector<FunctionTool> ToolOffer::offered() const {
  std::vector<FunctionTool> list;
  for (const Entry& entry : entries_) {
    if (entry.offered) list.push_back(entry.tool);
  }
  return list;
}

std::string read_other_block(JsonFields& block, const std::string& type, ToolOffer& tools) {
  const bool changes_tools =
      type == "tool_reference" || type == "tool_addition" || type == "tool_removal";
  if (!changes_tools && !is_one_of(kKnownTypes, type) && !type.ends_with("_tool_result")) {
    block.fail("type", "is none that the API has");
    return {};
  }
  TextGatherer gatherer(tools, block.error());
  gatherer.gather(block.json());
  const std::string text = gatherer.take();
  return text.empty() && !changes_tools ? left_out(type) : text;
}

void add_line(std::string& text, const std::string& line) {
  if (line.empty()) return;
  if (!text.empty()) text += "\n";
  text += line;
}

}  // namespace nibble::server
