/* SPDX-License-Identifier: Apache-2.0
 * calrt driver ABI: what a device driver gives calrt, as plain C11.
 *
 * A driver is a shared library that exports ONE symbol, cald_driver_entry(). It fills no globals,
 * throws nothing, aborts never and parses no file format: packages reach it typed.
 *
 * Pointer life. Each pointer that crosses the border is marked by one of three words:
 *   CALL        valid during the call only; copy what you keep
 *   UNTIL_DONE  valid until the job it was given to is in a terminal state
 *   HANDLE      valid as long as the handle it belongs to
 *
 * Versions. Tables and argument structs start with struct_size, set by whoever allocates the
 * struct. New fields go to the end; a field is present iff offset + size <= struct_size. A table
 * entry that is NULL or beyond struct_size is UNSUPPORTED. Structs marked "frozen" have no size
 * and never change; lists of structs that may grow are lists of pointers. To delete, reorder, or
 * give a new type or meaning breaks the ABI and raises CALD_ABI_MAJOR. docs/abi.md has the whole
 * rule; a tested lock file holds every offset and size. A comment "0.9" marks what the draft 0.1
 * lacked; 1.0 is 0.9 with a promise, and drivers built against a draft still load.
 *
 * Reserved fields are 0 when calrt fills a struct; a driver writes 0 and ignores what it reads.
 *
 * Status. Every entry that can fail returns a cald_status and takes a nullable, caller-owned
 * cald_error*. There is no "last error".
 *
 * Threads. Entries may be called from any thread; calls on one handle are serialised by calrt,
 * except job_query, job_wait and job_cancel, which may run beside anything on the same session.
 * driver_open may be called again while an earlier handle lives; each has devices of its own.
 * Destroy and close take NULL. calrt closes children before parents and each handle once.
 *
 * Time is CLOCK_MONOTONIC in ns (host->now_ns), deadlines are absolute, CALD_NO_DEADLINE is never.
 */
#ifndef CALRT_DRIVER_H
#define CALRT_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#define CALD_ABI_MAJOR 1
#define CALD_ABI_MINOR 0
#define CALD_ABI_VERSION (((uint32_t)CALD_ABI_MAJOR << 16) | CALD_ABI_MINOR)
#define CALD_NO_DEADLINE UINT64_MAX
#define CALD_MAX_RANK 8
#define CALD_MAX_AXES 8

#if defined(_WIN32)
#define CALD_EXPORT __declspec(dllexport)
#else
#define CALD_EXPORT __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- status ------------------------------------------------------------------------------- */

typedef int32_t cald_status;
enum {
#define CALD_STATUS(number, name, cls, retry, damage, recovery, exception, sentence) \
  CALD_##name = number,
#include "calrt/status.inc"
#undef CALD_STATUS
};

typedef struct cald_error {
  uint32_t struct_size;
  cald_status code;    /* canonical, 0-29 */
  int64_t native_code; /* the vendor's own number; 0 if there is none */
  char message[256];   /* what was wrong, with the numbers; UTF-8, NUL-terminated */
  char where[64];      /* entry or stage, e.g. "model_load" */
  uint32_t flags;      /* 0.9: CALD_ERROR_* */
  uint32_t reserved;
} cald_error;

/* The driver's map has no row for native_code: calrt shows it so, whatever `code` says, and takes
 * the class of the entry that answered. */
enum { CALD_ERROR_UNMAPPED = 1 };

/* ---- handles (opaque; each driver defines its own) ---------------------------------------- */

typedef struct cald_driver cald_driver;
typedef struct cald_device cald_device;
typedef struct cald_session cald_session; /* one execution queue of a device */
typedef struct cald_model cald_model;     /* one loaded generation of a package */
typedef struct cald_buffer cald_buffer;
typedef struct cald_job cald_job;
typedef struct cald_binding_set cald_binding_set; /* fixed buffers of one graph, made known once */

/* ---- what calrt offers a driver ----------------------------------------------------------- */

enum { CALD_LOG_DEBUG = 10, CALD_LOG_INFO = 20, CALD_LOG_WARNING = 30, CALD_LOG_ERROR = 40 };
enum { CALD_TRACE_BEGIN = 1, CALD_TRACE_END = 2, CALD_TRACE_COUNTER = 3 };

