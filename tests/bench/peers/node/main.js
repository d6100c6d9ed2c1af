// Loads and reads BullMQ on Redis for `scripts/bench --peers`.
//
//   node main.js bullmq write|read TASK
//
// TASK is JSON, as for ../go/main.go. Each job has its number, its due time (ms) and a payload.
"use strict";

const { Queue, Worker } = require("bullmq");
const { setTimeout: sleep } = require("node:timers/promises");
const { performance } = require("node:perf_hooks");

const BULK = 500; // jobs of one request
const UNDER_WAY = 8; // requests that wait for their answer at most
const CONCURRENCY = 200; // jobs that the worker handles at a time

const connectionOf = (task) => {
  const [host, port] = task.server.split(":");
  return { host, port: Number(port), maxRetriesPerRequest: null };
};

const dueMs = (task, number, nowMs) =>
  task.due_ms || nowMs + task.lowest_ms + ((number * 7919) % (task.highest_ms - task.lowest_ms + 1));

async function write(task) {
  const queue = new Queue("bench", { connection: connectionOf(task) });
  await queue.waitUntilReady();
  const payload = "x".repeat(task.bytes - 16);
  const underWay = new Set();
  const start = performance.now();
  for (let number = 0; number < task.count; ) {
    const allowed = task.rate ? Math.floor(((performance.now() - start) / 1000) * task.rate) : task.count;
    const until = Math.min(task.count, allowed, number + BULK);
    if (until <= number) {
      await sleep(1);
      continue;
    }
    const jobs = [];
    for (const nowMs = Date.now(); number < until; number += 1) {
      const due = dueMs(task, number, nowMs);
      jobs.push({
        name: "job",
        data: { number, due, payload },
        opts: { delay: Math.max(0, due - Date.now()), removeOnComplete: true },
      });
    }
    const request = queue.addBulk(jobs).finally(() => underWay.delete(request));
    underWay.add(request);
    if (underWay.size >= UNDER_WAY) await Promise.race(underWay);
  }
  await Promise.all(underWay);
  const accepted_s = (performance.now() - start) / 1000;
  await queue.close();
  return { accepted_s };
}

async function read(task) {
  const times = new Uint8Array(task.count);
  const late = [];
  let early = 0;
  let duplicated = 0;
  let done;
  const all = new Promise((resolve) => (done = resolve));
  const handle = async ({ data }) => {
    const ms = performance.timeOrigin + performance.now() - data.due;
    late.push(ms);
    if (ms < 0) early += 1;
    times[data.number] += 1;
    if (times[data.number] > 1) duplicated += 1;
    else if (late.length - duplicated === task.count) done();
  };
  const worker = new Worker("bench", handle, { connection: connectionOf(task), concurrency: CONCURRENCY });
  worker.on("error", fail);
  await Promise.race([all, sleep(task.timeout_s * 1000)]);
  await worker.close(true);
  late.sort((one, other) => one - other);
  const at = (share) => late[Math.min(late.length - 1, Math.floor(share * late.length))] ?? 0;
  const lost = task.count - (late.length - duplicated);
  return { p50: at(0.5), p99: at(0.99), max: at(1), early, duplicated, lost };
}

function fail(error) {
  console.error(`peers: ${error.stack}`);
  process.exit(1);
}

const [, , , verb, task] = process.argv;
(verb === "write" ? write : read)(JSON.parse(task)).then((result) => {
  console.log(JSON.stringify(result));
  process.exit(0);
}, fail);
