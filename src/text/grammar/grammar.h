// Grammars: which ids may come next so that a text is of a given form. Compiled by xgrammar
// (github.com/mlc-ai/xgrammar), whose types end in grammar.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/token_watcher.h"
#include "text/tokenizer/tokenizer.h"

namespace nibble {

// What a caller wants a text to be.
struct GrammarSpec {
  enum class Kind {
    kJsonObject,    // any JSON object
    kJsonSchema,    // text: a JSON Schema
    kRegex,         // text: a regular expression, of the whole text
    kChoice,        // one of `choices`
    kEbnf,          // text: rules in xgrammar's EBNF, from "root" on
    kStructuralTag  // text: xgrammar's structural tag, of JSON, schemas and literals; not a
                    // caller's
  };
  Kind kind = Kind::kJsonObject;
  std::string text = {};
  std::vector<std::string> choices = {};
  bool lenient = false;  // parts of a schema that cannot be kept to are left out, not refused
};

// A grammar that an answer has to follow.
struct WantedGrammar {
  GrammarSpec spec;
  std::string field = {};  // of the request, for errors
  // Where the schema cannot be compiled, or not in time, this will do: OpenAI's tools without
  // "strict" promise no more than JSON.
  std::optional<GrammarSpec> otherwise = {};
};

// What follows one text; see GrammarRun.
class GrammarMatcher {
 public:
  virtual ~GrammarMatcher() = default;
  virtual bool accept(int32_t id) = 0;
  virtual void rollback_to(size_t count) = 0;
  virtual size_t num_accepted() const = 0;
  virtual void mask(std::span<uint32_t> bits) = 0;
  virtual MaskState mask_state() const { return MaskState::kReady; }
  virtual std::string fault() const { return ""; }
  virtual void on_mask(std::function<void()> /*changed*/) {}
};

// A compiled grammar, in this process or another. A copy is a pointer; any number of threads may
// use it.
class Grammar {
 public:
  using Start = std::function<std::unique_ptr<GrammarMatcher>(const std::vector<int32_t>& end_ids)>;
  explicit Grammar(Start start) : start_(std::make_shared<const Start>(std::move(start))) {}
  std::unique_ptr<GrammarMatcher> start(const std::vector<int32_t>& end_ids) const {
    return (*start_)(end_ids);
  }

 private:
  std::shared_ptr<const Start> start_;
};

// The texts of all ids; one that never fits is empty. As many as the model's logits have columns.
struct GrammarVocabulary {
  GrammarVocabulary() = default;
  GrammarVocabulary(const Tokenizer& tokenizer, int32_t vocab_size);
  std::vector<std::string> bytes;
};

// Immutable but for its cache; thread-safe.
class GrammarCompiler {
 public:
  // Sorts the vocabulary: 0.2 s for 200,000 ids.
  explicit GrammarCompiler(const GrammarVocabulary& vocabulary);
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
  GrammarRun(const Grammar& grammar, const std::vector<int32_t>& end_ids)
      : matcher_(grammar.start(end_ids)) {}

  // False: the id does not fit, and the run is where it was.
  bool accept(int32_t id) { return matcher_->accept(id); }
  // Back to when `count` ids had been accepted.
  void rollback_to(size_t count) { matcher_->rollback_to(count); }
  size_t num_accepted() const { return matcher_->num_accepted(); }

  // Leaves the bits of ids that may come next. The end ids are among them where the text may end;
  // nothing is left behind the end, and where nothing fits (a grammar that forbids every token).
  void mask(std::span<uint32_t> bits) { matcher_->mask(bits); }

  // As a TokenWatcher's.
  MaskState mask_state() const { return matcher_->mask_state(); }
  std::string fault() const { return matcher_->fault(); }
  void on_mask(std::function<void()> changed) { matcher_->on_mask(std::move(changed)); }

 private:
  std::unique_ptr<GrammarMatcher> matcher_;
};

}  // namespace nibble