typedef struct cald_host { /* HANDLE of the driver; all functions are thread-safe */
  uint32_t struct_size;
  uint32_t abi_version;
  void* user;
  void (*log)(void* user, int32_t level, const char* component, const char* text);
  void (*trace)(void* user, int32_t phase, const char* name, uint64_t id, uint64_t t_ns);
  void* (*alloc)(void* user, uint64_t bytes, uint64_t align); /* NULL when exhausted */
  void (*free)(void* user, void* pointer);
  uint64_t (*now_ns)(void* user);
  /* 0.9: log about one job, which need not live any more. */
  void (*log_job)(void* user, int32_t level, uint64_t job_seq, const char* component,
                  const char* text);
} cald_host;

/* ---- tensors ------------------------------------------------------------------------------ */

enum { /* dtype; 0 is "not stated" */
       CALD_F32 = 1,
       CALD_BF16 = 2,
       CALD_F16 = 3,
       CALD_I8 = 4,
       CALD_U8 = 5,
       CALD_I16 = 6,
       CALD_U16 = 7,
       CALD_I32 = 8,
       CALD_U32 = 9,
       CALD_I64 = 10
};

enum {                           /* role of a graph's input or output */
       CALD_ROLE_TOKENS = 1,     /* i32 [B] or [T] */
       CALD_ROLE_POSITIONS = 2,  /* i32 [B] or [T]: cell index of each token */
       CALD_ROLE_LANES = 3,      /* i32 [B] or [1]: lane of each row; -1 marks a padding row */
       CALD_ROLE_N_VALID = 4,    /* i32 [1]: rows of the chunk that count; the rest is padding */
       CALD_ROLE_LOGIT_ROWS = 5, /* i32 [R], R >= 1: rows to return; unbound = last valid row */
       CALD_ROLE_MASK = 6,       /* an attention mask; calrt fills in none */
       CALD_ROLE_LOGITS = 32     /* [B, V] or [R, V] */
};

/* Memory domains are bits: a buffer has one, a requirement allows several. */
enum {
  CALD_DOMAIN_HOST = 1,        /* pageable host memory */
  CALD_DOMAIN_HOST_PINNED = 2, /* host memory the device can reach */
  CALD_DOMAIN_DEVICE = 4,      /* not addressable by the host */
  CALD_DOMAIN_SHARED = 8       /* host memory shared between processes */
};

/* One physical axis of a layout, slowest first. The byte offset of a logical index i is
 * sum over axes of stride * ((i[dim] / divisor) % modulus); modulus 0 means none. Frozen. */
typedef struct cald_axis {
  uint32_t dim;
  uint32_t reserved; /* 0 */
  uint64_t divisor;
  uint64_t modulus;
  uint64_t extent;
  uint64_t stride; /* bytes */
} cald_axis;

typedef struct cald_layout { /* frozen */
  uint32_t n_axes;
  uint32_t undetermined; /* 1: bytes may be moved, never interpreted; n_axes is 0 */
  uint64_t bytes;        /* allocation, padding included */
  cald_axis axes[CALD_MAX_AXES];
} cald_layout;

typedef struct cald_io {
  uint32_t struct_size;
  int32_t role;
  int32_t dtype;
  uint32_t rank;
  uint64_t shape[CALD_MAX_RANK]; /* largest; the R of logit_rows may be bound smaller */
  cald_layout layout;
  uint64_t align;    /* of the bound address, a power of two; less is refused */
  uint32_t domains;  /* allowed for a binding */
  uint32_t optional; /* 1: may stay unbound */
} cald_io;

enum { CALD_GRAPH_PREFILL = 1, CALD_GRAPH_DECODE = 2 };
enum { CALD_LANE_MAP_NONE = 0, CALD_LANE_MAP_IDENTITY = 1, CALD_LANE_MAP_ANY = 2 };

