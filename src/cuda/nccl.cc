#include "cuda/nccl.h"

#include <dlfcn.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <thread>

#include "base/error.h"

namespace nibble::cuda {

namespace {

constexpr const char* kVariables[] = {"NIBBLE_NCCL", "VLLM_NCCL_SO_PATH"};
constexpr const char* kUsualName = "libnccl.so.2";
// Processes of one host meet within a second; their GPUs are set up meanwhile.
constexpr std::chrono::seconds kToMeet{120};
// A call takes microseconds; one that waits for another rank ends when NCCL is told to.
constexpr std::chrono::seconds kLongestCall{1};

template <typename Fn>
bool find_function(void* handle, const char* name, Fn& function) {
  function = reinterpret_cast<Fn>(dlsym(handle, name));
  return function != nullptr;
}

// Empty: all of it is there. The library stays loaded: its kernels have no other life.
std::string load(const char* path, NcclLibrary& library) {
  void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return dlerror();
  const bool is_whole =
      find_function(handle, "ncclGetVersion", library.get_version) &&
      find_function(handle, "ncclGetUniqueId", library.get_unique_id) &&
      find_function(handle, "ncclCommInitRank", library.comm_init_rank) &&
      find_function(handle, "ncclCommAbort", library.comm_abort) &&
      find_function(handle, "ncclCommGetAsyncError", library.comm_get_async_error) &&
      find_function(handle, "ncclAllReduce", library.all_reduce) &&
      find_function(handle, "ncclGetErrorString", library.get_error_string);
  return is_whole ? "" : std::string(path) + " is not NCCL: it lacks its functions";
}

}  // namespace

const NcclLibrary* find_nccl(std::string& why) {
  static NcclLibrary library;
  for (const char* variable : kVariables) {
    const char* path = std::getenv(variable);
    if (path == nullptr || *path == '\0') continue;
    if (const std::string fault = load(path, library); !fault.empty())
      throw Error(ErrorKind::kUsage, std::string(variable) + ": " + fault);
    return &library;
  }
  why = load(kUsualName, library);
  return why.empty() ? &library : nullptr;
}

std::string nccl_version(const NcclLibrary& library) {
  int version = 0;
  library.get_version(&version);
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

NcclId make_nccl_id(const NcclLibrary& library) {
  NcclId id;
  if (const int result = library.get_unique_id(&id); result != NcclLibrary::kSuccess)
    throw std::runtime_error(std::string("ncclGetUniqueId: ") + library.get_error_string(result));
  return id;
}

// ncclCommInitRank waits for the others, whatever becomes of them: so on a thread of its own, which
// is left alone where they do not come.
Nccl::Nccl(const NcclLibrary& library, const NcclId& id, int rank, int size,
           const std::function<void()>& check)
    : library_(library) {
  struct Begun {
    void* comm = nullptr;
    int result = 0;
    std::atomic<bool> is_done{false};
  };
  const auto begun = std::make_shared<Begun>();
  std::thread([begun, id, rank, size, init = library.comm_init_rank] {
    begun->result = init(&begun->comm, size, id, rank);
    begun->is_done = true;
  }).detach();
  const auto until = std::chrono::steady_clock::now() + kToMeet;
  while (!begun->is_done) {
    check();
    if (std::chrono::steady_clock::now() > until)
      throw std::runtime_error("NCCL: not all ranks were there within " +
                               std::to_string(kToMeet.count()) + " seconds");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  comm_ = begun->comm;
  this->check(begun->result, "ncclCommInitRank");
}

// An end in good order asks nothing of the others either, who may be gone.
Nccl::~Nccl() {
  abort();
  if (ending_.joinable()) ending_.join();
}

void Nccl::check(int result, const char* what) const {
  if (result == NcclLibrary::kSuccess) return;
  throw std::runtime_error(std::string(what) + ": " + library_.get_error_string(result));
}

// Counts itself before it looks: abort(), which looks the other way round, waits for those that
// have begun, and none begins any more.
Nccl::Call::Call(std::atomic<int>& calls, const std::atomic<bool>& is_aborted) : calls_(calls) {
  ++calls_;
  if (!is_aborted) return;
  --calls_;
  throw std::runtime_error("NCCL was ended");
}

void Nccl::all_reduce(float* values, int64_t n, StreamHandle stream) {
  const Call call(calls_, is_aborted_);
  check(library_.all_reduce(values, values, static_cast<size_t>(n), NcclLibrary::kFloat32,
                            NcclLibrary::kSum, comm_, stream),
        "ncclAllReduce");
}

void Nccl::check() const {
  const Call call(calls_, is_aborted_);
  int error = NcclLibrary::kSuccess;
  check(library_.comm_get_async_error(comm_, &error), "ncclCommGetAsyncError");
  if (error != NcclLibrary::kInProgress) check(error, "NCCL");
}

// ncclCommAbort ends the sums at once, and then waits for the end of all graphs that have any: of
// graphs, mostly, that whoever calls this has yet to end. It frees what a call may still use.
void Nccl::abort() {
  if (is_aborted_.exchange(true) || comm_ == nullptr) return;
  ending_ = std::thread([this] {
    const auto until = std::chrono::steady_clock::now() + kLongestCall;
    while (calls_ > 0 && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    library_.comm_abort(comm_);
  });
}

}  // namespace nibble::cuda
