// SPDX-License-Identifier: Apache-2.0
// Package: an opened directory, its verdict and its small files.
#include <pybind11/stl.h>

#include "bind/errors.h"
#include "bind/module.h"
#include "bind/named.h"
#include "bind/objects.h"

namespace calrt::bind {
namespace {

std::shared_ptr<PyPackage> open_package(Arg<"directory", std::string> directory) {
  auto package = without_gil([&] { return Package::open(*directory); });
  return std::make_shared<PyPackage>(PyPackage{std::move(package)});
}

py::bytes read_artifact(const PyPackage& self, Arg<"artifact", std::string> artifact,
                        Arg<"limit", uint64_t> limit) {
  return py::bytes(unwrap(without_gil([&] { return self.package->read(artifact, limit); })));
}

// The manifest's bytes are the file's, which need not be UTF-8 when it was refused.
py::str manifest_json(const PyPackage& self) {
  const std::string& text = self.package->manifest_json();
  PyObject* decoded =
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
  if (decoded == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(decoded);
}

}  // namespace

void bind_package(py::module_& m) {
  py::classh<PyPackage>(
      m, "Package", py::is_final(), plain_type(),
      "A package directory, read and checked once; its files stay open as long as this object.\n\n"
      "Opening never fails: a package that is absent or broken has the verdict 'rejected'.")
      .def_static("open", &open_package, py::arg("directory"),
                  "Read the manifest and check it and the files (mode fast). Never raises for a\n"
                  "bad package: see `verdict` and `raise_if_rejected()`.")
      .def_property_readonly(
          "verdict", [](const PyPackage& self) { return self.package->verdict().verdict; },
          "'pass', 'pass_with_warnings' or 'rejected'.")
      .def(
          "verdict_json", [](const PyPackage& self) { return self.package->verdict().to_json(); },
          "The verdict as JSON text in the form calrt-validation-1, every finding included.")
      .def_property_readonly(
          "id", [](const PyPackage& self) { return self.package->verdict().package_id; },
          "SHA-256 of the manifest's bytes as 64 hex digits; '' if it could not be read.")
      .def_property_readonly(
          "name", [](const PyPackage& self) { return self.package->verdict().name; },
          "The model's name; '' if the manifest could not be read.")
      .def_property_readonly(
          "directory", [](const PyPackage& self) { return self.package->directory(); },
          "The directory as it was given to open().")
      .def(
          "raise_if_rejected",
          [](const PyPackage& self) {
            if (self.package->verdict().rejected()) raise(self.package->verdict().error());
          },
          "Raise PackageError with the first reject; do nothing for a package that passed.")
      .def("manifest_json", &manifest_json, "The text of manifest.json; '' if it is absent.")
      .def("read", &read_artifact, py::arg("artifact"), py::arg("limit") = uint64_t{1} << 30,
           "All bytes of an artifact, by id.\n\n"
           "Raises InvalidArgumentError for an id without a file, and for a file of more than\n"
           "`limit` bytes.");
}

}  // namespace calrt::bind
