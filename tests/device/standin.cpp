// A stand-in for an accelerator: host memory that torch takes for a device.
//
// Operators run on the CPU through torch's boxed fallback. Those that mix devices are
// refused, as CUDA refuses them. Allocators count live and peak bytes, and a
// listener is called for each operation for which a CUDA host would wait.
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/library.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>

namespace {

constexpr auto kStandIn = c10::DeviceType::PrivateUse1;
const c10::Device kDevice(kStandIn, 0);

// Memory --------------------------------------------------------------------------

std::atomic<int64_t> live_bytes{0}, peak_bytes{0};

struct Block {
  void* data;
  int64_t bytes;
};

void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  live_bytes -= block->bytes;
  c10::free_cpu(block->data);
  delete block;
}

struct CountingAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    auto* block = new Block{c10::alloc_cpu(bytes), static_cast<int64_t>(bytes)};
    const int64_t live = live_bytes += block->bytes;
    int64_t peak = peak_bytes;
    while (peak < live && !peak_bytes.compare_exchange_weak(peak, live)) {
    }
    return {block->data, block, &free_block, kDevice};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

CountingAllocator allocator;
REGISTER_ALLOCATOR(kStandIn, &allocator);

// Host memory that torch allocates, counted as well; files mapped to memory are not.
std::atomic<int64_t> host_live_bytes{0}, host_peak_bytes{0};
std::mutex host_mutex;
std::unordered_map<void*, int64_t> host_blocks;

void free_host(void* data) {
  {
    const std::lock_guard<std::mutex> lock(host_mutex);
    const auto found = host_blocks.find(data);
    if (found != host_blocks.end()) {
      host_live_bytes -= found->second;
      host_blocks.erase(found);
    }
  }
  c10::free_cpu(data);
}

struct HostAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = c10::alloc_cpu(bytes);
    if (data != nullptr) {
      const std::lock_guard<std::mutex> lock(host_mutex);
      host_blocks[data] = static_cast<int64_t>(bytes);
      host_live_bytes += bytes;
      if (host_peak_bytes < host_live_bytes) host_peak_bytes = host_live_bytes.load();
    }
    return {data, data, &free_host, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_host; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

HostAllocator host_allocator;

// One device with one stream, on which everything is done at once -------------------

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static c10::Stream only_stream() {
    return c10::Stream(c10::Stream::DEFAULT, kDevice);
  }
  c10::DeviceType type() const override { return kStandIn; }
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Stream getStream(c10::Device) const override { return only_stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return only_stream(); }
  c10::Stream exchangeStream(c10::Stream) const override { return only_stream(); }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void record(void**, const c10::Stream&, const c10::DeviceIndex,
              const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  void init() const override {}
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
};

// Waiting of the host ---------------------------------------------------------------

void (*listener)(const char*) = nullptr;
// Above 0 inside an operator, whose own copies are the fallback's, not the program's.
thread_local int depth = 0;

void host_waits(const std::string& reason) {
  if (listener != nullptr && depth == 0) listener(reason.c_str());
}

// Operators whose result has a size or a value that the host must read from the device.
const std::unordered_set<std::string> kReadBack = {
    "aten::nonzero",       "aten::masked_select",      "aten::equal",
    "aten::_unique2",      "aten::unique_consecutive", "aten::unique_dim",
    "aten::bincount",      "aten::repeat_interleave",  "aten::is_nonzero",
    "aten::masked_scatter"};
const std::unordered_set<std::string> kIndexing = {
    "aten::index", "aten::_unsafe_index", "aten::index_put", "aten::index_put_",
    "aten::_index_put_impl_"};

template <typename Visit>
void visit_tensors(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor tensor : value.toTensorList()) visit(tensor);
  } else if (value.isList()) {  // of optional tensors
    for (const c10::IValue item : value.toList()) {
      if (item.isTensor() && item.toTensor().defined()) visit(item.toTensor());
    }
  }
}

