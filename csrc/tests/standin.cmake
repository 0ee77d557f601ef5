# SPDX-License-Identifier: Apache-2.0
# The stand-in SDK by its headers, with mock as its oracle.
calrt_test(standin_sdk calrt_standin_sdk ${CMAKE_DL_LIBS})
add_dependencies(standin_sdk_test cald_mock)
target_include_directories(standin_sdk_test PRIVATE ${PROJECT_SOURCE_DIR}/tests/standin_sdk)
target_compile_definitions(standin_sdk_test PRIVATE STANDIN_SDK_DIR="${PROJECT_SOURCE_DIR}/tests/standin_sdk")
