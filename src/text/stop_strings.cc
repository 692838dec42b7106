#include "text/stop_strings.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>

namespace nibble {

// Aho-Corasick over bytes. The state is the longest suffix of the text that starts a stop string;
// its depth is what must be held back.
struct StopStrings::Automaton {
  struct Node {
    std::map<uint8_t, int> next;
    int fail = 0;    // the longest proper suffix that is a node too
    int depth = 0;   // bytes
    int stop = -1;   // index of the longest stop string that ends here
    int length = 0;  // its bytes
  };
  std::vector<Node> nodes{1};

  void add(std::string_view stop, int index) {
    int at = 0;
    for (const char c : stop) {
      const auto [edge, is_new] =
          nodes[at].next.try_emplace(static_cast<uint8_t>(c), static_cast<int>(nodes.size()));
      const int to = edge->second, depth = nodes[at].depth + 1;
      if (is_new) nodes.emplace_back().depth = depth;
      at = to;
    }
    if (nodes[at].stop < 0) {
      nodes[at].stop = index;
      nodes[at].length = static_cast<int>(stop.size());
    }
  }

  void link() {
    std::deque<int> queue{0};
    while (!queue.empty()) {
      const int at = queue.front();
      queue.pop_front();
      for (const auto& [byte, to] : nodes[at].next) {
        nodes[to].fail = at == 0 ? 0 : step(nodes[at].fail, byte);
        const Node& suffix = nodes[nodes[to].fail];
        if (nodes[to].stop < 0) {
          nodes[to].stop = suffix.stop;
          nodes[to].length = suffix.length;
        }
        queue.push_back(to);
      }
    }
  }

  int step(int at, uint8_t byte) const {
    for (;; at = nodes[at].fail) {
      const auto edge = nodes[at].next.find(byte);
      if (edge != nodes[at].next.end()) return edge->second;
      if (at == 0) return 0;
    }
  }
};

StopStrings::StopStrings(const std::vector<std::string>& stops, bool include_in_output)
    : include_in_output_(include_in_output) {
  auto automaton = std::make_shared<Automaton>();
  for (size_t i = 0; i < stops.size(); ++i) {
    if (!stops[i].empty()) automaton->add(stops[i], static_cast<int>(i));
  }
  if (automaton->nodes.size() == 1) return;
  automaton->link();
  automaton_ = std::move(automaton);
}

std::string StopStrings::push(std::string_view text) {
  if (stopped()) return {};
  if (empty()) return std::string(text);
  std::string shown = std::move(held_);
  held_.clear();
  for (size_t i = 0; i < text.size(); ++i) {
    state_ = automaton_->step(state_, static_cast<uint8_t>(text[i]));
    const Automaton::Node& node = automaton_->nodes[state_];
    if (node.stop < 0) continue;
    matched_ = node.stop;
    shown += text.substr(0, i + 1);
    if (!include_in_output_) shown.resize(shown.size() - node.length);
    return shown;
  }
  shown += text;
  if (!include_in_output_) {
    const size_t keep = shown.size() - automaton_->nodes[state_].depth;
    held_ = shown.substr(keep);
    shown.resize(keep);
  }
  return shown;
}

std::string StopStrings::flush() {
  state_ = 0;
  return std::exchange(held_, {});
}

}  // namespace nibble
