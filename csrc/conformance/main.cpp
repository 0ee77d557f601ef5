// SPDX-License-Identifier: Apache-2.0
// calrt-conformance: holds a driver to the rules of its ABI. One JSON object a line on stdout:
// {"begin": CHECK} before each check, {"check", "rule", "verdict", "why", "seconds"} after it. A
// driver that crashes or hangs takes this program along: `calrt conformance` runs it as a child,
// and the last `begin` names the check.
//
// Exit codes: 0 conforms, 1 a rule is broken, 2 usage, or something is missing.
#include <sys/prctl.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>

#include "base/sha256.h"
#include "calrt/device_spec.h"
#include "calrt/driver_host.h"
#include "calrt/driver_library.h"
#include "calrt/findings.h"
#include "conformance/kit.h"

namespace calrt::conformance {
namespace {

constexpr int kConforms = 0, kBroken = 1, kUsage = 2;

constexpr const char* kHelp =
    "usage: calrt-conformance DRIVER[:CONFIG] [--package DIR] [--option KEY=VALUE]...\n"
    "                         [--only RULE]... [--after CHECK] [--describe]\n"
    "       calrt-conformance --list\n"
    "\n"
    "  DRIVER        a short name (cpu) or the absolute path of a library; after ':' an index or\n"
    "                a configuration, as calrt.open takes it; \"isolate:\" before it runs it in a\n"
    "                process of its own\n"
    "  --package     a package made for the driver; without one, what needs a model is skipped\n"
    "  --option      a device option, as keyword arguments of calrt.open\n"
    "  --only        rules, groups or checks to run: JOB-03, JOB, INFO-04/index\n"
    "  --after       go on behind this check\n"
    "  --describe    tell what the driver is, and run nothing\n"
    "  --list        the rules\n"
    "exit codes: 0 conforms, 1 a rule is broken, 2 usage, or something is missing\n";

struct Arguments {
  std::string driver, package, after;
  std::vector<std::pair<std::string, std::string>> options;
  std::vector<std::string> only;
  bool list = false, describe = false;
};

// "" or what is wrong.
std::string parse(int argc, char** argv, Arguments* out) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--list") {
      out->list = true;
    } else if (word == "--describe") {
      out->describe = true;
    } else if (word.rfind("--", 0) != 0) {
      if (!out->driver.empty()) return "one driver at a time: " + out->driver + ", " + word;
      out->driver = word;
    } else if (i + 1 == argc) {
      return word + " needs a value, or is unknown";
    } else if (const std::string value = argv[++i]; word == "--package") {
      out->package = value;
    } else if (word == "--after") {
      out->after = value;
    } else if (word == "--only") {
      out->only.push_back(value);
    } else if (const size_t equals = value.find('='); word == "--option") {
      if (equals == std::string::npos) return "--option " + value + ": KEY=VALUE expected";
      out->options.emplace_back(value.substr(0, equals), value.substr(equals + 1));
    } else {
      return "unknown: " + word;
    }
  }
  return out->driver.empty() && !out->list ? "which driver?" : "";
}

bool selected(const Check& check, const std::vector<std::string>& only) {
  const std::string name = check.name();
  for (const std::string& one : only) {
    const bool begins = name.rfind(one, 0) == 0;
    if (begins && (name.size() == one.size() || name[one.size()] == '-' || name[one.size()] == '/'))
      return true;
  }
  return only.empty();
}

std::string quoted(const char* text) { return json_quote(text != nullptr ? text : ""); }

void print(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);  // a crash must not take it along
}

struct Outcome {
  std::string verdict, rule, why;
};

Outcome run(Kit& kit, const Check& check) {
  kit.forget_known();
  Outcome out{"pass", check.rule, ""};
  try {
    check.run(kit);
  } catch (const Broken& broken) {
    out = {"fail", broken.rule.empty() ? check.rule : broken.rule, broken.why};
  } catch (const Skipped& skipped) {
    out = {"skip", check.rule, skipped.why};
  } catch (const std::exception& error) {
    out = {"fail", check.rule, std::string("the driver threw a C++ exception: ") + error.what()};
  } catch (...) {
    out = {"fail", check.rule, "the driver threw a C++ exception"};
  }
  if (kit.known_why().empty()) return out;
  if (out.verdict == "fail") return {"known", out.rule, kit.known_why() + " (" + out.why + ")"};
  if (out.verdict == "pass")
    return {"fail", out.rule,
            "declared as a known failure (" + kit.known_why() +
                "), and it passes: take the declaration out of the check"};
  return out;
}

