// The part of the CUDA runtime that nibble calls, on the emulated GPU: what a stream is told is
// done before the call returns.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "device.h"
#include "memory.h"
#include "tensor_map.h"

// A stream, an event and a graph, as the runtime's handles point at them.
struct CUstream_st {
  bool captures = false, is_broken = false;
  std::vector<std::function<cudaError_t()>> recorded;
};
struct CUevent_st {
  std::chrono::steady_clock::time_point at;
};
struct CUgraph_st {
  std::vector<std::function<cudaError_t()>> work;
};
struct CUgraphExec_st {
  std::vector<std::function<cudaError_t()>> work;
};

namespace nibble::emulated {
namespace {

thread_local cudaError_t last_error = cudaSuccess;
cudaError_t left_by_kernel = cudaSuccess;

bool is_real(cudaStream_t stream) {
  return stream != nullptr && stream != cudaStreamLegacy && stream != cudaStreamPerThread;
}

cudaDeviceProp make_properties() {
  cudaDeviceProp p;
  std::memset(&p, 0, sizeof(p));
  const bool is_hopper = NIBBLE_CUDA_SM == 90;
  std::snprintf(p.name, sizeof(p.name), "%s", is_hopper ? "NVIDIA H200" : "NVIDIA GB10");
  p.major = NIBBLE_CUDA_SM / 10;
  p.minor = NIBBLE_CUDA_SM % 10;
  p.multiProcessorCount = is_hopper ? 132 : 48;
  p.sharedMemPerBlockOptin = (is_hopper ? 227 : 99) << 10;
  p.sharedMemPerBlock = 48 << 10;
  p.l2CacheSize = (is_hopper ? 60 : 24) << 20;
  p.totalGlobalMem = is_hopper ? size_t{150'110'011'392} : size_t{128} << 30;
  p.warpSize = 32;
  p.maxThreadsPerBlock = 1024;
  p.integrated = is_hopper ? 0 : 1;
  return p;
}

// Blocks of a kernel that an SM holds, by threads and shared memory.
int blocks_of_sm(const Program& program, const cudaLaunchConfig_t& config) {
  const auto threads = static_cast<int>(config.blockDim.x * config.blockDim.y * config.blockDim.z);
  const int64_t shared =
      program.static_shared_bytes + static_cast<int64_t>(config.dynamicSmemBytes) + 1024;
  const int64_t most_shared = static_cast<int64_t>(properties().sharedMemPerBlockOptin) + 1024;
  const int most_threads = NIBBLE_CUDA_SM == 90 ? 2048 : 1536;
  return static_cast<int>(
      std::min<int64_t>(most_threads / std::max(threads, 1), most_shared / shared));
}

dim3 cluster_of(const Program& program, const cudaLaunchConfig_t* config) {
  dim3 cluster(program.cluster[0], program.cluster[1], program.cluster[2]);
  for (unsigned i = 0; config != nullptr && i < config->numAttrs; ++i)
    if (config->attrs[i].id == cudaLaunchAttributeClusterDimension) {
      const auto& dim = config->attrs[i].val.clusterDim;
      cluster = dim3(dim.x, dim.y, dim.z);
    }
  return cluster;
}

std::vector<std::byte> copy_params(const Program& program, void** args) {
  std::vector<std::byte> params(static_cast<size_t>(program.param_bytes));
  for (size_t i = 0; i < program.params.size(); ++i)
    std::memcpy(&params[static_cast<size_t>(program.params[i].offset)], args[i],
                static_cast<size_t>(program.params[i].bytes));
  return params;
}

cudaError_t run(Launch& work) {
  const std::lock_guard lock(device_mutex());
  if (left_by_kernel != cudaSuccess) return left_by_kernel;
  try {
    if (!work.params.empty()) add_range(work.params.data(), work.params.size());
    run_launch(work);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "emulated CUDA: %s\n", e.what());
    left_by_kernel = cudaErrorIllegalAddress;
  }
  if (!work.params.empty()) remove_range(work.params.data());
  return left_by_kernel;
}

}  // namespace

std::recursive_mutex& device_mutex() {
  static auto* const mutex = new std::recursive_mutex;
  return *mutex;
}
const cudaDeviceProp& properties() {
  static const cudaDeviceProp p = make_properties();
  return p;
}
cudaError_t sticky_error() { return left_by_kernel; }
cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}
bool is_capturing(cudaStream_t stream) { return is_real(stream) && stream->captures; }

