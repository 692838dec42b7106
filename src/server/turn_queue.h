// What clients wait for: each client's own in order, and the clients by turns.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <utility>

namespace nibble::server {

template <typename T>
class TurnQueue {
 public:
  // A client that has nothing here comes behind all that have.
  void push(const std::string& client, T thing) {
    for (Line& line : lines_)
      if (line.client == client) return line.things.push_back(std::move(thing));
    lines_.push_back({client, {}});
    lines_.back().things.push_back(std::move(thing));
  }
  // The first of the next client that may(client) have its turn.
  template <typename May>
  std::optional<T> take(const May& may) {
    for (auto line = lines_.begin(); line != lines_.end(); ++line) {
      if (!may(line->client)) continue;
      T thing = std::move(line->things.front());
      line->things.pop_front();
      Line rest = std::move(*line);
      lines_.erase(line);
      if (!rest.things.empty()) lines_.push_back(std::move(rest));
      return thing;
    }
    return std::nullopt;
  }
  // Of each client the first for which is_late(thing) holds, up to one for which it does not.
  template <typename IsLate, typename Drop>
  void drop_late(const IsLate& is_late, const Drop& drop) {
    for (Line& line : lines_)
      for (; !line.things.empty() && is_late(line.things.front()); line.things.pop_front())
        drop(line.things.front());
    std::erase_if(lines_, [](const Line& line) { return line.things.empty(); });
  }

  bool empty() const { return lines_.empty(); }
  // see(client, how many) for each that waits.
  template <typename See>
  void count(const See& see) const {
    for (const Line& line : lines_) see(line.client, line.things.size());
  }

 private:
  struct Line {
    std::string client;
    std::deque<T> things;
  };
  std::deque<Line> lines_;  // the next one first
};

}  // namespace nibble::server