typedef struct cald_graph {
  uint32_t struct_size;
  int32_t kind;
  const char* name; /* expanded, e.g. "decode_b4", "prefill_t64" */
  uint32_t batch;   /* B of a decode graph; 1 for prefill */
  uint32_t chunk;   /* T of a prefill graph; 0 for decode */
  int32_t lane_map;
  uint32_t n_inputs;
  const cald_io* const* inputs;
  uint32_t n_outputs;
  uint32_t reserved;
  const cald_io* const* outputs;
  const char* share_group; /* graphs of one group use one KV arena */
} cald_graph;

/* ---- packages, as the validator hands them over (CALL, unless kept by copy) ---------------- */

typedef struct cald_artifact {
  uint32_t struct_size;
  int32_t fd; /* open read-only; HANDLE of the model; -1 if optional and absent */
  const char* id;
  const char* role; /* "weights", "calbin.graph", ... */
  uint64_t bytes;
} cald_artifact;

typedef struct cald_tensor { /* row-major in the weights artifact */
  uint32_t struct_size;
  int32_t dtype;
  const char* name; /* GGUF names, e.g. "blk.0.attn_q.weight" */
  uint32_t rank;
  uint32_t reserved;
  uint64_t shape[CALD_MAX_RANK]; /* slowest dimension first */
  uint64_t offset;               /* bytes from the start of the artifact */
  uint64_t bytes;
} cald_tensor;

enum { CALD_ROPE_INTERLEAVED = 0, CALD_ROPE_HALF = 1 };

typedef struct cald_arch { /* absent facts are 0 */
  uint32_t struct_size;
  uint32_t vocab;   /* columns of logits */
  const char* name; /* "llama", "qwen2", ... */
  uint32_t context, layers, embed, heads, kv_heads, head_dim, ffn;
  uint32_t rope_dim;
  int32_t rope_style;
  int32_t tie_embeddings;
  int32_t qk_norm;
  uint32_t experts, experts_used, expert_ffn;
  int32_t norm_topk;
  uint32_t reserved;
  double rope_base;
  double norm_eps;
} cald_arch;

typedef struct cald_package {
  uint32_t struct_size;
  uint32_t n_artifacts;
  const char* name;
  const char* id; /* 64 hex digits: SHA-256 of the manifest */
  const cald_arch* arch;
  const cald_artifact* const* artifacts;
  int32_t weights; /* index of the weights artifact, -1 for opaque packages */
  uint32_t n_tensors;
  const cald_tensor* const* tensors;
  uint32_t n_graphs;
  uint32_t reserved;
  const cald_graph* const* graphs; /* at the largest allowed geometry */
} cald_package;

enum {
  CALD_COMPUTE_PACKAGE = 0,
  CALD_COMPUTE_F32 = 1,
  CALD_COMPUTE_BF16 = 2,
  CALD_COMPUTE_INT8 = 3
};

/* The loader has resolved every option against the package's allowed geometry: none is "auto". */
typedef struct cald_load_options {
  uint32_t struct_size;
  uint32_t lanes;
  uint32_t cells; /* per lane */
  int32_t compute;
  int32_t kv_dtype;
  int32_t logits_dtype;
  const char* parallel;  /* "none", "tensor" */
  const char* placement; /* "any", "chip:0", "chips:0+1" */
  uint32_t n_profiles;
  uint32_t n_chunks;
  const uint32_t* profiles; /* decode batches to prepare, ascending; CALL */
  const uint32_t* chunks;   /* prefill chunks to prepare, ascending; CALL */
  void* user;
  /* Called at >= 2 Hz on the loading thread; a non-zero answer cancels the load (CANCELLED). May be
   * NULL. */
  int32_t (*progress)(void* user, uint64_t done_bytes, uint64_t total_bytes);
} cald_load_options;

typedef struct cald_model_info { /* pointers: HANDLE of the model */
  uint32_t struct_size;
  uint32_t n_graphs;
  const cald_graph* const* graphs;
  uint32_t lanes;
  uint32_t cells;
  uint32_t vocab;
  int32_t compute, kv_dtype, logits_dtype;
  uint64_t weight_bytes;
  uint64_t kv_bytes;
} cald_model_info;

typedef struct cald_footprint { /* bytes a load needs, before it starts */
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t host_bytes;
  uint64_t device_bytes;
} cald_footprint;

/* ---- devices ------------------------------------------------------------------------------ */

