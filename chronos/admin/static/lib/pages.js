// Pages of a list whose next page is named by a key of the service.

import { h, link, replace } from "./dom.js";
import { ApiError } from "./api.js";

/** Links below a list. `found`: the answer, with `after`; `next`: the query of the next page without its key. */
export function pager(element, { path, query, found, count, next, what }) {
  const isFirst = !query.get("after");
  const all = Object.fromEntries([...query].filter(([name]) => name !== "after"));
  replace(element,
    h("span", { class: "soft" }, found.after === null ? `${count} on this page, which is the last` : count ? `${count} on this page` : `None of the ${what} that were read matches; the search goes on`),
    !isFirst && link(path, all, "First page"),
    found.after !== null && link(path, { ...all, ...next, after: found.after }, count ? "Next page" : "Search on"));
  element.hidden = isFirst && found.after === null;
}

/** Whether a page key is no longer valid, because its node was restarted or the filter was edited by hand. */
export const isStalePage = (error) => error instanceof ApiError && error.code === "begin-again";
