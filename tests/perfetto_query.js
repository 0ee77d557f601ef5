// SPDX-License-Identifier: Apache-2.0
// Opens a trace in Perfetto itself and asks it questions in SQL:
//   node perfetto_query.js FOLDER_OF_ITS_WEB_PAGE TRACE "select ..." ...
// prints a line of JSON a question: {"columns": [...], "rows": [[...]]} or {"error": "..."}.
//
// The engine of Perfetto's page is a worker that runs the trace processor in WebAssembly and speaks protobuf
// (trace_processor.proto: TraceProcessorRpcStream) over a message port. This is the page's part of that talk.
'use strict';
const fs = require('fs');
const path = require('path');
const vm = require('vm');

const [folder, trace, ...questions] = process.argv.slice(2);

// ---- protobuf, as much of it as the questions need ----

function varint(value) {
  const bytes = [];
  let rest = BigInt(value);
  for (; rest > 127n; rest >>= 7n) bytes.push(Number(rest & 127n) | 128);
  return Buffer.from([...bytes, Number(rest)]);
}
const number = (field, value) => Buffer.concat([varint(field << 3), varint(value)]);
const bytes = (field, value) => Buffer.concat([varint((field << 3) | 2), varint(value.length), value]);

function* varints(buffer) {
  for (let at = 0; at < buffer.length;) {
    let value = 0n, shift = 0n, byte;
    do {
      byte = buffer[at++];
      value |= BigInt(byte & 127) << shift;
      shift += 7n;
    } while (byte & 128);
    yield [value, at];
  }
}

function* fields(buffer) {
  while (buffer.length > 0) {
    const [tag, after] = varints(buffer).next().value;
    buffer = buffer.subarray(after);
    const kind = Number(tag & 7n);
    let value;
    if (kind === 0 || kind === 2) {
      const [first, used] = varints(buffer).next().value;
      const end = kind === 0 ? used : used + Number(first);
      value = kind === 0 ? first : buffer.subarray(used, end);
      buffer = buffer.subarray(end);
    } else {
      value = buffer.subarray(0, kind === 1 ? 8 : 4);
      buffer = buffer.subarray(value.length);
    }
    yield [Number(tag >> 3n), value];
  }
}

// ---- the talk ----

const APPEND = 1, FINALIZE = 2, QUERY = 3;  // TraceProcessorMethod
const port = {
  replies: [],
  waiting: null,
  postMessage(data) {  // from the engine
    for (const [field, message] of fields(Buffer.from(data))) {
      if (field === 1) this.replies.push(message);
    }
    if (this.waiting) this.waiting();
  },
};
let sequence = 0;

async function ask(method, ...arguments_) {
  const request = [number(1, sequence++), number(2, method), ...arguments_];
  port.onmessage({data: new Uint8Array(bytes(1, Buffer.concat(request)))});
  while (port.replies.length === 0) await new Promise((resolve) => { port.waiting = resolve; });
  return port.replies;
}

function resultOf(replies) {
  const result = {columns: [], rows: []};
  const cells = [];
  for (const [field, answer] of replies.flatMap((reply) => [...fields(reply)])) {
    if (field === 5) throw new Error(answer.toString());  // fatal_error
    if (field !== 203) continue;  // query_result
    for (const [part, value] of fields(answer)) {
      if (part === 1) result.columns.push(value.toString());
      if (part === 2 && value.length > 0) result.error = value.toString();
      if (part !== 3) continue;  // batch of cells
      const batch = {1: [], 2: [], 3: [], 5: []};
      for (const [kind, data] of fields(value)) {
        if (kind === 1) batch[1] = [...data];
        if (kind === 2) {
          for (let at = 0; at < data.length;) {
            const [next, used] = varints(data.subarray(at)).next().value;
            batch[2].push(Number(BigInt.asIntN(64, next)));
            at += used;
          }
        }
        if (kind === 3) for (let at = 0; at < data.length; at += 8) batch[3].push(data.readDoubleLE(at));
        if (kind === 5) batch[5] = data.toString().split('\0');
      }
      const take = {1: () => null, 2: () => batch[2].shift(), 3: () => batch[3].shift(), 4: () => batch[5].shift()};
      cells.push(...batch[1].map((kind) => take[kind]()));
    }
  }
  const width = result.columns.length;
  while (width > 0 && cells.length > 0) result.rows.push(cells.splice(0, width));
  return result;
}

async function main() {
  const read = (name) => fs.readFileSync(path.join(folder, path.basename(name)));
  process.type = 'renderer';  // the engine must take this for a page, or it refuses to run
  globalThis.self = globalThis;
  globalThis.location = {href: 'http://localhost/'};
  globalThis.WorkerGlobalScope = Object;
  globalThis.XMLHttpRequest = class {  // which fetches the WebAssembly beside it
    open(_, name) { this.name = name; }
    send() { this.response = read(this.name); }
  };
  console.log = console.warn = () => {};  // the engine's talk; answers go to stdout alone
  vm.runInThisContext(read('engine_bundle.js').toString(), 'engine_bundle.js');
  globalThis.onmessage({data: port});
  await new Promise(setImmediate);  // the engine sets itself up when its module has run
  await ask(APPEND, bytes(101, fs.readFileSync(trace)));
  port.replies = [];
  await ask(FINALIZE);
  for (const question of questions) {
    port.replies = [];
    process.stdout.write(JSON.stringify(resultOf(await ask(QUERY, bytes(103, bytes(1, Buffer.from(question)))))) + '\n');
  }
}
main().then(() => process.exit(0), (error) => {
  process.stderr.write(`${String(error.stack).slice(-2000)}\n`);
  process.exit(1);
});
