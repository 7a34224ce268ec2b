#include "shared_memory.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdint>
#include <cstring>

#include "block.h"

namespace emulator {
namespace {

// The storage of a library's thread-local variables.
struct Storage {
  size_t module = 0, bytes = 0;
};

// Finds the storage of the library that contains this function.
Storage find_storage() {
  Storage own;
  dl_iterate_phdr(
      [](dl_phdr_info* library, size_t, void* found) {
        auto here = reinterpret_cast<uintptr_t>(&find_storage);
        bool ours = false;
        size_t bytes = 0;
        for (int i = 0; i < library->dlpi_phnum; ++i) {
          const auto& part = library->dlpi_phdr[i];
          ours |= part.p_type == PT_LOAD && here - (library->dlpi_addr + part.p_vaddr) < part.p_memsz;
          if (part.p_type == PT_TLS) bytes = part.p_memsz;
        }
        if (ours) *static_cast<Storage*>(found) = {library->dlpi_tls_modid, bytes};
        return ours ? 1 : 0;
      },
      &own);
  return own;
}

const Storage& storage() {
  static const Storage own = find_storage();
  return own;
}

}  // namespace

void SharedMemory::begin(size_t bytes) {
  if (!declared_.data) {
    declared_ = Heap::shared().take(storage().bytes, 128);
    asked_for_ = Heap::shared().take(most_bytes + Heap::red_zone, 16);
  }
  used_ = false;
  bytes_ = bytes;
  std::memset(asked_for_.data, Heap::garbage, bytes);
  std::memset(asked_for_.data + bytes, Heap::guard, Heap::red_zone);
}

void SharedMemory::end() const {
  for (size_t i = 0; i < Heap::red_zone; ++i)
    if (asked_for_.data[bytes_ + i] != Heap::guard) fail("a kernel wrote past the end of its requested shared memory.");
}

// Filled only for blocks that use it, because its size is the sum over all kernels.
unsigned char* SharedMemory::declared() {
  if (!used_) std::memset(declared_.data, Heap::garbage, declared_.bytes);
  used_ = true;
  return declared_.data;
}

}  // namespace emulator

struct TlsIndex {
  unsigned long module, offset;
};

extern "C" __attribute__((visibility("hidden"), used)) void* __tls_get_addr(TlsIndex* index) {
  static void* (*const of_host)(TlsIndex*) =
      reinterpret_cast<void* (*)(TlsIndex*)>(dlsym(RTLD_DEFAULT, "__tls_get_addr"));
  emulator::Fiber* fiber = emulator::Stacks::current();
  if (!fiber || index->module != emulator::storage().module) return of_host(index);
  return fiber->block->shared().declared() + index->offset;
}
