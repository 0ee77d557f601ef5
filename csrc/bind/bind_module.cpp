// SPDX-License-Identifier: Apache-2.0
// calrt._core: the native module. Bases are registered before what uses them.
#include "bind/gil.h"
#include "bind/module.h"

PYBIND11_MODULE(_core, m, pybind11::multiple_interpreters::not_supported()) {
  using namespace calrt::bind;
  m.doc() = "calrt's native module. Use it through the package calrt.";
  m.attr("__version__") = CALRT_VERSION;
  bind_log();
  bind_errors(m);
  bind_convert(m);
  bind_tensor(m);
  bind_package(m);
  bind_kv(m);
  bind_job(m);
  bind_model(m);
  bind_device(m);
  bind_engine(m);
  m.def(
      "begin_exit", &begin_exit,
      "To be called as the interpreter ends: no other thread comes back from native code, as none "
      "may that could meet a Python that is gone.");
}