typedef struct cald_option { /* frozen */
  const char* key;
  const char* value;
} cald_option;

typedef struct cald_device_options {
  uint32_t struct_size;
  uint32_t index;
  const char* config; /* what follows ':' in "mock:bare"; "" if nothing */
  uint32_t n_options;
  uint32_t reserved;
  const cald_option* options; /* e.g. {"threads", "2"}; unknown keys are INVALID_ARGUMENT */
} cald_device_options;

typedef struct cald_device_info { /* strings: HANDLE of the driver */
  uint32_t struct_size;
  uint32_t chips;
  const char* name;         /* e.g. "cpu" */
  const char* device_class; /* compared with a package's target */
  const char* runtime;      /* vendor runtime version, "" if unknown */
  uint32_t sessions;        /* execution queues, each open once at a time */
  uint32_t depth;           /* jobs that may run at once on a session */
  uint32_t queue;           /* jobs that may wait behind them; one more is QUEUE_FULL */
  uint32_t exclusive;       /* 1: one process at a time */
  uint64_t memory_bytes;    /* 0 if unknown */
  uint64_t memory_free;     /* 0 if unknown */
  /* 0.9: */
  const char* id;     /* the same in every process, e.g. a bus address; names the device's lock */
  uint32_t domains;   /* memory domains that buffer_alloc knows; 0 = not stated */
  int32_t completion; /* CALD_COMPLETION_* */
  uint32_t clock;     /* CALD_CLOCK_* */
  uint32_t reserved;
} cald_device_info;

/* How calrt learns that a job has ended. */
enum {
  CALD_COMPLETION_CALLBACK = 0, /* on_complete is called by a thread of the driver, or in submit */
  CALD_COMPLETION_WAIT = 1,     /* on_complete is NULL: a thread of calrt sits in job_wait with
                                   deadlines of its own, then asks job_query */
  CALD_COMPLETION_POLL = 2      /* on_complete is called inside poll, which somebody must call */
};
enum {
  CALD_CLOCK_REAL = 0,
  CALD_CLOCK_VIRTUAL = 1 /* moves only by poll(now_ns): calrt leaves polling to its caller */
};

/* What a device is made of (0.9). Lists and strings: HANDLE of the device. */
typedef struct cald_chip {
  uint32_t struct_size;
  uint32_t index;
  const char* name;
  uint64_t memory_bytes; /* 0 if unknown */
} cald_chip;

typedef struct cald_link { /* frozen; between two chips, or chip and host (CALD_HOST_CHIP) */
  uint32_t from, to;
  uint64_t bytes_per_s; /* 0 if unknown */
  uint64_t latency_ns;  /* 0 if unknown */
} cald_link;
#define CALD_HOST_CHIP UINT32_MAX

typedef struct cald_topology {
  uint32_t struct_size;
  uint32_t n_chips;
  const cald_chip* const* chips;
  uint32_t n_links;
  uint32_t n_sessions;
  const cald_link* links;
  const uint64_t* session_chips; /* one bit mask of chip indices per session */
  uint32_t n_modes;
  uint32_t n_placements;
  const char* const* modes;      /* values of cald_load_options.parallel that can be asked for */
  const char* const* placements; /* values of cald_load_options.placement */
} cald_topology;

/* What an allocation in one domain needs (0.9). */
typedef struct cald_buffer_rules {
  uint32_t struct_size;
  uint32_t domain;
  uint64_t align;     /* least alignment of the address, a power of two */
  uint64_t padding;   /* sizes are rounded up to a multiple of this */
  uint64_t max_bytes; /* of one buffer; 0 = not stated */
} cald_buffer_rules;

enum { CALD_TO_DEVICE = 1, CALD_TO_HOST = 2 };

typedef struct cald_transfer { /* 0.9 */
  uint32_t struct_size;
  int32_t direction;
  cald_buffer* buffer;
  uint64_t offset;
  void* host; /* CALL; only read when the direction is CALD_TO_DEVICE */
  uint64_t bytes;
  uint64_t moved; /* out: fewer than `bytes` with OK is a TRANSFER_FAULT to calrt */
} cald_transfer;

