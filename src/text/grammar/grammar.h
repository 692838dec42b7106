// Grammars: which ids may come next so that a text is of a given form. Compiled by xgrammar
// (github.com/mlc-ai/xgrammar), whose types end in grammar.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "text/tokenizer/tokenizer.h"

namespace nibble {

// What a caller wants a text to be.
struct GrammarSpec {
  enum class Kind {
    kJsonObject,  // any JSON object
    kJsonSchema,  // text: a JSON Schema
    kRegex,       // text: a regular expression, of the whole text
    kChoice,      // one of `choices`
    kEbnf         // text: rules in xgrammar's EBNF, from "root" on
  };
  Kind kind = Kind::kJsonObject;
  std::string text = {};
  std::vector<std::string> choices = {};
  bool lenient = false;  // parts of a schema that cannot be kept to are left out, not refused
};

// A compiled grammar. A copy is a pointer; any number of threads may use it.
class Grammar {
 public:
  struct Compiled;
  explicit Grammar(std::shared_ptr<const Compiled> compiled) : compiled_(std::move(compiled)) {}
  const Compiled& compiled() const { return *compiled_; }

 private:
  std::shared_ptr<const Compiled> compiled_;
};

// Immutable but for its cache; thread-safe.
class GrammarCompiler {
 public:
  // `vocab_size`: columns of the model's logits. Sorts the vocabulary: 0.2 s for 200,000 ids.
  GrammarCompiler(const Tokenizer& tokenizer, int32_t vocab_size);
  ~GrammarCompiler();

  // A failure is fit for the caller (HTTP 400): what is not valid, and what would not be kept to (a
  // keyword or assertion that xgrammar ignores). Takes milliseconds for what people write; 10 s was
  // the worst that was found to pass check_size() (20,000 enum values, maxLength 100,000).
  Result<Grammar> compile(const GrammarSpec& spec) const;

  // Why a grammar is too large, if it is.
  static Result<bool> check_size(const GrammarSpec& spec);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// One text that follows a grammar, id by id.
class GrammarRun {
 public:
  // `end_ids`: those that may end this text, at least one. They come nowhere else in it, and no
  // other special token does.
  GrammarRun(const Grammar& grammar, const std::vector<int32_t>& end_ids);
  ~GrammarRun();

  // False: the id does not fit, and the run is where it was.
  bool accept(int32_t id);
  // Back to when `count` ids had been accepted.
  void rollback_to(size_t count);
  size_t num_accepted() const;

  // Leaves the bits of ids that may come next. The end ids are among them where the text may end;
  // nothing is left behind the end, and where nothing fits (a grammar that forbids every token).
  void mask(std::span<uint32_t> bits);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble
