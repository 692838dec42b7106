#include "server/access.h"

#include <algorithm>
#include <cctype>

namespace nibble::server {
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return out;
}

// "[::1]:8000" -> "[::1]"; "localhost:8000" -> "localhost"
std::string_view without_port(std::string_view host) {
  const size_t colon = host.rfind(':');
  const size_t bracket = host.rfind(']');
  if (colon == std::string_view::npos) return host;
  if (bracket != std::string_view::npos && bracket > colon) return host;
  return host.substr(0, colon);
}

bool is_ip_address(std::string_view name) {
  if (name.starts_with('[') && name.ends_with(']')) return true;
  return !name.empty() && std::all_of(name.begin(), name.end(),
                                      [](unsigned char c) { return std::isdigit(c) || c == '.'; });
}

bool is_localhost(std::string_view name) {
  return name == "localhost" || name.ends_with(".localhost") || name == "[::1]" ||
         (name.starts_with("127.") && is_ip_address(name));
}

// No page can make a browser leave Host out: without it comes HTTP/1.0 alone (http_head.h), of
// programs.
bool host_allowed(const AccessRules& rules, const HttpRequest& head) {
  const auto is_host = [](const auto& field) { return field.first == "host"; };
  if (!rules.allowed_hosts || std::ranges::none_of(head.headers, is_host)) return true;
  const std::string name = lower(without_port(head.header("host")));
  if (is_ip_address(name) || is_localhost(name)) return true;
  const auto& list = *rules.allowed_hosts;
  return std::any_of(list.begin(), list.end(),
                     [&](const std::string& allowed) { return lower(allowed) == name; });
}

bool origin_allowed(const AccessRules& rules, std::string_view origin, std::string_view host) {
  const auto& list = rules.allowed_origins;
  if (std::find(list.begin(), list.end(), "*") != list.end()) return true;
  if (std::find(list.begin(), list.end(), origin) != list.end()) return true;
  const size_t scheme = origin.find("://");
  if (scheme == std::string_view::npos) return false;  // "null": a file, a sandboxed frame
  const std::string authority = lower(origin.substr(scheme + 3));
  return (!host.empty() && authority == lower(host)) || is_localhost(without_port(authority));
}

// "Authorization: Bearer KEY", as OpenAI's clients send it, or "X-Api-Key: KEY", as Anthropic's do.
// Which of the keys; nullopt: none.
std::optional<size_t> key_given(const AccessRules& rules, const HttpRequest& head) {
  std::string_view bearer = head.header("authorization");
  constexpr std::string_view kBearer = "bearer ";
  const bool has_scheme = lower(bearer.substr(0, kBearer.size())) == kBearer;
  bearer.remove_prefix(has_scheme ? kBearer.size() : bearer.size());
  const std::string_view plain = head.header("x-api-key");
  std::optional<size_t> found;  // every key is compared, found or not
  for (size_t i = 0; i < rules.api_keys.size(); ++i) {
    const std::string& key = rules.api_keys[i];
    const bool is_bearer = same_secret(bearer, key), is_plain = same_secret(plain, key);
    if (!key.empty() && (is_bearer || is_plain)) found = i;
  }
  return found;
}

}  // namespace

bool same_secret(std::string_view given, std::string_view secret) {
  unsigned char differ = given.size() == secret.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    const char expected = secret.empty() ? '\0' : secret[i % secret.size()];
    differ |= static_cast<unsigned char>(given[i] ^ expected);
  }
  return differ == 0;
}

std::string client_of(const AccessRules& rules, const HttpRequest& head) {
  const auto key = rules.api_keys.size() > 1 ? key_given(rules, head) : std::nullopt;
  return key ? "key " + std::to_string(*key) : head.peer;
}

std::optional<ApiError> check_access(const AccessRules& rules, const HttpRequest& head,
                                     bool guarded, HttpHeaders& reply_headers) {
  const std::string_view host = head.header("host");
  if (!host_allowed(rules, head)) {
    return ApiError{.status = 403,
                    .message = "this server is not known as \"" + std::string(host) +
                               "\"; start it with --allowed-hosts to allow the name"};
  }
  const std::string_view origin = head.header("origin");
  if (!origin.empty()) {
    if (!origin_allowed(rules, origin, host)) {
      return ApiError{.status = 403,
                      .message =
                          "web pages of this origin may not use this server; start it "
                          "with --allowed-origins to allow them"};
    }
    reply_headers.emplace_back("Access-Control-Allow-Origin", std::string(origin));
    reply_headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
    reply_headers.emplace_back("Vary", "Origin");
  }
  if (head.method == "OPTIONS") {  // a browser asks before it sends the key
    reply_headers.emplace_back("Access-Control-Allow-Methods", "GET, HEAD, POST, OPTIONS");
    reply_headers.emplace_back("Access-Control-Allow-Headers", "Authorization, Content-Type, *");
    reply_headers.emplace_back("Access-Control-Max-Age", "600");
    return std::nullopt;
  }
  if (guarded && !rules.api_keys.empty() && !key_given(rules, head)) {
    return ApiError{.status = 401,
                    .message = "the API key is missing or wrong: Authorization: Bearer KEY",
                    .code = "invalid_api_key"};
  }
  return std::nullopt;
}

}  // namespace nibble::server
