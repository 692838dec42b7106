// Who may ask: the API key, and which web pages. A page of any site can make a browser send
// requests to a server on its own machine; these rules keep it out.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"
#include "server/http.h"

namespace nibble::server {

struct AccessRules {
  std::vector<std::string> api_keys;  // empty: no key is asked for
  // Names that the Host header may have besides IP addresses and localhost. A name that a stranger
  // points at this machine (DNS rebinding) is not among them. nullopt: any, for servers that are
  // meant to be reached from elsewhere.
  std::optional<std::vector<std::string>> allowed_hosts;
  // Origins of web pages besides the server's own and those on localhost; "*": any.
  std::vector<std::string> allowed_origins;
};

// The headers that tell a browser what it may do are appended to `reply_headers`. `guarded`: needs
// the key.
std::optional<ApiError> check_access(const AccessRules& rules, const HttpRequest& head,
                                     bool guarded, HttpHeaders& reply_headers);

// Whose request it is, of which each is to have its turn: of several keys the one that is given,
// else the address that it comes from.
std::string client_of(const AccessRules& rules, const HttpRequest& head);

// Takes the same time wherever the texts differ.
bool same_secret(std::string_view given, std::string_view secret);

}  // namespace nibble::server
