// Content blocks of Anthropic's messages as text for a model that takes text only, and the tools
// that they bring into a conversation or take out of it.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "server/json_fields.h"
#include "text/chat/chat.h"

namespace nibble::server {

// The tools of a request. One with `defer_loading` is not offered before a block of the
// conversation names it: its client says what there is by other means, a search for tools.
class ToolOffer {
 public:
  // An object of `tools`; a second one of a name takes the first one's place. Those that
  // Anthropic's servers run are left out.
  void declare(JsonFields& tool);
  // False: no such tool.
  bool offer(std::string_view name, bool offered = true);
  // What is offered now, in the order of declaration.
  std::vector<FunctionTool> offered() const;

 private:
  struct Entry {
    FunctionTool tool;
    bool offered;
  };
  std::vector<Entry> entries_;
  std::map<std::string, size_t, std::less<>> index_;  // of names
};

// What a block other than text, thinking, tool_use and tool_result says: the texts in it, and in
// brackets what this model cannot take, so that a history with it can go on. Fails for a type that
// the API does not have.
std::string read_other_block(JsonFields& block, const std::string& type, ToolOffer& tools);

void add_line(std::string& text, const std::string& line);

// Calls f(block, type) for each block of the content; a string counts as one text block.
template <typename F>
void for_each_block(JsonFields& fields, const char* name, F f) {
  const Json* content = fields.find(name);
  if (!content) return;
  if (content->is_string()) {
    const Json block = {{"type", "text"}, {"text", *content}};
    JsonFields inner(block, fields.path_of(name), fields.error());
    return f(inner, "text");
  }
  if (!content->is_array()) return fields.fail(name, "has to be a string or an array of blocks");
  for (size_t i = 0; i < content->size() && !fields.failed(); ++i) {
    const std::string path = fields.path_of(name) + "[" + std::to_string(i) + "]";
    JsonFields block((*content)[i], path, fields.error());
    f(block, block.string("type"));
  }
}

}  // namespace nibble::server
