// Runs one launch in a process of its own, for AddressSanitizer, which has to be there from the start.
//
//   emulator_host LIBRARY KERNEL REQUEST REPLY
//
// REQUEST and REPLY hold a Launch and then the bytes of each bound buffer in order of slots. Buffers that had one
// address in the asking process have one here.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <vector>

#include "launch.h"

namespace {

[[noreturn]] void give_up(const char* what) {
  fprintf(stderr, "emulator_host: %s\n", what);
  exit(2);
}

FILE* open_or_give_up(const char* path, const char* how) {
  FILE* file = fopen(path, how);
  if (file == nullptr) give_up(path);
  return file;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) give_up("usage: LIBRARY KERNEL REQUEST REPLY");
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) give_up(dlerror());
  auto* module = static_cast<emu_module*>(dlsym(library, "emu_module_info"));
  if (module == nullptr) give_up("not a kernel library");

  auto launch = std::make_unique<emu::Launch>();
  FILE* request = open_or_give_up(argv[3], "rb");
  if (fread(launch.get(), sizeof *launch, 1, request) != 1) give_up("short request");
  std::map<std::pair<void*, uint64_t>, void*> moved;  // exact allocations: one byte past the end is an error
  for (emu::Buffer& buffer : launch->buffers) {
    if (!buffer.bound) continue;
    std::vector<char> bytes(buffer.bytes);
    if (buffer.bytes != 0 && fread(bytes.data(), buffer.bytes, 1, request) != 1) give_up("short request");
    void*& place = moved[{buffer.base, buffer.bytes}];
    if (place == nullptr) {
      place = malloc(buffer.bytes);
      std::copy(bytes.begin(), bytes.end(), static_cast<char*>(place));
    }
    buffer.base = place;
  }
  fclose(request);

  launch->module = module;
  launch->kernel = emu_find_kernel(module, argv[2]);
  if (launch->kernel == nullptr) give_up("no such kernel");
  const int failed = emu_run(launch.get());

  FILE* reply = open_or_give_up(argv[4], "wb");
  fwrite(launch.get(), sizeof *launch, 1, reply);
  for (const emu::Buffer& buffer : launch->buffers) {
    if (buffer.bound && buffer.bytes != 0) fwrite(buffer.base, buffer.bytes, 1, reply);
  }
  if (fclose(reply) != 0) give_up("the reply could not be written");
  return failed;
}
