// How models that speak a template write their calls of functions (the names are vLLM's):
//   hermes       <tool_call>\n{"name": "f", "arguments": {...}}\n</tool_call>, any number
//   qwen3_coder
//   <tool_call>\n<function=f>\n<parameter=p>\nvalue\n</parameter>\n</function>\n</tool_call>
//   llama3_json  [<|python_tag|>]{"name": "f", "parameters": {...}}, more behind ";"
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/chat/chat.h"
#include "text/grammar/grammar.h"

namespace nibble {

enum class ToolFormat { kNone, kHermes, kQwen3Coder, kLlama3Json };

// What a template is read with besides the template.
struct AnswerMarkup {
  ToolFormat tools = ToolFormat::kNone;
  bool think = false;  // reasoning between <think> and </think>
};

// vLLM's names; a failure lists those that are known. "none" is known too.
Result<ToolFormat> parse_tool_format(std::string_view name);
// Whether reasoning is told apart.
Result<bool> parse_reasoning_format(std::string_view name);

// By what the template itself writes.
AnswerMarkup markup_of_template(std::string_view source);
// Whether the template writes calls like this: else the model does not know the format.
bool template_has(std::string_view source, ToolFormat format);

// The grammar of all behind the reasoning: calls as tool_choice wants them, their arguments by the
// functions' schemas, `answer` for the content. None where nothing is to be enforced. `any_schema`:
// arguments of functions that are not strict may be any object.
std::optional<GrammarSpec> answer_grammar(const Chat& chat, ToolFormat format,
                                          const std::optional<GrammarSpec>& answer,
                                          bool any_schema);

// The size of the parameter's name that the text begins with (qwen3_coder), which a ">" follows:
// one that the function has, or up to the first ">"; npos: there is none.
size_t parameter_name_size(const FunctionTool* tool, std::string_view text);

// A parameter's text (qwen3_coder) as JSON, by the type that the function's schema gives it.
std::string typed_parameter(const FunctionTool* tool, const std::string& name, std::string text);

}  // namespace nibble
