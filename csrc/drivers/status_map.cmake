# SPDX-License-Identifier: Apache-2.0
# calrt_status_map(TARGET FILE): checks a driver's status-map.toml and gives the target
# "cald_status_map_rows.h" made of it. A mistake in the map ends the build with file, row and reason.
# The map lies beside the library, too, as LIBRARY.status-map.toml: `calrt report` sends it along.
set(CALRT_STATUS_MAP_TOOL ${CMAKE_CURRENT_LIST_DIR}/../../tools/status_map.py)
set(CALRT_STATUS_LIST ${CMAKE_CURRENT_LIST_DIR}/../base/include/calrt/status.inc)

function(calrt_status_map target file)
  get_filename_component(map ${file} ABSOLUTE)
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/${target}_status_map)
  set(header ${folder}/cald_status_map_rows.h)
  add_custom_command(
    OUTPUT ${header}
    COMMAND ${Python_EXECUTABLE} ${CALRT_STATUS_MAP_TOOL} ${map} ${header}
    DEPENDS ${map} ${CALRT_STATUS_MAP_TOOL} ${CALRT_STATUS_LIST}
    VERBATIM)
  target_sources(${target} PRIVATE ${header})
  target_include_directories(${target} PRIVATE ${folder})
  set(beside $<TARGET_FILE_DIR:${target}>/$<TARGET_FILE_PREFIX:${target}>$<TARGET_FILE_BASE_NAME:${target}>.status-map.toml)
  add_custom_command(TARGET ${target} POST_BUILD COMMAND ${CMAKE_COMMAND} -E copy_if_different ${map} ${beside} VERBATIM)
endfunction()
