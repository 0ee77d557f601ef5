# SPDX-License-Identifier: Apache-2.0
# The cpu driver and the conversion kernels.
calrt_test(cpu_model ${CMAKE_DL_LIBS})
add_dependencies(cpu_model_test cald_cpu)
