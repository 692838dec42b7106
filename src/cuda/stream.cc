#include "cuda/stream.h"

#include <cuda_runtime.h>

#include "cuda/check.cuh"

namespace nibble::cuda {

Stream::Stream() {
  check(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking), "cudaStreamCreate");
}
Stream::~Stream() { cudaStreamDestroy(handle_); }
void Stream::wait() const { check(cudaStreamSynchronize(handle_), "the GPU's work"); }

Event::Event(Kind kind) {
  check(cudaEventCreateWithFlags(&handle_,
                                 kind == Kind::kTiming ? cudaEventDefault : cudaEventDisableTiming),
        "cudaEventCreate");
}
Event::~Event() { cudaEventDestroy(handle_); }
void Event::record(StreamHandle stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &status), "event");
  const bool in_graph = status == cudaStreamCaptureStatusActive;
  check(cudaEventRecordWithFlags(handle_, stream,
                                 in_graph ? cudaEventRecordExternal : cudaEventRecordDefault),
        "event");
}
void Event::wait() const { check(cudaEventSynchronize(handle_), "the GPU's work"); }
void Event::hold(StreamHandle stream) const {
  check(cudaStreamWaitEvent(stream, handle_, 0), "event");
}
bool Event::is_done() const {
  const cudaError_t state = cudaEventQuery(handle_);
  if (state == cudaErrorNotReady) return false;
  check(state, "the GPU's work");
  return true;
}
double Event::ms_since(const Event& from) const {
  float ms = 0;
  check(cudaEventElapsedTime(&ms, from.handle_, handle_), "cudaEventElapsedTime");
  return ms;
}

}  // namespace nibble::cuda
