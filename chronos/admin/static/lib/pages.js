// Pages of a list whose next page is named by a key of the service.

import { ApiError } from "./api.js";
import { h, link, replace } from "./dom.js";
import { navigate } from "./router.js";

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

/** The answer of `ask()` with one page; null if its key is no longer valid: the list begins again at its first page. */
export async function askPage(ask, { path, query }) {
  try {
    return await ask();
  } catch (error) {
    if (!isStalePage(error)) throw error;
    query.delete("after");
    navigate(`${path}?${query}`, { replace: true });
    return null;
  }
}

/** Whether a page key is no longer valid, because its node was restarted or the filter was edited by hand. */
export const isStalePage = (error) => error instanceof ApiError && error.code === "begin-again";
