// SPDX-License-Identifier: Apache-2.0
// The lane table's protocol (csrc/kv/lanes.h) and the queue in front of it (csrc/engine/reserve.h)
// for spin: who may free a lane, which completion counts, what a waiter gets. Each atomic step is
// one call with the mutex held. tests/test_spin.py proves it, and runs the mutants below, each of
// which has to be found wrong.
//
//   -DENDS             also: the queue is closed, the device is lost
// Mutants:
//   -DNO_SEQ_CHECK     a completion ends whatever job the lane has
//   -DSEQ_PER_LEASE    job numbers begin anew with each lease, and only they are compared
//   -DCANCEL_FREES     a lane that is given back is free at once, its job still running
//   -DFAULT_FREES      a lane is free, and not poisoned, after a job that failed and wrote
//   -DSCRUB_TWICE      two may scrub a lane at a time
//   -DCANCEL_STAYS     a cancelled waiter keeps its place in the queue
//   -DNOBODY_SERVES    a lane that comes free is not offered to who waits
//
// Completions come late, as often as they like: a completion that was delivered before changes
// nothing, so it costs no states, and to say so is an assertion (STALE_COUNTS).

#define LANES 2
#define CLIENTS 3
#ifndef JOBS
#define JOBS 2   // of the first client; the others have one
#endif
#define QUEUE 2

mtype = { FREE, RESERVED, RUNNING, DRAINING, POISONED, OFFLINE };  // of lanes
mtype = { OPEN, GRANTED, CANCELLED, UNLOADED, TAKEN };             // outcomes of waiters
mtype = { IDLE, WRITING, WROTE, BROKE };                           // of a device's job

typedef Lane {
  mtype state = FREE;
  bool committed;
  byte lease;       // client + 1: each client reserves once
  byte seq;         // of the job in flight, 0 = none
  byte last;        // job number given on this lane
  bool scrubbing;
  byte failed       // scrubs
};
Lane lane[LANES];

// What the table does not know.
mtype device[LANES] = IDLE;
byte device_job[LANES];          // that writes, or whose completion is on its way
byte scrubs[LANES];              // that write
bool unknown[LANES];             // what the cells hold
#define ALL_JOBS (JOBS + CLIENTS - 1)
byte seq_of[ALL_JOBS], lane_of[CLIENTS];
bool delivered[ALL_JOBS];
#define CLIENT_OF(j) (j < JOBS -> 0 : j - JOBS + 1)

chan queue = [QUEUE] of { byte };
mtype outcome[CLIENTS] = OPEN;
byte over;     // clients that are
bool closed;   // the queue
bool lost;     // the device
bool quiet;    // the end

#if defined(NO_SEQ_CHECK)
#define MATCHES(l, of_lease, of_seq) (lane[l].seq != 0)
#elif defined(SEQ_PER_LEASE)
#define MATCHES(l, of_lease, of_seq) (lane[l].seq != 0 && lane[l].seq == of_seq)
#else
#define MATCHES(l, of_lease, of_seq) \
  (lane[l].seq != 0 && lane[l].seq == of_seq && lane[l].lease == of_lease)
#endif

#ifdef SCRUB_TWICE
#define MAY_SCRUB(l) true
#else
#define MAY_SCRUB(l) (!lane[l].scrubbing)
#endif

// ---- the table ----------------------------------------------------------------------------------

inline forget_owner(l) {
  lane[l].committed = false;
  lane[l].lease = 0
}

inline make_free(l) {
  assert(lane[l].state != FREE && lane[l].state != OFFLINE);
  forget_owner(l);
  lane[l].state = FREE
}

inline end_job(l, of_lease, of_seq, broke) {
  if
  :: MATCHES(l, of_lease, of_seq) ->
    lane[l].seq = 0;
    if
    :: !broke && lane[l].state == DRAINING -> make_free(l)
#ifdef FAULT_FREES
    :: broke -> make_free(l)
#else
    :: broke && lane[l].state == DRAINING -> forget_owner(l); lane[l].state = POISONED
    :: broke && lane[l].state != DRAINING -> lane[l].state = POISONED
#endif
    :: else
    fi
  :: else  // stale: dropped
  fi
}

