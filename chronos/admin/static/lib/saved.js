// The filters that the configuration names (admin.filters), as links above the list that they filter.

import { get } from "./api.js";
import { h, replace } from "./dom.js";

let asked = null; // They change with a restart only.

/** Links to the saved filters of a view, once they are known; nothing if there are none. */
export function savedFilters(view, path) {
  const element = h("nav", { class: "saved", "aria-label": "Saved filters", hidden: true });
  asked ??= get("/v1/filters").catch((error) => {
    asked = null;
    if (error.status === undefined) throw error;
    return { filters: [] };
  });
  asked.then(({ filters }) => {
    const own = filters.filter((each) => each.view === view);
    element.hidden = own.length === 0;
    replace(element, h("span", { class: "soft" }, "Saved:"), own.map((each) => h("a", { href: `${path}?${each.query}`, "data-route": true }, each.name)));
  });
  return element;
}
