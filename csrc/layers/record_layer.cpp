// SPDX-License-Identifier: Apache-2.0
#include "layers/record_layer.h"

#include <atomic>
#include <map>
#include <optional>

#include "layers/completion_tap.h"
#include "layers/layer_file.h"
#include "layers/record_job.h"
#include "layers/visit.h"

namespace calrt::layers {
namespace {

using Table = cald_driver_table;

class RecordLayer;

struct RecordedJob final : CompletionTap {
  void complete(const cald_completion& completion) override;

  std::weak_ptr<RecordLayer> layer;
  uint64_t number = 0, job_seq = 0;
  JobView view;
  void (*on_complete)(void*, const cald_completion*) = nullptr;
  void* user = nullptr;
  std::atomic<bool> ended{false}, explained{false};
};
using JobRef = std::shared_ptr<RecordedJob>;

// ,"name":value
void put(std::string& line, const char* name, std::string_view json) {
  line += ",\"";
  line += name;
  line += "\":";
  line += json;
}
template <class Number>
void put_number(std::string& line, const char* name, Number value) {
  put(line, name, std::to_string(value));
}

std::string why_of(const cald_error& error) {
  std::string why = "{\"code\":" + std::to_string(error.code);
  put_number(why, "native", error.native_code);
  put_number(why, "flags", has_field(error, &cald_error::flags) ? error.flags : 0);
  put(why, "text", json_string(error.message));
  return why + "}";
}

class RecordLayer final : public Layer, public std::enable_shared_from_this<RecordLayer> {
 public:
  RecordLayer(std::unique_ptr<LayerFile> file, uint64_t data)
      : file_(std::move(file)), data_(data) {}
  const char* name() const override { return "record"; }
  bool replace(Call& call) override;
  std::vector<std::pair<std::string, uint64_t>> counters() override {
    return {{"calls", calls_.load()},
            {"jobs", jobs_made_.load()},
            {"bytes", file_->bytes()},
            {"left_out", file_->left_out()}};
  }
  void write_end(RecordedJob& job, const cald_completion& completion);

 private:
  void begin(const Call& call);
  void work(Call& call, std::string& line);
  template <auto Member>
  void submit(Call& call, std::string& line);
  void seen_ended(const cald_job* handle, int32_t state, const cald_error* error);
  std::string list(const std::vector<BoundBytes>& bounds) const;
  std::string arguments(const Call& call);
  std::string made(const Call& call);
  std::string name_of(Kind kind, const void* pointer);
  JobRef find(const cald_job* handle);