/* Where an output buffer stands in the driver's own eyes (0.9). */
enum {
  CALD_BUFFER_IDLE = 0,   /* no job holds it */
  CALD_BUFFER_QUEUED = 1, /* bound to a job that has not begun */
  CALD_BUFFER_BUSY = 2,   /* the device may write it now */
  CALD_BUFFER_READY = 3   /* written, complete, not yet bound again */
};

typedef struct cald_buffer_state {
  uint32_t struct_size;
  int32_t state;
  uint64_t job_seq; /* of the job that holds it or wrote it last; 0 = none */
} cald_buffer_state;

/* One event of the device's own trace (0.9). Times are of the device's clock. Frozen. */
typedef struct cald_trace_event {
  uint64_t t_ns;
  uint64_t id;      /* job_seq where it belongs to a job, else 0 */
  const char* name; /* HANDLE of the driver */
  int32_t phase;    /* CALD_TRACE_* */
  uint32_t track;   /* e.g. chip or engine */
  int64_t value;    /* of a counter */
} cald_trace_event;

typedef struct cald_trace_info {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t dropped; /* events that did not fit since the trace began */
  /* A pair of readings of both clocks and how far apart the two may truly be. */
  uint64_t device_ns, host_ns, residual_ns;
} cald_trace_info;

enum { CALD_HEALTH_OK = 0, CALD_HEALTH_DEGRADED = 1, CALD_HEALTH_FAILED = 2 };

typedef struct cald_health { /* NaN where the device cannot tell */
  uint32_t struct_size;
  int32_t state;
  double temperature_c, power_w, clock_mhz;
} cald_health;

/* Evidence levels: 0 proven, 1 declared, 2 built and not accepted, 3 needs the vendor, 4 no. */
typedef struct cald_cap { /* strings: HANDLE of the driver */
  uint32_t struct_size;
  int32_t level;
  const char* name;   /* e.g. "cancel": at level 0, a job that has not begun is cancelled */
  const char* source; /* why the level is what it is */
  int64_t value;      /* 0 = absent, 1 = present, or a number */
} cald_cap;

typedef struct cald_counter { /* frozen; name: HANDLE of the driver */
  const char* name;
  uint64_t value;
} cald_counter;

/* ---- jobs --------------------------------------------------------------------------------- */

typedef struct cald_binding { /* frozen */
  int32_t role;
  uint32_t reserved;
  cald_buffer* buffer; /* UNTIL_DONE; of the session's device, any other is refused */
  uint64_t offset;
  uint64_t bytes;
} cald_binding;

enum { /* job states; >= CALD_JOB_DONE is terminal */
       CALD_JOB_QUEUED = 1,
       CALD_JOB_RUNNING = 2,
       CALD_JOB_DONE = 3,
       CALD_JOB_FAILED = 4,
       CALD_JOB_CANCELLED = 5
};

typedef struct cald_completion { /* CALL */
  uint32_t struct_size;
  int32_t state; /* terminal */
  uint64_t job_seq;
  cald_status status; /* where its damage is CALL (status.inc), no cell was written */
  uint32_t reserved;
  /* 0.9: bytes that reached the device and the bound outputs; CALD_BYTES_UNKNOWN if not counted.
   * Less than was bound, at CALD_JOB_DONE, makes the job a TRANSFER_FAULT. */
  uint64_t bytes_in, bytes_out;
  int64_t native_code; /* the vendor's own number; 0 if there is none */
  uint32_t flags;      /* CALD_ERROR_* */
  uint32_t reserved2;
} cald_completion;
#define CALD_BYTES_UNKNOWN UINT64_MAX

typedef struct cald_job_desc {
  uint32_t struct_size;
  uint32_t graph; /* index into cald_model_info.graphs */
  cald_model* model;
  uint32_t n_bindings;
  uint32_t reserved;
  const cald_binding* bindings; /* CALL; their buffers UNTIL_DONE */
  uint64_t job_seq;             /* returned in the completion */
  uint64_t deadline_ns;         /* absolute; a job not begun by then must not begin */
  /* May be NULL. Called exactly once for a job that submit accepted, from any thread, also on
   * failure and cancel, before job_wait reports the end, perhaps before submit returns; never for a
   * job that submit refused. It does not block and calls no driver entry.
   * A job that has not ended by its deadline is lost to calrt, not to the driver: it must still end
   * once. Until then calrt leaves its buffers alone; the late completion is known by job_seq. */
  void (*on_complete)(void* user, const cald_completion* completion);
  void* user;
  cald_binding_set* set; /* 0.9: `bindings` are buffers of this set; NULL = not made known before */
} cald_job_desc;

