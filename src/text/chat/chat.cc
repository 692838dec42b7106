#include "text/chat/chat.h"

#include <array>

namespace nibble {
namespace {

constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user", "assistant",
                                                    "tool"};
constexpr std::array<std::string_view, 3> kEfforts = {"low", "medium", "high"};

// The enumerator whose name is at the same place of `names`.
template <typename Enum, size_t N>
Result<Enum> find_name(const std::array<std::string_view, N>& names, std::string_view name,
                       std::string_view what) {
  std::string known;
  for (size_t i = 0; i < N; ++i) {
    if (names[i] == name) return static_cast<Enum>(i);
    known.append(i == 0 ? "" : i + 1 == N ? " or " : ", ").append(names[i]);
  }
  return Failure{std::string(what) + " '" + std::string(name) + "' is not known: use " + known};
}

}  // namespace

Result<Role> parse_role(std::string_view name) { return find_name<Role>(kRoles, name, "role"); }

Result<ReasoningEffort> parse_reasoning_effort(std::string_view name) {
  return find_name<ReasoningEffort>(kEfforts, name, "reasoning_effort");
}

std::string_view role_name(Role role) { return kRoles[static_cast<size_t>(role)]; }

std::string_view reasoning_effort_name(ReasoningEffort effort) {
  return kEfforts[static_cast<size_t>(effort)];
}

}  // namespace nibble
