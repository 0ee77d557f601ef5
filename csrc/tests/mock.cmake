# SPDX-License-Identifier: Apache-2.0
# The mock driver, and its fold alone.
set(mock_driver ${CMAKE_CURRENT_LIST_DIR}/../drivers/mock)
calrt_test(mock_fold)
target_sources(mock_fold_test PRIVATE ${mock_driver}/fold_portable.cpp)
set_source_files_properties(${mock_driver}/fold_portable.cpp PROPERTIES COMPILE_OPTIONS -O3 SKIP_PRECOMPILE_HEADERS ON)
if(CALRT_X86)
  target_sources(mock_fold_test PRIVATE ${mock_driver}/fold_avx2.cpp)
  set_source_files_properties(${mock_driver}/fold_avx2.cpp PROPERTIES COMPILE_OPTIONS "-O3;${CALRT_FLAGS_AVX2}"
                              SKIP_PRECOMPILE_HEADERS ON)
  target_compile_definitions(mock_fold_test PRIVATE CALRT_X86=1)
endif()

foreach(name mock mock_jobs mock_load)
  calrt_test(${name} ${CMAKE_DL_LIBS})
  add_dependencies(${name}_test cald_mock)
endforeach()

# Not a test: prints speeds.
add_executable(mock_bench EXCLUDE_FROM_ALL mock_bench.cpp ${mock_driver}/fold_portable.cpp ${mock_driver}/logits.cpp)
target_link_libraries(mock_bench PRIVATE calrt)
if(CALRT_X86)
  target_sources(mock_bench PRIVATE ${mock_driver}/fold_avx2.cpp)
  target_compile_definitions(mock_bench PRIVATE CALRT_X86=1)
endif()
