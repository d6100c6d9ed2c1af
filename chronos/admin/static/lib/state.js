// What all views share: the clock of the service, the zone in which times are shown, and the theme.

const ZONE = "chronos-zone";
const THEME = "chronos-theme";

// Storage may be forbidden: a choice then lasts until the page is closed.
function stored(name) {
  try { return localStorage.getItem(name); } catch { return null; }
}
function store(name, value) {
  try { localStorage.setItem(name, value); } catch { /* see above */ }
}

let zone = stored(ZONE) === "local" ? "local" : "utc";
let skewMs = 0;

/** "utc" or "local". */
export const currentZone = () => zone;

export function switchZone() {
  zone = zone === "utc" ? "local" : "utc";
  store(ZONE, zone);
}

/** The time by the clock of the service, which countdowns follow. */
export const nowMs = () => Date.now() + skewMs;

/** Take over the clock of the service from a time in its answer. */
export function setClock(instant) {
  const ms = Date.parse(instant);
  if (!Number.isNaN(ms)) skewMs = ms - Date.now();
}

const dark = matchMedia("(prefers-color-scheme: dark)");
let chosen = stored(THEME);

function applyTheme() {
  document.documentElement.dataset.theme = chosen ?? (dark.matches ? "dark" : "light");
}
dark.addEventListener("change", applyTheme);
applyTheme();

export function switchTheme() {
  chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  store(THEME, chosen);
  applyTheme();
}
