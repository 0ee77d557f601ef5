# SPDX-License-Identifier: Apache-2.0
calrt_test(layout)
calrt_test(pack)
calrt_test(package)

# The published JSON Schema is generated from the table that checks manifests.
add_executable(manifest_schema_doc manifest_schema_doc.cpp)
target_link_libraries(manifest_schema_doc PRIVATE calrt)
add_test(NAME manifest_schema_doc
         COMMAND manifest_schema_doc ${PROJECT_SOURCE_DIR}/docs/manifest-1.schema.json)
