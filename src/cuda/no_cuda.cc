// The GPU of builds without CUDA: there is none. open_device() says so; nothing else can be reached
// without it.
#include "base/check.h"
#include "base/error.h"
#include "cuda/device.h"
#include "cuda/device_probe.h"
#include "cuda/graph.h"
#include "cuda/memory.h"
#include "cuda/nvtx.h"
#include "cuda/peer_memory.h"
#include "cuda/random_fill.h"
#include "cuda/read_bandwidth.h"
#include "cuda/scatter.h"
#include "cuda/stream.h"

namespace nibble::cuda {
namespace {

[[noreturn]] void no_cuda() {
  throw Error(ErrorKind::kUnsupported,
              "this build of nibble runs on CPUs only: build with PRESET=h200 or PRESET=spark, or "
              "say --device cpu");
}

}  // namespace

Caps open_device() { no_cuda(); }
int num_devices() { return 0; }
int64_t free_memory() { no_cuda(); }
bool shares_host_memory() { no_cuda(); }
std::string versions() { return "no CUDA"; }

Buffer device_buffer(int64_t) { no_cuda(); }
Buffer pinned_buffer(int64_t) { no_cuda(); }
void copy_async(void*, const void*, int64_t, StreamHandle) { no_cuda(); }
void zero_async(void*, int64_t, StreamHandle) { no_cuda(); }
void wait(StreamHandle) { no_cuda(); }
void copy(void*, const void*, int64_t) { no_cuda(); }
void fill(void*, uint8_t, int64_t) { no_cuda(); }

MemoryHandle share_memory(const Buffer&) { no_cuda(); }
Buffer open_memory(const MemoryHandle&) { no_cuda(); }

double measure_read_bandwidth(const Caps&, int64_t, int) { no_cuda(); }
std::vector<MmaRate> measure_mma_rates(const Caps&) { no_cuda(); }
Clocks measure_clocks(const Caps&, double) { no_cuda(); }
double measure_l2_read(const Caps&, int64_t) { no_cuda(); }
std::vector<BitModelCheck> check_bit_models() { no_cuda(); }
bool run_cluster() { no_cuda(); }
LaunchGaps measure_launch_gaps() { no_cuda(); }
void random_fill(void*, int64_t, const RandomBytes&) { no_cuda(); }
void scatter(int32_t*, const Update*, int64_t, StreamHandle) { no_cuda(); }

Stream::Stream() { no_cuda(); }
Stream::~Stream() = default;
void Stream::wait() const { no_cuda(); }

Event::Event(Kind) { no_cuda(); }
Event::~Event() = default;
void Event::record(StreamHandle) { no_cuda(); }
void Event::wait() const { no_cuda(); }
void Event::hold(StreamHandle) const { no_cuda(); }
bool Event::is_done() const { no_cuda(); }
double Event::ms_since(const Event&) const { no_cuda(); }

Graph::Graph(StreamHandle, const std::function<void()>&) { no_cuda(); }
Graph::Graph(Graph&&) noexcept = default;
Graph& Graph::operator=(Graph&&) noexcept = default;
Graph::~Graph() = default;
void Graph::launch(StreamHandle) const { no_cuda(); }

std::function<void(const char*)> nvtx_ranges() { no_cuda(); }

}  // namespace nibble::cuda
