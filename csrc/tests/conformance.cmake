# SPDX-License-Identifier: Apache-2.0
# The defective driver: mock, built in under another name of its entry, and what stands before it.
set(mock ${CMAKE_CURRENT_LIST_DIR}/../drivers/mock)
set(layout ${CMAKE_CURRENT_LIST_DIR}/../layout)
calrt_test_driver(defective defective.cpp)
target_sources(cald_defective PRIVATE
  drivers/defective_buffers.cpp drivers/defective_device.cpp drivers/defective_inputs.cpp drivers/defective_jobs.cpp
  drivers/defective_kv.cpp drivers/defective_models.cpp drivers/defective_trace.cpp drivers/defective_waits.cpp
  ${mock}/driver.cpp ${mock}/device.cpp ${mock}/presets.cpp ${mock}/buffer.cpp ${mock}/trace.cpp ${mock}/cells.cpp
  ${mock}/fold_portable.cpp ${mock}/logits.cpp ${mock}/graph.cpp ${mock}/model.cpp ${mock}/graph_work.cpp
  ${mock}/kv_work.cpp ${mock}/session.cpp ${layout}/isa.cpp ${layout}/layout.cpp ${layout}/loops.cpp)
set_source_files_properties(${mock}/driver.cpp PROPERTIES COMPILE_DEFINITIONS cald_driver_entry=mock_driver_entry)
target_compile_options(cald_defective PRIVATE -O1)
calrt_shim_driver(defective_null)
