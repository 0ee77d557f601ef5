# SPDX-License-Identifier: Apache-2.0
# The conversion kernels, the cpu driver, and its kernels alone.
calrt_test(convert)

set(cpu_driver ${CMAKE_CURRENT_LIST_DIR}/../drivers/cpu)
calrt_test(cpu_kernels)
target_sources(cpu_kernels_test PRIVATE ${cpu_driver}/kernels.cpp ${cpu_driver}/kernels_portable.cpp)
if(CALRT_X86)
  set(avx512 ${CALRT_FLAGS_AVX512})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND avx512 -Wno-maybe-uninitialized)
  endif()
  target_sources(cpu_kernels_test PRIVATE ${cpu_driver}/kernels_avx2.cpp ${cpu_driver}/kernels_avx512.cpp)
  set_source_files_properties(${cpu_driver}/kernels_avx2.cpp PROPERTIES COMPILE_OPTIONS "${CALRT_FLAGS_AVX2}"
                              SKIP_PRECOMPILE_HEADERS ON)
  set_source_files_properties(${cpu_driver}/kernels_avx512.cpp PROPERTIES COMPILE_OPTIONS "${avx512}"
                              SKIP_PRECOMPILE_HEADERS ON)
  target_compile_definitions(convert_test PRIVATE CALRT_X86=1)
  target_sources(convert_test PRIVATE convert_emulated512.cpp)
  set_source_files_properties(convert_emulated512.cpp PROPERTIES COMPILE_OPTIONS "${CALRT_FLAGS_AVX2}"
                              SKIP_PRECOMPILE_HEADERS ON)
  target_compile_definitions(cpu_kernels_test PRIVATE CALRT_X86=1)
endif()

foreach(name cpu_model cpu_jobs cpu_load cpu_entries cpu_kv cpu_kv_jobs cpu_kv_data)
  calrt_test(${name} ${CMAKE_DL_LIBS})
  add_dependencies(${name}_test cald_cpu)
endforeach()

# Not a test, prints speeds: built when asked for.
if(CALRT_X86)
  add_executable(cpu_bench EXCLUDE_FROM_ALL cpu_bench.cpp cpu_limits.cpp)
  target_link_libraries(cpu_bench PRIVATE calrt ${CMAKE_DL_LIBS})
  set_source_files_properties(cpu_limits.cpp PROPERTIES COMPILE_OPTIONS "${CALRT_FLAGS_AVX2}")
  add_dependencies(cpu_bench cald_cpu)
endif()
