# The CPU kernels: include() it and compile FLASHRT_CPU_SOURCES into a target of the same directory (source properties
# are per directory). Include paths: runtime/src and runtime/metal.
set(FLASHRT_CPU_DIR ${CMAKE_CURRENT_LIST_DIR})
set(FLASHRT_CPU_SOURCES
    ${FLASHRT_CPU_DIR}/backward.cpp
    ${FLASHRT_CPU_DIR}/dispatch.cpp
    ${FLASHRT_CPU_DIR}/forward.cpp
    ${FLASHRT_CPU_DIR}/geometry.cpp
    ${FLASHRT_CPU_DIR}/thread_pool.cpp)

# One object per instruction set, chosen at run time. No -ffast-math: hidden scores are infinities.
set(_flags -O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math -fvisibility=hidden)
set(FLASHRT_CPU_ISA_SOURCES ${FLASHRT_CPU_DIR}/isa/isa_baseline.cpp)
set_source_files_properties(${FLASHRT_CPU_DIR}/isa/isa_baseline.cpp PROPERTIES COMPILE_OPTIONS "${_flags}")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(_avx2 ${_flags} -mavx2 -mfma -mf16c)
  set(_avx512 ${_avx2} -mavx512f -mavx512dq -mavx512bw -mavx512vl -mprefer-vector-width=512)
  set(_avx512_bf16 ${_avx512} -mavx512bf16)
  set_source_files_properties(${FLASHRT_CPU_DIR}/isa/isa_avx2.cpp PROPERTIES COMPILE_OPTIONS "${_avx2}")
  set_source_files_properties(${FLASHRT_CPU_DIR}/isa/isa_avx512.cpp PROPERTIES COMPILE_OPTIONS "${_avx512}")
  set_source_files_properties(${FLASHRT_CPU_DIR}/isa/isa_avx512_bf16.cpp PROPERTIES COMPILE_OPTIONS "${_avx512_bf16}")
  list(APPEND FLASHRT_CPU_ISA_SOURCES ${FLASHRT_CPU_DIR}/isa/isa_avx2.cpp ${FLASHRT_CPU_DIR}/isa/isa_avx512.cpp
       ${FLASHRT_CPU_DIR}/isa/isa_avx512_bf16.cpp)
endif()
list(APPEND FLASHRT_CPU_SOURCES ${FLASHRT_CPU_ISA_SOURCES})