/* KV (0.9). Cells are BF16 or what kv_dtype says; a lane is one sequence's contiguous cells. */
enum {                         /* operations, as bits */
       CALD_KV_CLEAR = 1,      /* cells [cell, cell + n) of `lane` become as after the load */
       CALD_KV_LANE_COPY = 2,  /* cells [0, n) of `lane` to `to_lane` */
       CALD_KV_RANGE_COPY = 4, /* cells [cell, cell + n) of `lane` to `to_cell` of `to_lane`; the
                                  ranges may overlap */
       CALD_KV_ROTATE = 8,     /* K of cells [cell, cell + n) turned on by `delta` positions */
       CALD_KV_READ = 16,      /* cells [cell, cell + n) of `lane` to `buffer` */
       CALD_KV_WRITE = 32      /* the reverse */
};

typedef struct cald_kv_info {
  uint32_t struct_size;
  uint32_t ops; /* CALD_KV_* this model can do */
  uint32_t lanes, cells;
  int32_t dtype;
  uint32_t n_layers;
  /* READ and WRITE move, layer by layer, first K then V of n cells, row-major, each cell
   * bytes_per_cell / (2 * n_layers) bytes. */
  uint64_t bytes_per_cell;
} cald_kv_info;

typedef struct cald_kv_desc { /* a KV operation is a job: same states, deadline and completion */
  uint32_t struct_size;
  uint32_t op;
  cald_model* model;
  uint32_t lane, to_lane;
  uint32_t cell, to_cell;
  uint32_t n;
  int32_t delta;
  cald_buffer* buffer; /* UNTIL_DONE; of READ and WRITE */
  uint64_t offset;
  uint64_t bytes;
  uint64_t job_seq;
  uint64_t deadline_ns;
  void (*on_complete)(void* user, const cald_completion* completion);
  void* user;
} cald_kv_desc;

typedef struct cald_timing { /* durations in ns; 0 where not measured */
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t submitted_ns; /* absolute */
  uint64_t queue_ns, h2d_ns, infer_ns, d2h_ns;
} cald_timing;

/* ---- the table ---------------------------------------------------------------------------- */

