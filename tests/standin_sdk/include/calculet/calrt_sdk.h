/* SPDX-License-Identifier: Apache-2.0
 * A STAND-IN, invented by the calrt project. This is NOT the SDK of CalRT 0.7.6, which is not
 * public: no name, number or rule below is the vendor's. It has the abilities and the traps that
 * are known of the real one, so that an adapter can be written and broken without it.
 *
 * The runtime of one VirtualDevice (two chiplets), C interface. calrt_sdk.hpp is the same for C++.
 *
 * Answers. Every function answers an error number, 0 to 29, 0 = OK, unless it says otherwise. A
 * function that answers an error has written no output parameter. calrt_last_error() has the text.
 *
 * MISUSE. A call that breaks a rule marked MISUSE answers CALRT_E_STATE or CALRT_E_HANDLE, or ends
 * the process by abort(); which of them is not specified.
 *
 * Pointers. What the SDK hands out is BORROWED: it is the SDK's, is never freed by the caller and
 * lives as long as is said beside it; to read it later is undefined. What the caller passes is read
 * during the call only, unless marked LENT: then the SDK reads it until the time named.
 *
 * Threads. Any thread may call. calrt_wait, calrt_query and the calrt_outbuf_ functions may run
 * beside anything on the same model; all other calls on one handle are one at a time.
 *
 * Time. No function takes a time limit, and none has one: "waits" means for ever, if need be.
 */
#ifndef CALCULET_CALRT_SDK_H
#define CALCULET_CALRT_SDK_H

#include <stddef.h>
#include <stdint.h>

#define CALRT_SDK_VERSION "0.7.6-standin"
#define CALRT_SDK_API __attribute__((visibility("default")))
#define CALRT_MAX_DIMS 4

