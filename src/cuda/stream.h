// Stream: work of the device in order. Event: a point in it. Both move-only owners.
#pragma once

#include "cuda/caps.h"

struct CUevent_st;

namespace nibble::cuda {

class Stream {
 public:
  Stream();  // beside the legacy default stream, not ordered with it
  Stream(const Stream&) = delete;
  ~Stream();

  StreamHandle handle() const { return handle_; }
  // Waits for all work so far. Throws std::runtime_error with the device's error, if it had one.
  void wait() const;

 private:
  StreamHandle handle_ = nullptr;
};

class Event {
 public:
  enum class Kind { kOrder, kTiming };
  explicit Event(Kind kind = Kind::kOrder);
  Event(const Event&) = delete;
  ~Event();

  // While `stream` is recorded into a graph: whenever the graph gets there.
  void record(StreamHandle stream);
  void wait() const;                         // of the host; throws as Stream::wait()
  void hold(StreamHandle stream) const;      // later work of `stream` waits for it
  bool is_done() const;                      // throws as Stream::wait()
  double ms_since(const Event& from) const;  // both kTiming and done

 private:
  [[maybe_unused]] CUevent_st* handle_ = nullptr;  // in builds without CUDA
};

}  // namespace nibble::cuda
