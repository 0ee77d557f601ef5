# SPDX-License-Identifier: Apache-2.0
# The adapter for CalRT 0.7.6, through its table, on the stand-in for the SDK.
if(NOT CALRT_SDK_ROOT)
  foreach(name calrt076_jobs calrt076_load)
    calrt_test(${name} ${CMAKE_DL_LIBS})
    add_dependencies(${name}_test cald_calrt076)
    target_compile_definitions(${name}_test PRIVATE CALRT076_LIBRARY="$<TARGET_FILE:cald_calrt076>")
  endforeach()
endif()