void check_indices(const std::string& name, const c10::IValue& indices) {
  visit_tensors(indices, [&](const at::Tensor& index) {
    if (index.scalar_type() == at::kBool || index.scalar_type() == at::kByte) {
      host_waits(name + " by a mask");
    } else if (!index.is_privateuseone()) {
      host_waits(name + " by an index on the CPU");
    }
  });
}

void refuse_mixed_devices(const std::string& name,
                          c10::ArrayRef<c10::IValue> arguments) {
  bool on_device = false, on_host = false;
  for (const auto& argument : arguments) {
    visit_tensors(argument, [&](const at::Tensor& tensor) {
      on_device |= tensor.is_privateuseone();
      on_host |= tensor.is_cpu() && tensor.dim() > 0;  // scalars may mix
    });
  }
  TORCH_CHECK(!(on_device && on_host), "Expected all tensors to be on the same device, ",
              "but found standin:0 and cpu in ", name);
}

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& name = op.schema().name();
  const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
  if (kIndexing.count(name)) {
    check_indices(name, arguments[1]);
  } else {
    refuse_mixed_devices(name, arguments);
  }
  if (kReadBack.count(name)) host_waits(name);
  ++depth;
  try {
    at::native::cpu_fallback(op, stack);
  } catch (...) {
    --depth;
    throw;
  }
  --depth;
}

// Tensors -----------------------------------------------------------------------------

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device>,
                 std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &allocator, kKeys,
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>,
                         std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &allocator, kKeys,
                                           c10::dtype_or_default(dtype));
}

// A CPU tensor over the same memory.
at::Tensor host_view(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  const auto options = at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU);
  if (tensor.numel() == 0) {
    return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  }
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(),
                       [tensor](void*) {}, options);
}

void note_transfer(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (from.is_cpu() == to.is_cpu() || from.numel() == 0) return;
  if (to.is_cpu()) host_waits("copy to the host");
  // CUDA stages memory that is not pinned, and returns without waiting for the device.
  else if (!non_blocking) host_waits("blocking copy to the device");
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  note_transfer(from, to, non_blocking);
  host_view(to).copy_(host_view(from));
  return to;
}

const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef size,
                         std::optional<at::MemoryFormat>) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  const size_t bytes = (impl->numel() + impl->storage_offset()) * self.itemsize();
  const c10::Storage& storage = impl->storage();
  if (storage.nbytes() < bytes) {
    auto grown = allocator.allocate(bytes);
    if (storage.nbytes()) std::memcpy(grown.get(), storage.data(), storage.nbytes());
    storage.set_data_ptr(std::move(grown));
    storage.set_nbytes(bytes);
  }
  return self;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) resize(to, from.sizes(), std::nullopt);
  return copy_from(from, to, false);
}

at::Scalar read_scalar(const at::Tensor& tensor) {
  host_waits("item");
  return host_view(tensor).item();
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  using View = at::Tensor (*)(const at::Tensor&, at::IntArrayRef);
  using SetStorage = at::Tensor& (*)(at::Tensor&, at::Storage);
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("resize_", &resize);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("_local_scalar_dense", &read_scalar);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("view", static_cast<View>(&at::native::view));
  library.impl("_reshape_alias", &at::native::_reshape_alias);
  library.impl("unfold", &at::native::unfold);
  library.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  library.impl("set_.source_Storage", static_cast<SetStorage>(&at::native::set_));
  library.impl("set_.source_Tensor", &at::native::set_tensor_);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

}  // namespace

// Read by ctypes, so that no Python header is needed.
extern "C" {
void standin_init() {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  c10::SetCPUAllocator(&host_allocator, 1);
}
int64_t standin_host_live_bytes() { return host_live_bytes; }
int64_t standin_host_peak_bytes() { return host_peak_bytes; }
void standin_listen(void (*function)(const char*)) { listener = function; }
int64_t standin_live_bytes() { return live_bytes; }
int64_t standin_peak_bytes() { return peak_bytes; }
void standin_reset_peak() {
  peak_bytes = live_bytes.load();
  host_peak_bytes = host_live_bytes.load();
}
}
