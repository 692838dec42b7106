// POST /v1/messages: chats as Anthropic answers them.
#pragma once

#include <string>

#include "server/parted_chat.h"

namespace nibble::server {

class AnthropicMessages final : public PartedChat {
 public:
  AnthropicMessages(const GenerationContext& context, PreparedChat chat,
                    std::shared_ptr<HttpReply> reply);

 private:
  std::string on_start() override;
  std::string on_begin(Part& part) override;
  std::string on_text(Part& part, const std::string& piece) override;
  std::string on_end(Part& part) override;
  std::string on_finish() override;
  Json whole() override;
  std::string error_event(const ApiError& error) const override;

  Json message(Json content) const;
  Json usage_json() const;
  Json stop_json();  // {"stop_reason","stop_sequence"}

  const std::string id_;
};

}  // namespace nibble::server
