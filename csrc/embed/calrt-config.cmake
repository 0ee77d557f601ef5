# SPDX-License-Identifier: Apache-2.0
# find_package(calrt CONFIG REQUIRED COMPONENTS runtime kv sampling)
#   calrt::runtime   devices, packages, models, jobs, buffers, the engine; the driver ABI
#   calrt::kv        lanes and reservations
#   calrt::sampling  the sampler chain
# Without COMPONENTS all of them. Where this file is: python -m calrt --cmakedir
set(_calrt_components runtime kv sampling)
if(NOT calrt_FIND_COMPONENTS)
  set(calrt_FIND_COMPONENTS ${_calrt_components})
endif()
foreach(_calrt_component IN LISTS calrt_FIND_COMPONENTS)
  if(_calrt_component IN_LIST _calrt_components)
    set(calrt_${_calrt_component}_FOUND TRUE)
  elseif(calrt_FIND_REQUIRED_${_calrt_component})
    set(calrt_FOUND FALSE)
    set(calrt_NOT_FOUND_MESSAGE "calrt has no component '${_calrt_component}': ${_calrt_components}")
    return()
  endif()
endforeach()

get_filename_component(_calrt_folder "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
find_library(_calrt_library NAMES calrt PATHS "${_calrt_folder}" NO_DEFAULT_PATH NO_CACHE)
if(NOT _calrt_library)
  set(calrt_FOUND FALSE)
  set(calrt_NOT_FOUND_MESSAGE "libcalrt is missing in ${_calrt_folder}: the installation is incomplete")
  return()
endif()

include(CMakeFindDependencyMacro)
find_dependency(Threads)
if(NOT TARGET calrt::calrt)  # all components are one library, as they share its state
  add_library(calrt::calrt SHARED IMPORTED)
  set_target_properties(calrt::calrt PROPERTIES
    IMPORTED_LOCATION "${_calrt_library}"
    INTERFACE_INCLUDE_DIRECTORIES "${_calrt_folder}/include"
    INTERFACE_COMPILE_FEATURES cxx_std_20
    INTERFACE_LINK_LIBRARIES Threads::Threads)
endif()
foreach(_calrt_component IN LISTS calrt_FIND_COMPONENTS)
  if(NOT TARGET calrt::${_calrt_component})
    add_library(calrt::${_calrt_component} INTERFACE IMPORTED)
    set_target_properties(calrt::${_calrt_component} PROPERTIES INTERFACE_LINK_LIBRARIES calrt::calrt)
  endif()
endforeach()