inline release(l, of_lease) {
  if
  :: lane[l].lease != of_lease  // expired, or the device was lost
  :: lane[l].lease == of_lease && lane[l].seq != 0 ->
#ifdef CANCEL_FREES
    lane[l].seq = 0;
    make_free(l)
#else
    lane[l].state = DRAINING
#endif
  :: lane[l].lease == of_lease && lane[l].seq == 0 && lane[l].state == POISONED -> forget_owner(l)
  :: lane[l].lease == of_lease && lane[l].seq == 0 && lane[l].state != POISONED -> make_free(l)
  fi
}

inline reserve(l, c) {
  assert(lane[l].lease == 0 && lane[l].seq == 0 && !lane[l].committed && !lane[l].scrubbing);
  assert(device[l] == IDLE && scrubs[l] == 0 && !unknown[l]);
  lane[l].state = RESERVED;
  lane[l].lease = c + 1;
#ifdef SEQ_PER_LEASE
  lane[l].last = 0;
#endif
  lane_of[c] = l
}

inline take_offline(l) {
  forget_owner(l);
  lane[l].seq = 0;
  lane[l].state = OFFLINE
}

// Tries a poisoned lane: writes to it, then says whether it works.
proctype scrubber(byte l) {
end:
  do
  :: atomic { lane[l].state == POISONED && MAY_SCRUB(l) -> lane[l].scrubbing = true; scrubs[l]++ }
    atomic { scrubs[l]--;
      lane[l].scrubbing = false;
      if
      :: lane[l].state != POISONED
      :: lane[l].state == POISONED && lane[l].lease == 0 ->
        lane[l].failed = 0; unknown[l] = false; make_free(l)
      :: lane[l].state == POISONED && lane[l].lease != 0 ->
        lane[l].failed = 0; unknown[l] = false; lane[l].state = RESERVED
      :: lane[l].state == POISONED -> lane[l].failed++;
        if
        :: lane[l].failed == 2 -> lane[l].failed = 0; take_offline(l)
        :: else
        fi
      fi }
  od
}

// ---- the queue ----------------------------------------------------------------------------------

inline settle(c, what) {
  assert(outcome[c] == OPEN);  // one outcome each
  outcome[c] = what
}

inline grant(c) {
  if
  :: lane[0].state == FREE -> reserve(0, c)
  :: lane[1].state == FREE -> reserve(1, c)
  fi;
  settle(c, GRANTED)
}

#define ANY_FREE (lane[0].state == FREE || lane[1].state == FREE)
#define ALL_OFFLINE (lane[0].state == OFFLINE && lane[1].state == OFFLINE)

inline cancel(c) {
  if
  :: outcome[c] == OPEN ->
#ifndef CANCEL_STAYS
    queue ?? eval(c);
#endif
    settle(c, CANCELLED)
  :: outcome[c] == GRANTED ->
    outcome[c] = CANCELLED;
    release(lane_of[c], c + 1)
  :: else
  fi
}

// ---- who calls ----------------------------------------------------------------------------------

proctype client(byte c) {
  byte n;
  if
  :: atomic { closed -> goto refused }
  :: atomic { !closed && len(queue) == 0 && ANY_FREE -> grant(c) }
  :: atomic { !closed && !(len(queue) == 0 && ANY_FREE) && len(queue) < QUEUE -> queue ! c }
  :: atomic { !closed && !(len(queue) == 0 && ANY_FREE) && len(queue) == QUEUE -> goto refused }
  fi;
  // Only one cancels, and the others' deadline is far: a lost waiter waits for ever, and is found.
  if
  :: atomic { outcome[c] == GRANTED -> outcome[c] = TAKEN }
  :: atomic { outcome[c] == UNLOADED -> outcome[c] = TAKEN; goto refused }
  :: atomic { c == 0 || ALL_OFFLINE -> cancel(c); outcome[c] = TAKEN; goto refused }
  fi;
  if
  :: atomic { lane[lane_of[c]].lease == c + 1 -> lane[lane_of[c]].committed = true }
  :: atomic { lane[lane_of[c]].lease != c + 1 -> goto refused }  // expired
  :: goto finish                                                 // never wanted after all
  fi;
  do
  :: atomic { n < (c == 0 -> JOBS : 1) && lane[lane_of[c]].lease == c + 1 &&
      lane[lane_of[c]].seq == 0 && lane[lane_of[c]].state != POISONED ->
      // Nobody else writes, and nobody took the lane away.
      assert(device[lane_of[c]] == IDLE);
      assert(lane[lane_of[c]].committed);
      lane[lane_of[c]].last++;
      lane[lane_of[c]].seq = lane[lane_of[c]].last;
      lane[lane_of[c]].state = RUNNING;
      seq_of[(c == 0 -> n : c + JOBS - 1)] = lane[lane_of[c]].seq;
      device[lane_of[c]] = WRITING;
      device_job[lane_of[c]] = (c == 0 -> n : c + JOBS - 1);
      n++ }
  :: break  // done, or cancelled with a job in flight
  od;
finish:
  atomic { release(lane_of[c], c + 1) };
refused:
  atomic { n = 0; over++ }
}

