// POST /v1/chat/completions: chats as OpenAI answers them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/chat_generation.h"

namespace nibble::server {

class OpenAiChat final : public ChatGeneration {
 public:
  OpenAiChat(const GenerationContext& context, PreparedChat chat, std::shared_ptr<HttpReply> reply);

 private:
  // Of one choice; streaming: what has not been sent.
  struct Pending {
    Json logprobs = Json::array();  // of content
    std::vector<int32_t> ids;       // all
  };

  void on_step(size_t index, const Step& step) override;
  void on_all_ended() override;

  std::string chunks(Choice& choice, size_t index, const ChatDelta& delta);
  Json chunk(size_t index, Json delta, const std::string& finish = {});
  Json message(const Choice& choice) const;
  std::string finish(const Choice& choice) const;

  const std::string id_;
  std::vector<Pending> pending_;
};

}  // namespace nibble::server
