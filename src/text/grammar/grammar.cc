#include "text/grammar/grammar.h"

#include <sched.h>
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <thread>

#include "base/check.h"
#include "base/log.h"
#include "text/grammar/json_text.h"
#include "text/grammar/kept_schema.h"
#include "text/grammar/regex_text.h"
#include "text/grammar/string_budgets.h"
#include "text/grammar/tag_parts.h"
#include "text/json_scan.h"

namespace {

// What xgrammar warns of on this thread; null: nobody asks.
thread_local std::vector<std::string>* t_warnings = nullptr;

}  // namespace

// xgrammar's, left open by XGRAMMAR_LOG_CUSTOMIZE.
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string&, int, const std::string& message);
void LogMessageImpl(const std::string&, int, int level, const std::string& message);

void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw std::runtime_error(message);
}

void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
  constexpr int kWarning = 2;
  if (level >= kWarning && t_warnings != nullptr) t_warnings->push_back(message);
}

}  // namespace xgrammar

namespace nibble {
namespace {

constexpr int64_t kCacheBytes = 128 << 20;
constexpr size_t kMaxSchemaBytes = 128 << 10;
constexpr size_t kMaxPatternBytes = 4 << 10;
constexpr size_t kMaxEbnfBytes = 64 << 10;
constexpr size_t kMaxChoices = 1'024;
constexpr size_t kMaxAlternatives = 256;  // of one anyOf or oneOf; with their number grows the
                                          // square of the time
constexpr int kMaxNesting = 64;  // of groups, which cost time at every token, or JSON, which is
                                 // parsed by recursion
// Blanks between the tokens of JSON: a small model likes to go on with them for ever.
constexpr int kMaxBlanks = 16;

// Of a schema, its objects and arrays open where it says nothing of others; as xgrammar has it in
// tags, closed.
xgrammar::Grammar rules_of(const std::string& schema, bool in_tag = false) {
  const std::optional<int> blanks = in_tag ? std::nullopt : std::optional(kMaxBlanks);
  return xgrammar::Grammar::FromJSONSchema(schema, /*any_whitespace=*/true, /*indent=*/std::nullopt,
                                           /*separators=*/std::nullopt, /*strict_mode=*/in_tag,
                                           blanks);
}

// Rules that compile faster than the schema does (string_budgets.h); "": its own.
std::string faster_rules(const std::string& schema, bool in_tag) {
  if (schema.find("maxLength") == std::string::npos) return "";
  try {
    const std::string rules = rules_of(schema, in_tag).ToString();
    std::string budgeted = with_string_budgets(rules);
    return budgeted == rules ? "" : budgeted;
  } catch (const std::exception&) {  // what is not valid is said when it is compiled
    return "";
  }
}

// One line, without the place in xgrammar's source and what of it did not hold.
std::string first_line(std::string_view text) {
  constexpr std::string_view kCheck = "Check failed: ", kCondition = ") is false: ";
  const size_t condition = text.find(kCondition);
  if (text.starts_with(kCheck) && condition != text.npos) {
    text.remove_prefix(condition + kCondition.size());
  }
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  return std::string(text.substr(0, std::min<size_t>(text.find('\n'), 300)));
}

// A literal of EBNF.
std::string ebnf_literal(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string choice_rules(const std::vector<std::string>& choices) {
  std::string rules = "root ::= ";
  for (size_t i = 0; i < choices.size(); ++i)
    rules += (i > 0 ? " | " : "") + ebnf_literal(choices[i]);
  return rules;
}

// An upper bound: brackets in literals and classes are counted too.
int nesting_of(std::string_view text) {
  int depth = 0, deepest = 0;
  for (const char c : text) {
    if (c == '(') deepest = std::max(deepest, ++depth);
    if (c == ')') --depth;
  }
  return deepest;
}

// Objects and arrays within each other; brackets in strings are none.
int json_nesting_of(std::string_view text) {
  int depth = 0, deepest = 0;
  for_each_outside_strings(text, [&](char c) {
    if (c == '{' || c == '[') deepest = std::max(deepest, ++depth);
    if (c == '}' || c == ']') --depth;
    return true;
  });
  return deepest;
}

// Why it would take too long to compile, or "".
std::string too_wide(const nlohmann::json& schema) {
  if (!schema.is_structured()) return "";
  for (const auto& [key, value] : schema.items()) {
    const bool is_key = schema.is_object() && value.is_array();
    const size_t most = key == "enum" ? kMaxChoices : kMaxAlternatives;
    if (is_key && (key == "enum" || key == "anyOf" || key == "oneOf") && value.size() > most) {
      return "has " + std::to_string(value.size()) + " values in one \"" + key + "\"; at most " +
             std::to_string(most) + " are compiled";
    }
    if (std::string found = too_wide(value); !found.empty()) return found;
  }
  return "";
}

// Whether xgrammar keeps to a pattern inside a JSON string: not where it spells it by rules of its
// own, which know no escapes.
bool fits_in_json(const std::string& pattern) {
  if (!numbers_characters(pattern)) return false;
  const nlohmann::json schema = {{"type", "string"}, {"pattern", pattern}};
  try {
    return rules_of(schema.dump()).ToString().find(" ::= Regex(") != std::string::npos;
  } catch (const std::exception&) {
    return true;  // what is wrong with it is said when it is compiled
  }
}

// The first thing that xgrammar leaves out with a warning; "": nothing.
std::string left_out(const GrammarSpec& spec) {
  std::vector<std::string> warnings;
  t_warnings = &warnings;
  try {
    if (spec.kind == GrammarSpec::Kind::kJsonSchema) rules_of(spec.text);
    if (spec.kind == GrammarSpec::Kind::kRegex) xgrammar::Grammar::FromRegex(spec.text);
    if (spec.kind == GrammarSpec::Kind::kEbnf) xgrammar::Grammar::FromEBNF(spec.text);
  } catch (const std::exception&) {  // what is not valid is said when it is compiled
  }
  t_warnings = nullptr;
  return warnings.empty() ? "" : first_line(warnings[0]);
}

// Rewrites schemas and patterns into what xgrammar keeps to, each part of a tag by its own
// strictness; why it would not, or "".
std::string keep(GrammarSpec& spec) {
  if (spec.kind == GrammarSpec::Kind::kStructuralTag) {
    return keep_parts(spec.text, keep, [](const std::string& schema) {
      return faster_rules(schema, /*in_tag=*/true);
    });
  }
  std::string why;
  if (spec.kind == GrammarSpec::Kind::kJsonSchema) {
    const auto json = nlohmann::json::parse(spec.text, nullptr, /*allow_exceptions=*/false);
    if (why = too_wide(json); !why.empty()) return why;
    spec.text = with_patterns_for_formats(spec.text);
    keep_schema(spec.text, spec.lenient, fits_in_json, why);
  } else if (spec.kind == GrammarSpec::Kind::kRegex) {
    spec.text = as_converted(spec.text);
  } else if (spec.kind == GrammarSpec::Kind::kEbnf &&
             !numbers_characters(without_comments(spec.text))) {
    why = "an escape is the number of no character";
  }
  if (why.empty() && !spec.lenient) why = left_out(spec);
  return why.empty() ? "" : "asks for what would not be kept to: " + why;
}

bool is_json(GrammarSpec::Kind kind) {
  return kind == GrammarSpec::Kind::kJsonSchema || kind == GrammarSpec::Kind::kStructuralTag;
}

// Of the processors that this process may use a fourth: decoding goes on beside it.
int num_threads() {
  cpu_set_t mine;
  const bool known = sched_getaffinity(0, sizeof mine, &mine) == 0;
  const int all = known ? CPU_COUNT(&mine) : static_cast<int>(std::thread::hardware_concurrency());
  return std::clamp(all / 4, 1, 8);
}

xgrammar::CompiledGrammar compile_with(xgrammar::GrammarCompiler& compiler,
                                       const GrammarSpec& spec) {
  const auto from_schema = [&](const std::string& schema) {
    const std::string rules = faster_rules(schema, /*in_tag=*/false);
    if (!rules.empty()) return compiler.CompileGrammar(rules);
    return compiler.CompileJSONSchema(schema, /*any_whitespace=*/true, /*indent=*/std::nullopt,
                                      /*separators=*/std::nullopt, /*strict_mode=*/false,
                                      kMaxBlanks);
  };
  switch (spec.kind) {
    case GrammarSpec::Kind::kJsonObject:
      return from_schema(R"({"type":"object"})");
    case GrammarSpec::Kind::kJsonSchema:
      return from_schema(spec.text);
    case GrammarSpec::Kind::kRegex:
      return compiler.CompileRegex(spec.text);
    case GrammarSpec::Kind::kChoice:
      return compiler.CompileGrammar(choice_rules(spec.choices));
    case GrammarSpec::Kind::kEbnf:
      return compiler.CompileGrammar(spec.text);
    case GrammarSpec::Kind::kStructuralTag:
      return compiler.CompileStructuralTag(spec.text);
  }
  CHECK(false);
}

}  // namespace

GrammarVocabulary::GrammarVocabulary(const Tokenizer& tokenizer, int32_t vocab_size)
    : bytes(static_cast<size_t>(vocab_size)) {
  for (int32_t id = 0; id < std::min(vocab_size, tokenizer.size()); ++id) {
    if (!tokenizer.is_special(id)) bytes[id] = tokenizer.token_bytes(id);
  }
}

struct GrammarCompiler::Impl {
  // No id ends a text here: xgrammar leaves those of its list that a run's own list replaces
  // allowed wherever most tokens are, as inside strings.
  explicit Impl(const GrammarVocabulary& vocabulary)
      : vocab_size(static_cast<int32_t>(vocabulary.bytes.size())),
        tokenizer(vocabulary.bytes, xgrammar::VocabType::RAW, vocab_size,
                  /*stop_token_ids=*/std::vector<int32_t>{}),
        compiler(tokenizer, num_threads(), /*cache_enabled=*/true, kCacheBytes),
        uncached(tokenizer, num_threads(), /*cache_enabled=*/false) {}

