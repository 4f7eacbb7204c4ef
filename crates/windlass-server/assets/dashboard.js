// The dashboard without its framework: pages come from the server, and this module adds times in the viewer's zone,
// shortcuts, colors, confirmations (actions.js) and live updates (live.js).

import { startActions } from "./actions.js";
import { startLive, togglePause } from "./live.js";

const fullTime = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const exactTime = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });
const relativeTime = new Intl.RelativeTimeFormat(undefined, { numeric: "auto", style: "short" });
const units = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];

/** Shows all times below an element in the viewer's zone. */
export function showTimes(root = document) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const time = new Date(element.dateTime);
    if (Number.isNaN(time.getTime())) continue;
    const text = "ago" in element.dataset ? relative(time) : fullTime.format(time);
    if (element.textContent !== text) element.textContent = text;
    element.title = exactTime.format(time);
  }
}

function relative(time) {
  const seconds = (time - Date.now()) / 1000;
  if (Math.abs(seconds) > 7 * 86400) return fullTime.format(time);
  const [unit, size] = units.find(([, size]) => Math.abs(seconds) >= size) ?? ["second", 1];
  return relativeTime.format(Math.trunc(seconds / size), unit);
}

/** Date pickers show the viewer's zone. Addresses have UTC. */
function convertPickers() {
  const form = document.getElementById("filter");
  if (!form) return;
  const pickers = form.querySelectorAll("input[type=datetime-local]");
  for (const picker of pickers) {
    if (!picker.value) continue;
    const time = new Date(`${picker.value}Z`);
    picker.value = new Date(time - time.getTimezoneOffset() * 60000).toISOString().slice(0, 19);
  }
  for (const zone of form.querySelectorAll("[data-zone]")) zone.textContent = "your time";
  form.addEventListener("formdata", (event) => {
    for (const [name, value] of [...event.formData]) {
      const isPicker = form.elements[name]?.type === "datetime-local";
      // Fields that are not used would only make the address longer.
      if (!value) event.formData.delete(name);
      else if (isPicker) event.formData.set(name, new Date(value).toISOString().replace(/\.\d+/, ""));
    }
  });
}

function changeTheme() {
  const root = document.documentElement;
  const isDark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  try {
    localStorage.setItem("windlass-theme", root.dataset.theme);
  } catch {
    // Without storage, the choice lasts as long as the page.
  }
}

function openHelp() {
  const help = document.getElementById("help");
  if (help && !help.open) help.showModal();
}

/** Moves the focus to the link of the next or previous row. */
function moveRow(step) {
  const links = [...document.querySelectorAll("table.rows tbody tr")].map((row) => row.querySelector("a")).filter(Boolean);
  const current = links.findIndex((link) => link.closest("tr").contains(document.activeElement));
  links[Math.min(Math.max(current + step, 0), links.length - 1)]?.focus();
}

const shortcuts = {
  "/": () => document.getElementById("search")?.focus(),
  "?": openHelp,
  j: () => moveRow(1),
  k: () => moveRow(-1),
  n: () => document.getElementById("next")?.click(),
  f: () => document.querySelector("#filter select, #filter input")?.focus(),
  p: togglePause,
  d: changeTheme,
};

let awaitsPage = 0;

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target.closest?.("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (awaitsPage > Date.now()) {
    awaitsPage = 0;
    const link = document.querySelector(`nav a[data-shortcut="${CSS.escape(event.key)}"]`);
    if (link) {
      event.preventDefault();
      link.click();
    }
    return;
  }
  if (event.key === "g") {
    awaitsPage = Date.now() + 1500;
    return;
  }
  const shortcut = Object.hasOwn(shortcuts, event.key) ? shortcuts[event.key] : undefined;
  if (shortcut) {
    event.preventDefault();
    shortcut();
  }
}

showTimes();
setInterval(showTimes, 10000);
convertPickers();
document.addEventListener("keydown", onKey);
document.getElementById("theme")?.addEventListener("click", changeTheme);
document.getElementById("help-open")?.addEventListener("click", openHelp);
if (document.getElementById("live")) {
  startActions();
  startLive(showTimes);
}
