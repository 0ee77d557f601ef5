// SPDX-License-Identifier: Apache-2.0
// KV operations of the cpu driver as calls that wait, and lanes as cells of plain bytes.
#pragma once

#include <string>
#include <vector>

#include "cpu_client.h"

namespace calrt::testing {

struct KvAsk {
  uint32_t op = 0, lane = 0, cell = 0, n = 0, to_lane = 0, to_cell = 0;
  int32_t delta = 0;
};

// [part][cell]: part 2l is K of layer l, part 2l + 1 its V; a cell is its bytes.
using LaneImage = std::vector<std::vector<std::string>>;

class KvClient {
 public:
  KvClient(Device& device, Model& model) : device_(&device), model_(&model) {
    info.struct_size = sizeof info;
    cpu_table().kv_info(model.model, &info, nullptr);
  }
  ~KvClient() { cpu_table().buffer_free(buffer_); }
  KvClient(const KvClient&) = delete;
  KvClient& operator=(const KvClient&) = delete;

  uint64_t piece() const { return info.bytes_per_cell / (2 * info.n_layers); }

  cald_kv_desc desc(const KvAsk& ask) const {
    cald_kv_desc desc{};
    desc.struct_size = sizeof desc;
    desc.op = ask.op;
    desc.model = model_->model;
    desc.lane = ask.lane;
    desc.to_lane = ask.to_lane;
    desc.cell = ask.cell;
    desc.to_cell = ask.to_cell;
    desc.n = ask.n;
    desc.delta = ask.delta;
    desc.deadline_ns = CALD_NO_DEADLINE;
    if (ask.op == CALD_KV_READ || ask.op == CALD_KV_WRITE) {
      desc.buffer = buffer_;
      desc.offset = offset;
      desc.bytes = ask.n * info.bytes_per_cell;
    }
    return desc;
  }

  // To its end; what it failed with is in `failure`.
  cald_status run_desc(const cald_kv_desc& desc) {
    cald_job* job = nullptr;
    if (!failure.ok(cpu_table().kv_submit(device_->session, &desc, &job, &failure.raw)))
      return failure.code;
    cpu_table().job_wait(job, CALD_NO_DEADLINE, nullptr);
    int32_t state = 0;
    cpu_table().job_query(job, &state, &failure.raw);
    failure.code = state == CALD_JOB_DONE ? CALD_OK : failure.raw.code;
    failure.text = failure.raw.message;
    cpu_table().job_destroy(job);
    return failure.code;
  }
  cald_status run(const KvAsk& ask) { return run_desc(desc(ask)); }

  // Makes room in the buffer of READ and WRITE; its address from `offset` on.
  char* room(uint64_t bytes) {
    if (bytes + offset > buffer_bytes_) {
      cpu_table().buffer_free(buffer_);
      buffer_bytes_ = bytes + offset;
      cpu_table().buffer_alloc(device_->device, CALD_DOMAIN_HOST, buffer_bytes_, 64, &buffer_,
                               nullptr);
    }
    void* data = nullptr;
    cpu_table().buffer_map(buffer_, &data, nullptr);
    return static_cast<char*>(data) + offset;
  }

  LaneImage read(uint32_t lane, uint32_t cell, uint32_t n) {
    const char* from = room(n * info.bytes_per_cell);
    LaneImage image;
    if (run({CALD_KV_READ, lane, cell, n}) != CALD_OK) return image;
    image.resize(size_t{2} * info.n_layers);
    for (auto& part : image)
      for (uint32_t i = 0; i < n; ++i, from += piece()) part.emplace_back(from, piece());
    return image;
  }
  LaneImage read(uint32_t lane) { return read(lane, 0, info.cells); }

  cald_status write(uint32_t lane, uint32_t cell, const LaneImage& image) {
    const auto n = static_cast<uint32_t>(image[0].size());
    char* to = room(n * info.bytes_per_cell);
    for (const auto& part : image)
      for (const std::string& bytes : part) {
        std::memcpy(to, bytes.data(), bytes.size());
        to += bytes.size();
      }
    return run({CALD_KV_WRITE, lane, cell, n});
  }

  cald_kv_info info{};
  Failure failure;
  uint64_t offset = 0;  // of rows in the buffer

 private:
  Device* device_;
  Model* model_;
  cald_buffer* buffer_ = nullptr;
  uint64_t buffer_bytes_ = 0;
};

}  // namespace calrt::testing
