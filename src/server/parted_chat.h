// A chat whose answer is a row of parts (a thought, a text, a call, ...), as Anthropic's messages
// and OpenAI's responses show it, streamed part by part or whole.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/chat_generation.h"

namespace nibble::server {

class PartedChat : public ChatGeneration {
 public:
  using ChatGeneration::ChatGeneration;

 protected:
  enum class Kind { kReasoning, kText, kCall };
  struct Part {
    Kind kind;
    size_t index;           // among the parts
    std::string text;       // so far; of a call: its arguments
    std::string call_id;    // kCall
    std::string call_name;  // kCall
    std::string id;         // of derived classes, as is the rest
    Json logprobs = Json::array();
  };

  // A token of the content, before what it adds to the text.
  virtual void on_content_token(const Output&) {}
  // What is streamed for each. A part's text is complete at its end.
  virtual std::string on_start() = 0;
  virtual std::string on_begin(Part& part) = 0;
  virtual std::string on_text(Part& part, const std::string& piece) = 0;
  virtual std::string on_end(Part& part) = 0;
  virtual std::string on_finish() = 0;
  // The whole answer, where it is not streamed.
  virtual Json whole() = 0;

  const std::vector<Part>& parts() const { return parts_; }
  Choice& choice() { return choices().front(); }

 private:
  void on_step(size_t index, const Step& step) final;
  void on_all_ended() final;

  std::string enter(Kind kind);
  std::string begin(Part part);
  std::string add(const std::string& piece);
  std::string end();

  std::vector<Part> parts_;
  bool is_open_ = false;  // the last one
};

}  // namespace nibble::server
