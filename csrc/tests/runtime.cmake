# SPDX-License-Identifier: Apache-2.0
# base, driver ABI, driver libraries, devices, models, jobs.
set(CALRT_TEST_DRIVERS ${CMAKE_BINARY_DIR}/test-drivers)

# calrt_test_driver(NAME SOURCE [DEFINITION]): libcald_NAME.so in test-drivers, never installed.
function(calrt_test_driver name source)
  add_library(cald_${name} MODULE drivers/${source})
  target_include_directories(cald_${name} PRIVATE ${CALRT_INCLUDES})
  target_compile_definitions(cald_${name} PRIVATE ${ARGN})
  target_link_libraries(cald_${name} PRIVATE Threads::Threads)
  set_target_properties(cald_${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CALRT_TEST_DRIVERS})
  set_property(GLOBAL APPEND PROPERTY CALRT_TEST_DRIVER_TARGETS cald_${name})
endfunction()

calrt_test_driver(scripted scripted.cpp)
calrt_test_driver(broken_no_symbol broken.cpp NO_SYMBOL)
calrt_test_driver(broken_major broken.cpp WRONG_MAJOR)
calrt_test_driver(broken_missing broken.cpp MISSING_ENTRY)
calrt_test_driver(broken_short broken.cpp SHORT_TABLE)
calrt_test_driver(broken_no_version broken.cpp NO_VERSION)
calrt_test_driver(broken_throws broken.cpp THROWS)
calrt_test_driver(broken_no_table broken.cpp NO_TABLE)
calrt_test_driver(broken_code_8 broken.cpp REFUSES=8)
calrt_test_driver(broken_code_30 broken.cpp REFUSES=30)
calrt_test_driver(broken_code_minus broken.cpp REFUSES=-1)
calrt_test_driver(broken_code_min broken.cpp REFUSES=INT32_MIN)

function(calrt_runtime_test name)
  calrt_test(${name} ${CMAKE_DL_LIBS})
  target_include_directories(${name}_test PRIVATE ${CALRT_INCLUDES})
  get_property(drivers GLOBAL PROPERTY CALRT_TEST_DRIVER_TARGETS)
  add_dependencies(${name}_test cald_null ${drivers})
  set_tests_properties(${name} PROPERTIES
    ENVIRONMENT "CALRT_DRIVER_PATH=${CALRT_TEST_DRIVERS}:${CMAKE_BINARY_DIR}/drivers")
endfunction()

calrt_test(sha256)
calrt_test(base)
calrt_test(handle)
calrt_test(abi)
target_sources(abi_test PRIVATE abi_c11.c)
target_compile_definitions(abi_test PRIVATE
  CALRT_ABI_LOCK="${CMAKE_CURRENT_SOURCE_DIR}/driver_abi.lock"
  CALRT_ABI_LOCK_0_1="${CMAKE_CURRENT_SOURCE_DIR}/abi/driver_abi_0_1.lock")
calrt_runtime_test(driver_library)
calrt_runtime_test(device)
calrt_runtime_test(model)
calrt_runtime_test(job)