// Writes, ends, and tells it later.
proctype driver(byte l) {
end:
  do
  :: device[l] == WRITING -> device[l] = WROTE
  :: atomic { device[l] == WRITING -> device[l] = BROKE; unknown[l] = true }
  :: atomic { device[l] == WROTE || device[l] == BROKE ->
      if
      :: lost  // everything that is told is stale
      :: else ->
        assert(MATCHES(l, CLIENT_OF(device_job[l]) + 1, seq_of[device_job[l]]))
      fi;
      delivered[device_job[l]] = true;
      end_job(l, CLIENT_OF(device_job[l]) + 1, seq_of[device_job[l]], (device[l] == BROKE));
      device[l] = IDLE;
      device_job[l] = 0 }
  od
}

// What comes by itself: admission in the order of the queue, expiry, an end.
proctype world() {
  byte c;
end:
  do
#ifndef NOBODY_SERVES
  :: atomic { len(queue) > 0 && ANY_FREE -> queue ? c; grant(c); c = 0 }
#endif
  :: atomic { lane[0].state == RESERVED && !lane[0].committed -> make_free(0) }
  :: atomic { lane[1].state == RESERVED && !lane[1].committed -> make_free(1) }
#ifdef ENDS
  :: atomic { !closed -> closed = true;
      do
      :: len(queue) > 0 -> queue ? c; settle(c, UNLOADED)
      :: len(queue) == 0 -> break
      od; c = 0 }
  :: atomic { !lost && !quiet -> lost = true; take_offline(0); take_offline(1) }
#endif
  od
}

// ---- what must hold -----------------------------------------------------------------------------

#define FREE_AND_WRITTEN(l) \
  (lane[l].state == FREE && \
   (device[l] != IDLE || scrubs[l] != 0 || lane[l].lease != 0 || lane[l].seq != 0))
#define POISONED_AND_WRITTEN(l) (lane[l].state == POISONED && (device[l] != IDLE || scrubs[l] > 1))
#define DRAINING_FOR_EVER(l) (lane[l].state == DRAINING && (device[l] == IDLE || lane[l].seq == 0))
#define WRITTEN_BY_TWO(l) (scrubs[l] > 1 || (scrubs[l] != 0 && device[l] != IDLE && !lost))
#define STALE_COUNTS(j) \
  (delivered[j] && MATCHES(lane_of[CLIENT_OF(j)], CLIENT_OF(j) + 1, seq_of[j]))
#define TWO_LANES (lane[0].lease != 0 && lane[0].lease == lane[1].lease)

// Never runs unless something is wrong: costs no states.
proctype watch() {
end:
  atomic {
    FREE_AND_WRITTEN(0) || FREE_AND_WRITTEN(1) || POISONED_AND_WRITTEN(0) ||
    POISONED_AND_WRITTEN(1) || DRAINING_FOR_EVER(0) || DRAINING_FOR_EVER(1) ||
    WRITTEN_BY_TWO(0) || WRITTEN_BY_TWO(1) || TWO_LANES || STALE_COUNTS(0) || STALE_COUNTS(1) ||
    STALE_COUNTS(2) || STALE_COUNTS(ALL_JOBS - 1) -> assert(false)
  }
}

#define RESTS(l) \
  ((lane[l].state == FREE || lane[l].state == OFFLINE) && device[l] == IDLE && scrubs[l] == 0)

init {
  atomic {
    run driver(0); run driver(1); run world(); run watch();
    run scrubber(0); run scrubber(1);
#ifdef SCRUB_TWICE
    run scrubber(0);
#endif
    run client(0); run client(1); run client(2)
  }
  // Not reached: a deadlock. Every waiter has had its outcome, every lane is back.
  atomic { over == CLIENTS && RESTS(0) && RESTS(1) ->
    quiet = true;
    assert(len(queue) == 0 && lane[0].lease == 0 && lane[1].lease == 0) }
}