typedef struct cald_driver_table { /* "required" unless marked optional */
  uint32_t struct_size;
  uint32_t abi_version;
  const char* name;
  const char* version;

  /* host: the one to keep; the entry's is for the handshake only. */
  cald_status (*driver_open)(const cald_host* host, cald_driver** out, cald_error* err);
  void (*driver_close)(cald_driver* driver);
  cald_status (*device_count)(cald_driver* driver, uint32_t* out, cald_error* err);
  cald_status (*device_enumerate)(cald_driver* driver, uint32_t index, cald_device_info* out,
                                  cald_error* err);

  cald_status (*device_open)(cald_driver* driver, const cald_device_options* options,
                             cald_device** out, cald_error* err);
  void (*device_close)(cald_device* device);
  cald_status (*device_info)(cald_device* device, cald_device_info* out, cald_error* err);
  cald_status (*device_health)(cald_device* device, cald_health* out,
                               cald_error* err); /* optional */
  /* For the two lists: *count is the room in `out` on the way in and the whole number on the way
   * out; out may be NULL with room 0. Entries of cald_cap carry struct_size set by the caller. */
  cald_status (*device_caps)(cald_device* device, cald_cap* out, uint32_t* count, cald_error* err);
  cald_status (*device_counters)(cald_device* device, cald_counter* out, uint32_t* count,
                                 cald_error* err); /* optional */

  cald_status (*session_open)(cald_device* device, uint32_t index, cald_session** out,
                              cald_error* err);
  void (*session_close)(cald_session* session); /* waits for the running job, fails the queued */

  cald_status (*buffer_alloc)(cald_device* device, uint32_t domain, uint64_t bytes, uint64_t align,
                              cald_buffer** out, cald_error* err);
  void (*buffer_free)(cald_buffer* buffer);
  cald_status (*buffer_map)(cald_buffer* buffer, void** out,
                            cald_error* err); /* optional; HANDLE */
  cald_status (*buffer_h2d)(cald_buffer* buffer, uint64_t offset, const void* src, uint64_t bytes,
                            cald_error* err);
  cald_status (*buffer_d2h)(cald_buffer* buffer, uint64_t offset, void* dst, uint64_t bytes,
                            cald_error* err);

  cald_status (*model_footprint)(cald_device* device, const cald_package* package,
                                 const cald_load_options* options, cald_footprint* out,
                                 cald_error* err); /* optional */
  cald_status (*model_load)(cald_device* device, const cald_package* package,
                            const cald_load_options* options, cald_model** out, cald_error* err);
  void (*model_unload)(cald_model* model);
  cald_status (*model_info)(cald_model* model, cald_model_info* out, cald_error* err);

  cald_status (*submit)(cald_session* session, const cald_job_desc* desc, cald_job** out,
                        cald_error* err);
  cald_status (*job_query)(cald_job* job, int32_t* state, cald_error* err); /* err: why it failed */
  cald_status (*job_wait)(cald_job* job, uint64_t deadline_ns,
                          cald_error* err); /* OK once terminal, else WAIT_TIMEOUT */
  cald_status (*job_cancel)(cald_job* job, cald_error* err); /* optional; best effort */
  cald_status (*job_timing)(cald_job* job, cald_timing* out, cald_error* err); /* optional */
  void (*job_destroy)(cald_job* job); /* terminal jobs only */

  /* Optional: advance a single-threaded device to `now_ns`; *next_ns is when it wants to be polled
   * again (CALD_NO_DEADLINE: nothing pending). */
  cald_status (*poll)(cald_session* session, uint64_t now_ns, uint64_t* next_ns, cald_error* err);

  /* ---- 0.9; all optional ---- */

  cald_status (*device_topology)(cald_device* device, cald_topology* out, cald_error* err);
  cald_status (*buffer_rules)(cald_device* device, uint32_t domain, cald_buffer_rules* out,
                              cald_error* err);
  /* Preferred to buffer_h2d and buffer_d2h: says how much it moved. */
  cald_status (*buffer_transfer)(cald_transfer* transfer, cald_error* err);
  cald_status (*buffer_state)(cald_buffer* buffer, cald_buffer_state* out, cald_error* err);

  /* Makes K sets known for a graph (ping/pong); the driver may map them once and for all. The
   * array is CALL, its buffers HANDLE of the set. */
  cald_status (*binding_set_make)(cald_model* model, uint32_t graph, const cald_binding* bindings,
                                  uint32_t n_bindings, cald_binding_set** out, cald_error* err);
  void (*binding_set_free)(cald_binding_set* set); /* no job holds it */

  cald_status (*kv_info)(cald_model* model, cald_kv_info* out, cald_error* err);
  cald_status (*kv_submit)(cald_session* session, const cald_kv_desc* desc, cald_job** out,
                           cald_error* err);

  /* The device's own trace. drain: *count is the room in `out` on the way in and the number
   * written on the way out, oldest first; `info` may be NULL. */
  cald_status (*trace_start)(cald_device* device, uint32_t capacity, cald_error* err);
  cald_status (*trace_drain)(cald_device* device, cald_trace_event* out, uint32_t* count,
                             cald_trace_info* info, cald_error* err);
  cald_status (*trace_stop)(cald_device* device, cald_error* err);
} cald_driver_table;

/* Exported by the driver. `abi_requested` is calrt's version; a driver of another major answers
 * VERSION_MISMATCH and leaves *out untouched. The table is HANDLE of the library (never unloaded).
 */
typedef cald_status (*cald_driver_entry_fn)(const cald_host* host, uint32_t abi_requested,
                                            const cald_driver_table** out);
CALD_EXPORT cald_status cald_driver_entry(const cald_host* host, uint32_t abi_requested,
                                          const cald_driver_table** out);

#ifdef __cplusplus
}
#endif
#endif /* CALRT_DRIVER_H */
