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
  for (const element of root.querySelectorAll("a[data-at]")) {
    const text = `${element.dataset.outcome} at ${exactTime.format(new Date(element.dataset.at))}`;
    element.title = text;
    element.setAttribute("aria-label", text);
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
    // The attribute, because a browser may restore a value that was converted before.
    const given = picker.getAttribute("value");
    const time = new Date(`${given}Z`);
    if (!given || Number.isNaN(time.getTime())) continue;
    picker.value = new Date(time - time.getTimezoneOffset() * 60000).toISOString().slice(0, 19);
  }
  for (const zone of form.querySelectorAll("[data-zone]")) zone.textContent = "your time";
  const names = new Set([...pickers].map((picker) => picker.name));
  form.addEventListener("formdata", ({ formData }) => {
    // Fields that are not used would only make the address longer.
    const used = [...formData].filter(([, value]) => value);
    for (const name of new Set(formData.keys())) formData.delete(name);
    for (const [name, value] of used) {
      formData.append(name, names.has(name) ? new Date(value).toISOString().replace(/\.\d+/, "") : value);
    }
  });
}

function changeTheme() {
  const root = document.documentElement;
  const isDark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  keep("windlass-theme", root.dataset.theme);
}

function keep(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    // Without storage, the choice lasts as long as the page.
  }
}

/** Shortcuts of one key can be turned off: voice control and unsteady hands press keys by accident. */
let hasShortcuts = true;

function startShortcuts() {
  try {
    hasShortcuts = localStorage.getItem("windlass-shortcuts") !== "off";
  } catch {
    // Without storage, there was no choice.
  }
  const box = document.getElementById("shortcuts");
  if (box) box.checked = hasShortcuts;
  box?.addEventListener("change", () => {
    hasShortcuts = box.checked;
    keep("windlass-shortcuts", hasShortcuts ? "on" : "off");
  });
  document.addEventListener("keydown", onKey);
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
  if (!hasShortcuts) return;
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
startShortcuts();
document.getElementById("theme")?.addEventListener("click", changeTheme);
document.getElementById("help-open")?.addEventListener("click", openHelp);
if (document.getElementById("live")) {
  startActions();
  startLive(showTimes);
}