  const std::unique_ptr<LayerFile> file_;
  const uint64_t data_;
  std::atomic<uint64_t> calls_{0}, jobs_made_{0};
  std::mutex mutex_;
  std::map<std::pair<Kind, const void*>, uint64_t> names_;  // of handles that live
  uint64_t named_ = 0;
  std::map<const cald_job*, JobRef> jobs_;
};

void RecordLayer::begin(const Call& call) {
  std::string line = "{\"format\":\"calrt-record\",\"version\":1";
  put(line, "driver", json_string(call.driver.name));
  put(line, "driver_version", json_string(call.driver.version));
  put(line, "abi",
      json_string(std::to_string(call.driver.abi_version >> 16) + "." +
                  std::to_string(call.driver.abi_version & 0xffff)));
  put_number(line, "data", data_);
  file_->add(line + "}\n");
}

bool RecordLayer::replace(Call& call) {
  static std::atomic<uint64_t> threads{0};
  thread_local const uint64_t thread = ++threads;
  const uint64_t number = ++calls_;
  if (number == 1) begin(call);
  const uint64_t from = steady_ns();
  std::string line = "{\"call\":" + std::to_string(number);
  put(line, "entry", json_string(entry_name(call.entry)));
  put_number(line, "t_ns", from);
  put_number(line, "thread", thread);
  put(line, "args", arguments(call));
  try {
    work(call, line);
  } catch (...) {
    put(line, "threw", "true");
    file_->add(line + "}\n");
    throw;
  }
  put_number(line, "ns", steady_ns() - from);
  if (call.has_status) {
    put_number(line, "status", call.status);
    if (call.status == CALD_OK)
      line += made(call);
    else if (call.error != nullptr)
      put(line, "why", why_of(*call.error));
  }
  file_->add(line + "}\n");
  if (call.entry == Entry::driver_close) file_->close("");
  return true;
}

void RecordLayer::work(Call& call, std::string& line) {
  switch (call.entry) {
    case Entry::submit:
      return submit<&Table::submit>(call, line);
    case Entry::kv_submit:
      return submit<&Table::kv_submit>(call, line);
    case Entry::job_query: {
      call.forward();
      const auto& [job, state, error] = call.of<&Table::job_query>();
      if (call.status == CALD_OK && *state >= CALD_JOB_DONE) seen_ended(job, *state, error);
      return;
    }
    case Entry::buffer_transfer: {
      call.forward();
      const cald_transfer& transfer = *std::get<0>(call.of<&Table::buffer_transfer>());
      put_number(line, "bytes", transfer.bytes);
      put_number(line, "moved", transfer.moved);
      put(line, "sha256",
          json_string(digest_of({0, std::min(transfer.moved, transfer.bytes),
                                 static_cast<uint8_t*>(transfer.host)})));
      return;
    }
    default:
      if (ends_handle(call.entry)) {
        const std::scoped_lock lock(mutex_);
        visit_arguments(call, [&](auto& first, auto&...) {
          using First = std::remove_pointer_t<std::remove_reference_t<decltype(first)>>;
          if constexpr (HandleType<First>) names_.erase({HandleKind<First>::value, first});
          if constexpr (std::is_same_v<First, cald_job>) jobs_.erase(first);
        });
      }
      return call.forward();
  }
}

// ---- handles -----------------------------------------------------------------------------------

std::string RecordLayer::name_of(Kind kind, const void* pointer) {
  if (pointer == nullptr) return "null";
  const std::scoped_lock lock(mutex_);
  const auto found = names_.find({kind, pointer});
  return json_string(std::string(kind_name(kind)) + "#" +
                     (found != names_.end() ? std::to_string(found->second) : "?"));
}

std::string RecordLayer::arguments(const Call& call) {
  std::string list;
  const auto see = [&](const auto& argument) {
    using T = std::remove_cvref_t<decltype(argument)>;
    std::string text;
    if constexpr (std::is_integral_v<T>)
      text = std::to_string(argument);
    else if constexpr (HandleType<std::remove_pointer_t<T>>)
      text = name_of(HandleKind<std::remove_pointer_t<T>>::value, argument);
    if (text.empty()) return;
    list += list.empty() ? "" : ",";
    list += text;
  };
  visit_arguments(call, [&](auto&... each) { (see(each), ...); });
  return "[" + list + "]";
}

std::string RecordLayer::made(const Call& call) {
  std::string member;
  visit_arguments(call, [&](auto&... each) {
    const auto see = [&](const auto& argument) {
      using T = std::remove_pointer_t<std::remove_cvref_t<decltype(argument)>>;
      if constexpr (std::is_pointer_v<T> && HandleType<std::remove_pointer_t<T>>) {
        constexpr Kind kind = HandleKind<std::remove_pointer_t<T>>::value;
        if (argument == nullptr || *argument == nullptr) return;
        {
          const std::scoped_lock lock(mutex_);
          names_[{kind, *argument}] = ++named_;
        }
        put(member, "made", name_of(kind, *argument));
      }
    };
    (see(each), ...);
  });
  return member;
}

// ---- jobs --------------------------------------------------------------------------------------

JobRef RecordLayer::find(const cald_job* handle) {
  const std::scoped_lock lock(mutex_);
  const auto found = jobs_.find(handle);
  return found != jobs_.end() ? found->second : nullptr;
}

std::string RecordLayer::list(const std::vector<BoundBytes>& bounds) const {
  std::string text;
  for (const BoundBytes& bound : bounds) {
    text += (text.empty() ? "{\"role\":" : ",{\"role\":") + std::to_string(bound.role);
    put_number(text, "bytes", bound.bytes);
    put(text, "sha256", json_string(digest_of(bound)));
    if (bound.bytes <= data_ && bound.data != nullptr) put(text, "hex", json_string(hex_of(bound)));
    text += "}";
  }
  return "[" + text + "]";
}

template <auto Member>
void RecordLayer::submit(Call& call, std::string& line) {
  const auto& [session, desc, out, error] = call.of<Member>();
  const auto job = std::make_shared<RecordedJob>();
  job->layer = weak_from_this();
  job->number = ++jobs_made_;
  job->job_seq = desc->job_seq;
  job->on_complete = desc->on_complete;
  job->user = desc->user;
  job->view = JobView::of(call);
  put_number(line, "job", job->number);
  put_number(line, "job_seq", job->job_seq);
  put(line, "what", json_string(job->view.what));
  put(line, "key", json_string(job->view.key()));
  put(line, "inputs", list(job->view.inputs));
  if (desc->on_complete != nullptr)
    job->template forward<Member>(call);
  else
    call.forward();
  if (call.status != CALD_OK || *out == nullptr) return;
  const std::scoped_lock lock(mutex_);
  jobs_[*out] = job;
}

void RecordLayer::write_end(RecordedJob& job, const cald_completion& completion) {
  cald_completion end{};
  end.bytes_in = end.bytes_out = CALD_BYTES_UNKNOWN;
  std::memcpy(&end, &completion, std::min<size_t>(completion.struct_size, sizeof end));
  std::string line = "{\"job\":" + std::to_string(job.number);
  put_number(line, "t_ns", steady_ns());
  put_number(line, "state", end.state);
  put_number(line, "status", end.status);
  put_number(line, "off", static_cast<int64_t>(end.job_seq - job.job_seq));
  put_number(line, "bytes_in", end.bytes_in);
  put_number(line, "bytes_out", end.bytes_out);
  put_number(line, "native", end.native_code);
  put_number(line, "flags", end.flags);
  put(line, "outputs", list(job.view.outputs));
  file_->add(line + "}\n");
}

// What only job_query tells: why a job failed, and of a device without on_complete that it ended.
void RecordLayer::seen_ended(const cald_job* handle, int32_t state, const cald_error* error) {
  const JobRef job = find(handle);
  if (job == nullptr) return;
  const bool failed = state != CALD_JOB_DONE && error != nullptr && error->code != CALD_OK;
  if (job->on_complete == nullptr && !job->ended.exchange(true)) {
    cald_completion end{};
    end.struct_size = sizeof end;
    end.state = state;
    end.job_seq = job->job_seq;
    end.status = failed ? error->code : static_cast<cald_status>(CALD_OK);
    end.bytes_in = end.bytes_out = CALD_BYTES_UNKNOWN;
    write_end(*job, end);
  }
  if (failed && !job->explained.exchange(true)) {
    std::string line = "{\"job\":" + std::to_string(job->number);
    put(line, "why", why_of(*error));
    file_->add(line + "}\n");
  }
}

void RecordedJob::complete(const cald_completion& completion) {
  if (const auto owner = layer.lock()) owner->write_end(*this, completion);
  on_complete(user, &completion);
}

}  // namespace

Result<std::shared_ptr<Layer>> make_record_layer(const std::string& config) {
  CALRT_TRY_ASSIGN(FileConfig read, FileConfig::parse("record", config,
                                                      {{"data", 1u << 20, 0, uint64_t{1} << 32},
                                                       {"mb", 4096, 1, 1u << 20},
                                                       {"wait_ms", 100, 0, 10'000}}));
  CALRT_TRY_ASSIGN(auto file, LayerFile::create("record", read.path, read.values.at("mb") << 20,
                                                read.values.at("wait_ms")));
  return std::shared_ptr<Layer>(
      std::make_shared<RecordLayer>(std::move(file), read.values.at("data")));
}

}  // namespace calrt::layers
