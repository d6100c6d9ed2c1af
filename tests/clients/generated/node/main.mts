// Schedules, finds and cancels a message with the types that openapi-typescript makes, and openapi-fetch:
//
//     main SERVER ID TOPIC
//
// Prints the result of each step on a line.
import createClient from "openapi-fetch";
import type { paths } from "./chronos.js";

const [server, id, topic] = process.argv.slice(2) as [string, string, string];
const chronos = createClient<paths>({ baseUrl: server });
const due = Date.now() + 3_600_000;

function need<T>(found: { data?: T; error?: unknown }): T {
  if (found.data === undefined) throw new Error(JSON.stringify(found.error));
  return found.data;
}

const scheduled = need(
  await chronos.POST("/v1/messages", {
    params: { query: { wait: "5s" } },
    body: { id, target: { topic }, value: "from Node", deliver_at: due },
  }),
);
if (Array.isArray(scheduled)) throw new Error("a list for one message");
console.log(scheduled.result);

const found = need(await chronos.GET("/v1/messages/{id}", { params: { path: { id } } }));
console.log(found.state);

const due_from = new Date(due - 60_000).toISOString();
const page = need(await chronos.GET("/v1/messages", { params: { query: { target: topic, due_from } } }));
console.log(page.messages.some((each) => each.id === id));

const cancelled = need(await chronos.DELETE("/v1/messages/{id}", { params: { path: { id } } }));
console.log(cancelled.result);