  xgrammar::CompiledGrammar compile(const GrammarSpec& spec);

  const int32_t vocab_size;
  const xgrammar::TokenizerInfo tokenizer;
  xgrammar::GrammarCompiler compiler;
  // Its cache fails an internal check where a schema's pattern repeats something more than 128
  // times.
  xgrammar::GrammarCompiler uncached;
};

xgrammar::CompiledGrammar GrammarCompiler::Impl::compile(const GrammarSpec& spec) {
  try {
    return compile_with(compiler, spec);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception&) {
    return compile_with(uncached, spec);  // what is not valid fails again, as soon as it is parsed
  }
}

GrammarCompiler::GrammarCompiler(const GrammarVocabulary& vocabulary)
    : impl_(std::make_unique<Impl>(vocabulary)) {}
GrammarCompiler::GrammarCompiler(const Tokenizer& tokenizer, int32_t vocab_size)
    : GrammarCompiler(GrammarVocabulary(tokenizer, vocab_size)) {}

GrammarCompiler::~GrammarCompiler() = default;

Result<bool> GrammarCompiler::check_size(const GrammarSpec& spec) {
  const bool has_groups =
      spec.kind == GrammarSpec::Kind::kRegex || spec.kind == GrammarSpec::Kind::kEbnf;
  if (has_groups && nesting_of(spec.text) > kMaxNesting) {
    return Failure{"has groups nested deeper than " + std::to_string(kMaxNesting)};
  }
  if (is_json(spec.kind) && json_nesting_of(spec.text) > kMaxNesting) {
    return Failure{"is nested deeper than " + std::to_string(kMaxNesting) + " levels"};
  }
  const auto at_most = [](size_t size, size_t limit, const char* what) -> Result<bool> {
    if (size <= limit) return true;
    return Failure{"has " + std::to_string(size) + " " + what + "; at most " +
                   std::to_string(limit) + " are compiled"};
  };
  switch (spec.kind) {
    case GrammarSpec::Kind::kJsonObject:
      return true;
    case GrammarSpec::Kind::kJsonSchema:
    case GrammarSpec::Kind::kStructuralTag:
      return at_most(spec.text.size(), kMaxSchemaBytes, "bytes");
    case GrammarSpec::Kind::kRegex:
      return at_most(spec.text.size(), kMaxPatternBytes, "bytes");
    case GrammarSpec::Kind::kEbnf:
      return at_most(spec.text.size(), kMaxEbnfBytes, "bytes");
    case GrammarSpec::Kind::kChoice:
      return at_most(spec.choices.size(), kMaxChoices, "choices");
  }
  CHECK(false);
}

namespace {

class LocalMatcher final : public GrammarMatcher {
 public:
  LocalMatcher(const xgrammar::CompiledGrammar& grammar, int32_t vocab_size,
               const std::vector<int32_t>& end_ids)
      : matcher_(grammar, std::vector<int>(end_ids.begin(), end_ids.end())),
        allowed_(static_cast<size_t>(xgrammar::GetBitmaskSize(vocab_size))) {}

