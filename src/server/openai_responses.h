// POST /v1/responses: chats as OpenAI's newer API answers them.
#pragma once

#include <string>
#include <vector>

#include "server/parted_chat.h"
#include "server/responses_types.h"

namespace nibble::server {

class OpenAiResponses final : public PartedChat {
 public:
  OpenAiResponses(const GenerationContext& context, PreparedChat chat, Json echo,
                  std::shared_ptr<HttpReply> reply);

 private:
  void on_content_token(const Output& output) override;
  std::string on_start() override;
  std::string on_begin(Part& part) override;
  std::string on_text(Part& part, const std::string& piece) override;
  std::string on_end(Part& part) override;
  std::string on_finish() override;
  Json whole() override;
  std::string error_event(const ApiError& error) const override;

  // {"type","sequence_number"} and the fields, as an event.
  std::string event(const char* type, const Json& fields);
  Json response(const char* status, Json output) const;
  Json item(const Part& part, const char* status) const;
  Json content_part(const Part& part, const std::string& text) const;

  const Json echo_;
  const std::string id_;
  int64_t next_number_ = 0;
  Json pending_ = Json::array();  // logprobs of tokens whose text has not come yet
};

}  // namespace nibble::server
