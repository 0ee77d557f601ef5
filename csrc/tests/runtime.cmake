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
calrt_test_driver(scripted_bare scripted.cpp BARE)
calrt_test_driver(broken_no_symbol broken.cpp NO_SYMBOL)
calrt_test_driver(broken_major broken.cpp WRONG_MAJOR)
calrt_test_driver(broken_missing broken.cpp)
calrt_test_driver(broken_short broken.cpp SHORT_TABLE)
calrt_test_driver(broken_no_version broken.cpp NO_VERSION)
calrt_test_driver(broken_throws broken.cpp THROWS)
calrt_test_driver(broken_no_table broken.cpp NO_TABLE)
calrt_test_driver(broken_code_8 broken.cpp REFUSES=8)
calrt_test_driver(broken_code_30 broken.cpp REFUSES=30)
calrt_test_driver(broken_code_minus broken.cpp REFUSES=-1)
calrt_test_driver(broken_code_min broken.cpp REFUSES=INT32_MIN)

# A test driver that is null with some entries of its own: null's entry is renamed and built in.
function(calrt_shim_driver name)
  calrt_test_driver(${name} ${name}.c)
  set(null ${CMAKE_CURRENT_SOURCE_DIR}/../drivers/null)
  target_sources(cald_${name} PRIVATE ${null}/null_driver.c ${null}/null_buffer.c ${null}/null_job.c
                                      ${null}/null_model.c ${null}/null_trace.c)
  set_source_files_properties(${null}/null_driver.c PROPERTIES
    COMPILE_DEFINITIONS cald_driver_entry=null_driver_entry)
endfunction()
calrt_shim_driver(mapped)
calrt_status_map(cald_mapped drivers/mapped-status-map.toml)
calrt_shim_driver(surveyed)
calrt_shim_driver(newer)
calrt_test_driver(older ../abi/older_driver.c)
calrt_shim_driver(short_transfer)
calrt_shim_driver(skewed)
calrt_test_driver(deadly deadly.cpp)
set(null ${CMAKE_CURRENT_SOURCE_DIR}/../drivers/null)
target_sources(cald_deadly PRIVATE ${null}/null_driver.c ${null}/null_buffer.c ${null}/null_job.c
                                   ${null}/null_model.c ${null}/null_trace.c)

function(calrt_runtime_test name)
  calrt_test(${name} ${CMAKE_DL_LIBS})
  target_include_directories(${name}_test PRIVATE ${CALRT_INCLUDES})
  get_property(drivers GLOBAL PROPERTY CALRT_TEST_DRIVER_TARGETS)
  add_dependencies(${name}_test cald_null ${drivers})
  set_tests_properties(${name} PROPERTIES
    ENVIRONMENT "CALRT_DRIVER_PATH=${CALRT_TEST_DRIVERS}:${CMAKE_BINARY_DIR}/drivers")
endfunction()

calrt_test(sha256)
calrt_test(crc32c)
calrt_test(handle)
calrt_test(ranked_mutex)
calrt_test(abi)
target_sources(abi_test PRIVATE abi_c11.c)
set_target_properties(abi_test PROPERTIES DISABLE_PRECOMPILE_HEADERS ON)  # it has C in it
target_compile_definitions(abi_test PRIVATE
  CALRT_ABI_LOCK="${CMAKE_CURRENT_SOURCE_DIR}/driver_abi.lock"
  CALRT_ABI_LOCK_0_1="${CMAKE_CURRENT_SOURCE_DIR}/abi/driver_abi_0_1.lock"
  CALRT_ABI_LOCK_1_0="${CMAKE_CURRENT_SOURCE_DIR}/abi/driver_abi_1_0.lock")
calrt_runtime_test(driver_library)
calrt_runtime_test(layers)
calrt_runtime_test(fault_layer)
calrt_runtime_test(record)
calrt_runtime_test(trace_layer)
calrt_runtime_test(validate)
# Its leak tables are of handles that leak.
set_property(TEST validate APPEND PROPERTY ENVIRONMENT "ASAN_OPTIONS=detect_leaks=0")
target_compile_definitions(validate_test PRIVATE
  CALRT_ABI_LOCK_0_1="${CMAKE_CURRENT_SOURCE_DIR}/abi/driver_abi_0_1.lock")
calrt_runtime_test(entry_faults)
calrt_runtime_test(device_lock)
calrt_runtime_test(device)
calrt_runtime_test(buffer)
calrt_runtime_test(bounded_pool)
calrt_runtime_test(device_queries)
calrt_runtime_test(status_map)
calrt_runtime_test(null_driver)
calrt_runtime_test(model)
calrt_runtime_test(job)
calrt_runtime_test(job_kv)
calrt_runtime_test(job_fork)
# A child forked amid other threads' work cannot reach what they held: to LeakSanitizer that is lost.
set_property(TEST job_fork APPEND PROPERTY ENVIRONMENT "ASAN_OPTIONS=detect_leaks=0")
calrt_runtime_test(session_pump)
calrt_runtime_test(own_threads)
calrt_runtime_test(stress)
calrt_runtime_test(isolate)
calrt_runtime_test(isolate_death)
calrt_runtime_test(isolate_jobs)
calrt_runtime_test(isolate_vigil)
calrt_runtime_test(isolate_wire)
foreach(name isolate isolate_death)
  add_dependencies(${name}_test calrt-isolate cald_mock)
endforeach()