  bool accept(int32_t id) override;
  void rollback_to(size_t count) override;
  size_t num_accepted() const override { return num_accepted_; }
  void mask(std::span<uint32_t> bits) override;

 private:
  xgrammar::GrammarMatcher matcher_;
  std::vector<int32_t> allowed_;
  size_t num_accepted_ = 0;
};

bool LocalMatcher::accept(int32_t id) {
  const bool fits = !matcher_.IsTerminated() && matcher_.AcceptToken(id);
  num_accepted_ += fits;
  return fits;
}

void LocalMatcher::rollback_to(size_t count) {
  CHECK(count <= num_accepted_);
  if (count < num_accepted_) matcher_.Rollback(static_cast<int>(num_accepted_ - count));
  num_accepted_ = count;
}

void LocalMatcher::mask(std::span<uint32_t> bits) {
  if (matcher_.IsTerminated()) return std::fill(bits.begin(), bits.end(), 0);
  int64_t shape = static_cast<int64_t>(allowed_.size());
  int64_t stride = 1;
  DLTensor tensor{.data = allowed_.data(),
                  .device = {.device_type = kDLCPU, .device_id = 0},
                  .ndim = 1,
                  .dtype = xgrammar::GetBitmaskDLType(),
                  .shape = &shape,
                  .strides = &stride,
                  .byte_offset = 0};
  const bool some_forbidden = matcher_.FillNextTokenBitmask(&tensor);
  for (size_t word = 0; some_forbidden && word < bits.size(); ++word) {
    bits[word] &= word < allowed_.size() ? static_cast<uint32_t>(allowed_[word]) : 0;
  }
}

}  // namespace

Result<Grammar> GrammarCompiler::compile(const GrammarSpec& spec) const {
  if (const auto size = check_size(spec); !size) return Failure{size.error()};
  // xgrammar reads a value and not what stands behind it, which keep() would leave as it is.
  if (is_json(spec.kind) && !nlohmann::json::accept(spec.text)) {
    return Failure{"cannot be compiled: it is not valid JSON"};
  }
  GrammarSpec kept = spec;
  if (std::string why = keep(kept); !why.empty()) return Failure{std::move(why)};
  try {
    return Grammar([compiled = impl_->compile(kept),
                    vocab_size = impl_->vocab_size](const std::vector<int32_t>& end_ids) {
      return std::make_unique<LocalMatcher>(compiled, vocab_size, end_ids);
    });
  } catch (const std::bad_alloc&) {
    return Failure{"needs more memory than a grammar may have: make it smaller"};
  } catch (const std::exception& e) {
    const std::string failure = first_line(e.what());
    return Failure{"cannot be compiled: " + (failure.empty() ? "it is not valid" : failure)};
  }
}

}  // namespace nibble