cudaError_t in_order(cudaStream_t stream, std::function<cudaError_t()> work) {
  if (is_capturing(stream)) {
    stream->recorded.push_back(std::move(work));
    return cudaSuccess;
  }
  if (left_by_kernel != cudaSuccess) return remember(left_by_kernel);
  return remember(work());
}

cudaError_t launch(KernelEntry& kernel, dim3 grid, dim3 block, dim3 cluster, size_t shared_bytes,
                   void** args, cudaStream_t stream) {
  const std::lock_guard lock(device_mutex());
  const Program& program = program_of(kernel);
  const auto shared = static_cast<int64_t>(shared_bytes);
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > 1024 || grid.x == 0 || grid.y == 0 || grid.z == 0 ||
      grid.y > 65535 || grid.z > 65535 || shared > kernel.dynamic_shared_limit ||
      program.static_shared_bytes + shared >
          static_cast<int64_t>(properties().sharedMemPerBlockOptin))
    return remember(cudaErrorInvalidValue);
  auto work = std::make_shared<Launch>();
  work->program = &program;
  const auto set = [](uint32_t(&to)[3], dim3 from) {
    to[0] = from.x, to[1] = from.y, to[2] = from.z;
  };
  set(work->grid, grid);
  set(work->block, block);
  set(work->cluster, cluster);
  work->dynamic_shared_bytes = shared;
  work->params = copy_params(program, args);
  return in_order(stream, [work] { return run(*work); });
}

}  // namespace nibble::emulated

using namespace nibble::emulated;  // the runtime's own names follow

namespace {
struct CallConfiguration {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
};
thread_local std::vector<CallConfiguration> configurations;
}  // namespace

extern "C" {

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream_st* stream) {
  configurations.push_back({grid, block, shared, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  const CallConfiguration c = configurations.back();
  configurations.pop_back();
  *grid = c.grid, *block = c.block, *shared = c.shared;
  *static_cast<cudaStream_t*>(stream) = c.stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(find_kernel(function));
  return *kernel != nullptr ? cudaSuccess : cudaErrorInvalidDeviceFunction;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** args,
                               size_t shared, cudaStream_t stream) {
  auto& entry = *reinterpret_cast<KernelEntry*>(kernel);
  return launch(entry, grid, block, cluster_of(program_of(entry), nullptr), shared, args, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function,
                                void** args) {
  KernelEntry* const entry = find_kernel(function);
  if (entry == nullptr) return remember(cudaErrorInvalidDeviceFunction);
  return launch(*entry, config->gridDim, config->blockDim, cluster_of(program_of(*entry), config),
                config->dynamicSmemBytes, args, config->stream);
}
cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  KernelEntry* const entry = find_kernel(function);
  if (entry == nullptr) return remember(cudaErrorInvalidDeviceFunction);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (program_of(*entry).static_shared_bytes + value >
      static_cast<int64_t>(properties().sharedMemPerBlockOptin))
    return remember(cudaErrorInvalidValue);
  entry->dynamic_shared_limit = value;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveClusters(int* count, const void* function,
                                           const cudaLaunchConfig_t* config) {
  KernelEntry* const entry = find_kernel(function);
  if (entry == nullptr) return remember(cudaErrorInvalidDeviceFunction);
  const dim3 cluster = cluster_of(program_of(*entry), config);
  const int blocks = blocks_of_sm(*entry->program, *config) * properties().multiProcessorCount;
  *count = blocks / static_cast<int>(cluster.x * cluster.y * cluster.z);
  return cudaSuccess;
}

// ---- the device

cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess : remember(cudaErrorInvalidDevice);
}
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  return *p = properties(), cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrIntegrated:
      *value = properties().integrated;
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = properties().multiProcessorCount;
      return cudaSuccess;
    default:
      return remember(cudaErrorInvalidValue);
  }
}
cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return remember(sticky_error()); }
cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}
const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorInvalidDeviceFunction:
      return "cudaErrorInvalidDeviceFunction";
    default:
      return "another error";
  }
}
const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }

// ---- memory

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = properties().totalGlobalMem;
  *free = *total - std::min(*total, allocated_bytes());
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** memory, size_t bytes) {
  const std::lock_guard lock(device_mutex());
  size_t free = 0, total = 0;
  cudaMemGetInfo(&free, &total);
  *memory = bytes <= free ? allocate(bytes) : nullptr;
  return *memory != nullptr ? cudaSuccess : remember(cudaErrorMemoryAllocation);
}
cudaError_t cudaMallocHost(void** memory, size_t bytes) { return cudaMalloc(memory, bytes); }
cudaError_t cudaFree(void* memory) {
  const std::lock_guard lock(device_mutex());
  return memory == nullptr || release(memory) ? cudaSuccess : remember(cudaErrorInvalidValue);
}
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  return in_order(stream, [to, from, bytes] {
    std::memmove(to, from, bytes);
    return cudaSuccess;
  });
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  return in_order(stream, [memory, value, bytes] {
    set_memory(memory, value, bytes);
    return cudaSuccess;
  });
}
cudaError_t cudaMemset(void* memory, int value, size_t bytes) {
  return cudaMemsetAsync(memory, value, bytes, nullptr);
}
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t*, void*) {
  return remember(cudaErrorNotSupported);
}
cudaError_t cudaIpcOpenMemHandle(void**, cudaIpcMemHandle_t, unsigned) {
  return remember(cudaErrorNotSupported);
}
cudaError_t cudaIpcCloseMemHandle(void*) { return remember(cudaErrorNotSupported); }

// ---- streams and events

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return *stream = new CUstream_st, cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return delete stream, cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (is_capturing(stream))
    return stream->is_broken = true, remember(cudaErrorStreamCaptureUnsupported);
  return remember(sticky_error());
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = is_capturing(stream) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return *event = new CUevent_st, cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return in_order(stream, [event] {
    event->at = std::chrono::steady_clock::now();
    return cudaSuccess;
  });
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return remember(sticky_error()); }
cudaError_t cudaEventQuery(cudaEvent_t) { return remember(sticky_error()); }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  *ms = std::chrono::duration<float, std::milli>(to->at - from->at).count();
  return cudaSuccess;
}

// ---- graphs

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  stream->captures = true, stream->is_broken = false;
  stream->recorded.clear();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  stream->captures = false;
  *graph = nullptr;
  if (stream->is_broken) return remember(cudaErrorStreamCaptureInvalidated);
  *graph = new CUgraph_st{std::move(stream->recorded)};
  stream->recorded.clear();
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* count) {
  return *count = graph->work.size(), cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  return *exec = new CUgraphExec_st{graph->work}, cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { return delete exec, cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  for (const auto& work : exec->work)
    if (const cudaError_t error = in_order(stream, work); error != cudaSuccess) return error;
  return cudaSuccess;
}

// ---- tensor maps

static CUresult encode_tiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                             void* data, const cuuint64_t* dims, const cuuint64_t* pitch,
                             const cuuint32_t* box, const cuuint32_t* strides,
                             CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                             CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  if (rank != 2 || strides[0] != 1 || strides[1] != 1) return CUDA_ERROR_NOT_SUPPORTED;
  TensorMap m{};
  m.data = reinterpret_cast<uint64_t>(data);
  m.cols = dims[0], m.rows = dims[1], m.pitch_bytes = pitch[0];
  m.box_cols = box[0], m.box_rows = box[1];
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8:
      m.element_bytes = 1;
      break;
    case CU_TENSOR_MAP_DATA_TYPE_UINT16:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
      m.element_bytes = 2;
      break;
    case CU_TENSOR_MAP_DATA_TYPE_UINT32:
    case CU_TENSOR_MAP_DATA_TYPE_INT32:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
      m.element_bytes = 4;
      break;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
  m.swizzle_bytes = swizzle == CU_TENSOR_MAP_SWIZZLE_128B  ? 128
                    : swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? 64
                    : swizzle == CU_TENSOR_MAP_SWIZZLE_32B ? 32
                                                           : 0;
  if (m.data % 16 != 0 || m.pitch_bytes % 16 != 0 || m.box_cols > 256 || m.box_rows > 256 ||
      m.box_cols * m.element_bytes % 16 != 0 ||
      (m.swizzle_bytes != 0 && m.box_cols * m.element_bytes > m.swizzle_bytes))
    return CUDA_ERROR_INVALID_VALUE;
  std::memset(map, 0, sizeof(*map));
  std::memcpy(map, &m, sizeof(m));
  return CUDA_SUCCESS;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  const bool is_known = std::strcmp(symbol, "cuTensorMapEncodeTiled") == 0;
  *function = is_known ? reinterpret_cast<void*>(encode_tiled) : nullptr;
  *found = is_known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

}  // extern "C"
