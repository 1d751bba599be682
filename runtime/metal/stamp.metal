// An empty kernel whose name says which kernels and which ABI its metallib was built from; the host looks it up.
#ifndef FLASHRT_KERNELS_TAG
#error "FLASHRT_KERNELS_TAG must be the tag that the host is compiled with"
#endif

#define FLASHRT_STAMP(tag) flashrt_kernels_##tag
#define FLASHRT_STAMP_OF(tag) FLASHRT_STAMP(tag)

[[kernel]] void FLASHRT_STAMP_OF(FLASHRT_KERNELS_TAG)() {}