int run_all(Kit& kit, const Arguments& arguments) {
  bool any_broken = false, behind = arguments.after.empty();
  for (const Check& check : checks()) {
    if (!behind) {
      behind = check.name() == arguments.after;
      continue;
    }
    if (!selected(check, arguments.only)) continue;
    print("{\"begin\":" + json_quote(check.name()) + ",\"rule\":" + json_quote(check.rule) + "}");
    const uint64_t start = monotonic_ns();
    const Outcome outcome = run(kit, check);
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, "%.6f",
                  static_cast<double>(monotonic_ns() - start) / 1e9);
    print("{\"check\":" + json_quote(check.name()) + ",\"rule\":" + json_quote(outcome.rule) +
          ",\"verdict\":\"" + outcome.verdict + "\",\"why\":" + json_quote(outcome.why) +
          ",\"seconds\":" + seconds + "}");
    any_broken = any_broken || outcome.verdict == "fail";
    if (outcome.verdict == "fail" || outcome.verdict == "known") kit.close();
  }
  return any_broken ? kBroken : kConforms;
}

int list() {
  for (const Rule& rule : rules())
    print("{\"rule\":" + quoted(rule.id) + ",\"capability\":" + quoted(rule.capability) +
          ",\"text\":" + quoted(rule.text) + "}");
  return kConforms;
}

// Library and, where the device opens, the device.
int describe(Kit& kit) {
  std::string line = "{\"driver\":" + quoted(kit.table().name) +
                     ",\"version\":" + quoted(kit.table().version) +
                     ",\"library\":" + json_quote(kit.subject().library);
  try {
    const cald_device_info& info = kit.info();
    line += ",\"device\":{\"name\":" + quoted(info.name) +
            ",\"device_class\":" + quoted(info.device_class) + ",\"id\":" + quoted(info.id) +
            ",\"runtime\":" + quoted(info.runtime) + "}";
  } catch (const Broken& broken) {
    line += ",\"device\":null,\"why\":" + json_quote(broken.why);
  }
  print(line + "}");
  return kConforms;
}

// A driver of which nothing but its handshake can be tested.
int untestable(const std::string& path, const std::string& why, bool describing) {
  if (describing) {
    print("{\"driver\":" + json_quote(path) + ",\"version\":\"\",\"library\":" + json_quote(path) +
          ",\"device\":null,\"why\":" + json_quote(why) + "}");
    return kConforms;
  }
  print("{\"check\":\"ENTRY-01\",\"rule\":\"ENTRY-01\",\"verdict\":\"fail\",\"why\":" +
        json_quote(why) + ",\"seconds\":0}");
  return kBroken;
}

int usage(const std::string& why) {
  std::fprintf(stderr, "calrt-conformance: %s\n%s", why.c_str(), kHelp);
  return kUsage;
}

int missing(const std::string& why) {
  std::fprintf(stderr, "calrt-conformance: %s\n", why.c_str());
  return kUsage;
}

int main_of(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a driver that hangs must not keep the device for ever
  Arguments arguments;
  if (const std::string wrong = parse(argc, argv, &arguments); !wrong.empty()) return usage(wrong);
  if (arguments.list) return list();
  for (const std::string& only : arguments.only) {
    bool any = false;
    for (const Check& check : checks()) any = any || selected(check, {only});
    if (!any) return missing("--only " + only + ": there is no such rule, group or check");
  }
  Subject subject;
  const Result<DeviceSpec> spec = DeviceSpec::parse(arguments.driver);
  if (!spec.ok()) return usage(spec.error().message);
  subject.isolated = spec->isolated;
  subject.config = spec->config;
  subject.index = spec->index;
  subject.options = arguments.options;
  const Result<std::string> library = DriverLibrary::find(spec->driver);
  if (!library.ok()) return missing(library.error().message);
  subject.library = *library;
  if (!arguments.package.empty()) {
    subject.package = Package::open(arguments.package);
    if (subject.package->verdict().rejected())
      return missing("--package " + arguments.package + ": " +
                     subject.package->verdict().error().message);
  }
  std::unique_ptr<Kit> kit;
  const std::string path = subject.library;
  const std::string wrong = Kit::open(std::move(subject), &kit);
  if (kit == nullptr) return missing(path + ": " + wrong);
  const bool opens = wrong.empty();
  if (arguments.describe) return opens ? describe(*kit) : untestable(path, wrong, true);
  const int code = opens ? run_all(*kit, arguments) : untestable(path, wrong, false);
  kit.reset();  // what the driver does meanwhile is a part of the run
  print("{\"end\":" + std::to_string(code) + "}");
  return code;
}

}  // namespace
}  // namespace calrt::conformance

int main(int argc, char** argv) { return calrt::conformance::main_of(argc, argv); }