#ifdef __cplusplus
extern "C" {
#endif

/* ---- error numbers ------------------------------------------------------------------------ */

enum {
  CALRT_E_OK = 0,
  CALRT_E_ARGUMENT = 1,    /* a null pointer, a number out of range */
  CALRT_E_HANDLE = 2,      /* not a live handle */
  CALRT_E_STATE = 3,       /* not now: wrong order of calls */
  CALRT_E_NOT_INIT = 4,    /* calrt_init was not called */
  CALRT_E_INIT_TWICE = 5,  /* calrt_init was called already */
  CALRT_E_UNSUPPORTED = 6, /* this runtime, device or model has it not */
  CALRT_E_NO_DEVICE = 7,   /* there is no device of this index */
  CALRT_E_DEVICE_BUSY = 8, /* the device is open */
  CALRT_E_HOST_MEMORY = 9,
  CALRT_E_CHIP_MEMORY = 10,
  CALRT_E_FILE_MISSING = 11,
  CALRT_E_FILE_FORMAT = 12,
  CALRT_E_FILE_VERSION = 13,
  CALRT_E_MODEL_LIMIT = 14, /* one model may be resident */
  CALRT_E_IO_INDEX = 15,    /* no such graph, input or output */
  CALRT_E_IO_VALUE = 16,    /* a run's input holds a value out of range; nothing was computed */
  CALRT_E_QUEUE_FULL = 17,
  CALRT_E_SUBMIT = 18,      /* the device did not take the run */
  CALRT_E_RUN_UNKNOWN = 19, /* no run of this number, or it ended long ago */
  CALRT_E_RUN = 20,         /* the run failed on the device */
  CALRT_E_OUTBUF_STATE = 21,
  CALRT_E_KV_FULL = 22,
  CALRT_E_KV_SEQ = 23,   /* no such sequence */
  CALRT_E_KV_RANGE = 24, /* cells that were not applied for */
  CALRT_E_CCU = 25,      /* fault of the chiplet's control unit: reload the model */
  CALRT_E_TRANSFER = 26, /* fault of a link, to the host or between the chiplets */
  CALRT_E_DEVICE = 27,   /* the device is gone: close and reopen */
  CALRT_E_TRACE = 28,    /* trace not started, or started twice */
  CALRT_E_INTERNAL = 29
};

/* Text of the last error of this thread, "" if there was none. Never fails. BORROWED until this
 * thread's next call of any function. */
CALRT_SDK_API const char* calrt_last_error(void);

/* CALRT_SDK_VERSION of the library. Never fails, needs no init. BORROWED for ever. */
CALRT_SDK_API const char* calrt_version(void);

/* ---- runtime ------------------------------------------------------------------------------ */

/* One runtime per process: a second init answers INIT_TWICE and is not counted. All functions
 * below answer NOT_INIT without it. Not usable in a child of fork(). */
CALRT_SDK_API int calrt_init(void);
/* STATE while a device is open. After it calrt_init may be called again. */
CALRT_SDK_API int calrt_shutdown(void);

/* ---- VirtualDevice ------------------------------------------------------------------------ */

typedef struct calrt_vdev calrt_vdev;

/* One board is one VirtualDevice, whatever its number of chiplets. Does not open anything. */
CALRT_SDK_API int calrt_vdev_count(uint32_t* out);

/* DEVICE_BUSY if this process has it open; another process is not noticed. */
CALRT_SDK_API int calrt_vdev_open(uint32_t index, calrt_vdev** out);
/* MISUSE while a model is loaded. The handle is gone afterwards. */
CALRT_SDK_API int calrt_vdev_close(calrt_vdev* vdev);

typedef struct calrt_vdev_desc {
  const char* name;     /* BORROWED until calrt_vdev_close */
  const char* firmware; /* BORROWED until calrt_vdev_close */
  uint32_t chips;       /* parts of this one device, not devices */
  uint32_t queue_depth; /* runs that may be outstanding: one runs, the others wait */
} calrt_vdev_desc;
CALRT_SDK_API int calrt_vdev_info(calrt_vdev* vdev, calrt_vdev_desc* out);

/* Bytes of one chiplet, 0 <= chip < chips. */
CALRT_SDK_API int calrt_vdev_chip_memory(calrt_vdev* vdev, uint32_t chip, uint64_t* total,
                                         uint64_t* free);

/* How the chiplets share a model's work. It must be what the model's files were compiled for when
 * they are loaded, and cannot be changed while one is loaded (STATE). TENSOR after opening. */
enum { CALRT_PARALLEL_NONE = 0, CALRT_PARALLEL_TENSOR = 1 };
CALRT_SDK_API int calrt_vdev_set_parallel_mode(calrt_vdev* vdev, int mode);
CALRT_SDK_API int calrt_vdev_get_parallel_mode(calrt_vdev* vdev, int* mode);

typedef struct calrt_counters { /* since calrt_vdev_open; each wraps at 32 bits */
  uint32_t submitted;
  uint32_t completed; /* ended without an error */
  uint32_t failed;
  uint32_t cancelled;
  uint32_t outstanding; /* now: waiting and running */
  uint32_t h2d_kib, d2h_kib;
} calrt_counters;
CALRT_SDK_API int calrt_vdev_counters(calrt_vdev* vdev, calrt_counters* out);

/* ---- model -------------------------------------------------------------------------------- */

typedef struct calrt_model calrt_model;

/* Loads a model's directory. Blocks, has no progress and cannot be stopped. The files are not
 * needed afterwards. FILE_MISSING, FILE_FORMAT, FILE_VERSION (also: compiled for another parallel
 * mode), MODEL_LIMIT, CHIP_MEMORY. */
CALRT_SDK_API int calrt_load_model(calrt_vdev* vdev, const char* directory, calrt_model** out);
/* MISUSE while a run is outstanding. Everything BORROWED from the model is gone afterwards, without
 * warning also the OutputBufs that are still acquired. */
CALRT_SDK_API int calrt_unload_model(calrt_model* model);

typedef struct calrt_model_desc {
  uint32_t graphs;
  uint32_t vocab;
  uint32_t context;  /* positions are 0 to context - 1 */
  uint32_t kv_cells; /* of the one arena that all sequences share, fixed by the model's files */
  uint32_t kv_seqs;  /* sequences are 0 to kv_seqs - 1 */
  uint32_t kv_cell_bytes; /* K and V of one cell, all layers */
  uint32_t kv_layers;
  int32_t kv_dtype;      /* CALRT_DT_* */
  uint64_t weight_bytes; /* on the chiplets, both together; as is kv_bytes */
  uint64_t kv_bytes;
} calrt_model_desc;
CALRT_SDK_API int calrt_model_info(calrt_model* model, calrt_model_desc* out);

enum { CALRT_GRAPH_PREFILL = 0, CALRT_GRAPH_DECODE = 1 };
typedef struct calrt_graph_desc {
  const char* name; /* BORROWED until calrt_unload_model */
  int32_t kind;     /* CALRT_GRAPH_* */
  uint32_t rows;    /* tokens of one run: the batch of decode, the chunk of prefill; fixed */
  uint32_t inputs, outputs;
} calrt_graph_desc;
CALRT_SDK_API int calrt_graph_info(calrt_model* model, uint32_t graph, calrt_graph_desc* out);

enum { CALRT_DT_F32 = 0, CALRT_DT_BF16 = 1, CALRT_DT_I32 = 2 };

/* Inputs are dense. An output of d0 > 0 is tiled: memory is
 *   [padded[1] / d0][padded[0]][d0],
 * so element (row, column) lies at ((column / d0) * padded[0] + row) * d0 + column % d0. Rows and
 * columns beyond dims hold anything. padded may differ from graph to graph, and from load to load.
 */
typedef struct calrt_io_desc {
  const char* name; /* BORROWED until calrt_unload_model */
  int32_t dtype;    /* CALRT_DT_* */
  uint32_t rank;
  uint64_t dims[CALRT_MAX_DIMS];   /* what counts */
  uint64_t padded[CALRT_MAX_DIMS]; /* what is there; each >= dims */
  uint32_t d0;                     /* 0: row-major by padded */
  uint32_t align;                  /* of the caller's address, bytes */
  uint64_t bytes;                  /* of the whole, padding included */
} calrt_io_desc;
/* `output`: 0 for inputs, 1 for outputs. The inputs of both kinds of graph, in this order:
 *   "input_ids" I32 [rows], "position_ids" I32 [rows], "seq_id" I32 [1], and of prefill alone
 *   "n_valid" I32 [1]: the first n_valid rows count, the others are not read.
 * Positions of one run are consecutive, and all of them applied for (calrt_kv_apply).
 * Outputs: "logits" [1, vocab], of the last row that counts. */
CALRT_SDK_API int calrt_io_info(calrt_model* model, uint32_t graph, int output, uint32_t index,
                                calrt_io_desc* out);

/* ---- runs --------------------------------------------------------------------------------- */

/* A run is outstanding from calrt_infer until it has ended, whether or not that was reported. */

/* Every graph has two fixed sets of buffers, so that one may be filled while the other is run. */
enum { CALRT_PING = 0, CALRT_PONG = 1 };

/* Makes input buffers known for a set, in the order of calrt_io_info: calrt_infer with inputs NULL
 * uses them. LENT until they are replaced, unbound (inputs NULL) or the model is unloaded. MISUSE
 * while a run of this graph and set is outstanding. */
CALRT_SDK_API int calrt_bind_set(calrt_model* model, uint32_t graph, int set,
                                 const void* const* inputs);

/* Queues one run and returns at once. The array is read during the call; the buffers in it are LENT
 * until the run has ended: they are read when the run begins, which is later. The run's output goes
 * to the OutputBuf of graph and set; one that is READY and was never acquired is overwritten.
 * *run: its number, > 0, never used again. QUEUE_FULL, SUBMIT, OUTBUF_STATE (the OutputBuf belongs
 * to a run that is outstanding, or is acquired). Runs begin in the order of their numbers. */
CALRT_SDK_API int calrt_infer(calrt_model* model, uint32_t graph, int set,
                              const void* const* inputs, uint64_t* run);

typedef struct calrt_done {
  uint64_t run;
  int32_t error; /* of the run; 0 = its output is ready */
  uint32_t graph;
  int32_t set;
  uint32_t reserved;
} calrt_done;
/* Waits for the next run to end that was not reported yet, and reports it. WITHOUT A TIME LIMIT.
 * STATE when nothing is outstanding or unreported, also when the last such run is cancelled while
 * this waits. One thread at a time. */
CALRT_SDK_API int calrt_wait(calrt_model* model, calrt_done* out);

enum {
  CALRT_RUN_QUEUED = 0,
  CALRT_RUN_RUNNING = 1,
  CALRT_RUN_DONE = 2,
  CALRT_RUN_FAILED = 3,
  CALRT_RUN_CANCELLED = 4
};
/* Where a run stands, without waiting; the last 64 are remembered. It reports nothing: a run that
 * has ended stays due in calrt_wait. */
CALRT_SDK_API int calrt_query(calrt_model* model, uint64_t run, int* state);

/* Takes back a run that has not begun: STATE if it has. It is not reported by calrt_wait. */
CALRT_SDK_API int calrt_cancel(calrt_model* model, uint64_t run);

/* ---- OutputBuf ---------------------------------------------------------------------------- */

/* infer: FREE or READY -> QUEUED -> WRITING -> READY; acquire: READY -> ACQUIRED; release: ->
 * FREE. A run that failed or was cancelled leaves FREE. */
enum {
  CALRT_OUTBUF_FREE = 0,
  CALRT_OUTBUF_QUEUED = 1,
  CALRT_OUTBUF_WRITING = 2,
  CALRT_OUTBUF_READY = 3,
  CALRT_OUTBUF_ACQUIRED = 4
};
typedef struct calrt_outbuf {
  const void* data; /* BORROWED until calrt_outbuf_release; tiled as calrt_io_info says */
  uint64_t bytes;
} calrt_outbuf;
/* The output of a run that has ended; OUTBUF_STATE unless its OutputBuf is READY with it. */
CALRT_SDK_API int calrt_outbuf_acquire(calrt_model* model, uint64_t run, uint32_t output,
                                       calrt_outbuf* out);
/* Gives back what was acquired of a run. */
CALRT_SDK_API int calrt_outbuf_release(calrt_model* model, uint64_t run);
/* *state: CALRT_OUTBUF_*; *run: whose output it holds or awaits, 0 = none. */
CALRT_SDK_API int calrt_outbuf_state(calrt_model* model, uint32_t graph, int set, int* state,
                                     uint64_t* run);

/* ---- KV ----------------------------------------------------------------------------------- */

/* A sequence has cells 0 to n - 1, one per position, taken from the model's one arena. */

/* Cells for positions [0, n) of a sequence: takes those it has not yet, so that runs may write
 * there. When fewer are free it SPINS until another thread releases some; there is no limit. A
 * sequence that has n cells already keeps them. KV_SEQ, KV_RANGE (n > context). */
CALRT_SDK_API int calrt_kv_apply(calrt_model* model, uint32_t seq, uint32_t n);
/* Gives back all cells of a sequence. MISUSE while a run is outstanding. */
CALRT_SDK_API int calrt_kv_release(calrt_model* model, uint32_t seq);
/* Cells that are free, and those that `seq` has. */
CALRT_SDK_API int calrt_kv_free_cells(calrt_model* model, uint32_t* out);
CALRT_SDK_API int calrt_kv_seq_cells(calrt_model* model, uint32_t seq, uint32_t* out);

/* The KV adapter. DECLARED FOR ALL RUNTIMES; on some of them copy, add, div and state do nothing
 * and answer OK. There is no call that tells: see by the effect. Ranges are positions [p0, p1), p1
 * = UINT32_MAX is the end of the sequence's cells; KV_RANGE beyond them. All are done when they
 * return, and are MISUSE while a run is outstanding. */

/* Copies cells to the same positions of another sequence, which takes what it lacks as
 * calrt_kv_apply(to, p1) does, and SPINS as it does. */
CALRT_SDK_API int calrt_kv_seq_copy(calrt_model* model, uint32_t from, uint32_t to, uint32_t p0,
                                    uint32_t p1);
/* Releases every other sequence. */
CALRT_SDK_API int calrt_kv_seq_keep(calrt_model* model, uint32_t seq);
/* Clears a range. At the end of the sequence its cells are given back; a hole keeps them. */
CALRT_SDK_API int calrt_kv_seq_rm(calrt_model* model, uint32_t seq, uint32_t p0, uint32_t p1);
/* Context shift: moves the cells by `delta` positions and turns their K by as much. They must stay
 * within the sequence's cells; what is left behind is cleared, and given back at the end. */
CALRT_SDK_API int calrt_kv_seq_add(calrt_model* model, uint32_t seq, uint32_t p0, uint32_t p1,
                                   int32_t delta);
/* Moves the cell at each position p of the range to p / divisor, its K turned; of several that meet
 * the last stays. */
CALRT_SDK_API int calrt_kv_seq_div(calrt_model* model, uint32_t seq, uint32_t p0, uint32_t p1,
                                   uint32_t divisor);
/* A range's cells to or from the caller's memory, `bytes` = cells * kv_cell_bytes: layer by layer
 * first K, then V of all cells. State_set needs the cells applied for. */
CALRT_SDK_API int calrt_kv_state_get(calrt_model* model, uint32_t seq, uint32_t p0, uint32_t p1,
                                     void* out, uint64_t bytes);
CALRT_SDK_API int calrt_kv_state_set(calrt_model* model, uint32_t seq, uint32_t p0, uint32_t p1,
                                     const void* from, uint64_t bytes);

/* ---- trace -------------------------------------------------------------------------------- */

enum { CALRT_TRACE_SUBMIT = 0, CALRT_TRACE_BEGIN = 1, CALRT_TRACE_END = 2 };
typedef struct calrt_trace_event {
  uint64_t ticks; /* the device's clock, 100 MHz, of no known beginning */
  uint64_t run;
  const char* name; /* the graph's; BORROWED until calrt_unload_model */
  int32_t phase;    /* CALRT_TRACE_* */
  uint32_t reserved;
} calrt_trace_event;
/* Keeps the last `capacity` events; older ones are lost without a word. TRACE if it runs. */
CALRT_SDK_API int calrt_trace_start(calrt_vdev* vdev, uint32_t capacity);
/* Takes up to *n events, oldest first; *n: how many. *now: the device's clock at this call. */
CALRT_SDK_API int calrt_trace_read(calrt_vdev* vdev, calrt_trace_event* out, uint32_t* n,
                                   uint64_t* now);
CALRT_SDK_API int calrt_trace_stop(calrt_vdev* vdev);

#ifdef __cplusplus
}
#endif
#endif /* CALCULET_CALRT_SDK_H */
