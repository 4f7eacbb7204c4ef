// Changes: a button names a call of the JSON API, and a dialog asks before it is made.

import { refresh } from "./live.js";

const api = `${document.body.dataset.base}/api/v1`;
const get = (id) => document.getElementById(id);

/** Calls the API. Throws an error with the detail of the problem. */
async function call(method, path, body, options = {}) {
  const response = await fetch(api + path, {
    method,
    headers: { "content-type": "application/json", accept: "application/json" },
    body: method === "GET" || method === "DELETE" ? undefined : JSON.stringify(body),
    credentials: "same-origin",
    ...options,
  }).catch(() => {
    throw new Error("The server did not answer. Check the connection and try again.");
  });
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(answer.detail ?? `The server answered with ${response.status}.`);
  return answer;
}

/** Shows a short message. */
export function notify(text) {
  const notice = get("notice");
  notice.textContent = text;
  clearTimeout(notify.timer);
  notify.timer = setTimeout(() => (notice.textContent = ""), 6000);
}

/** Returns a new UUID of version 7. A repeated request with the same id starts an operation once. */
function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  let time = Date.now();
  for (let place = 5; place >= 0; place -= 1) {
    bytes[place] = time % 256;
    time = Math.floor(time / 256);
  }
  bytes[6] = (bytes[6] & 0x0f) | 0x70;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}

const chains = (count) => `${count.toLocaleString()} ${count === 1 ? "chain matches" : "chains match"}`;

/** The count that runs on the server for the open dialog, by id. */
let counting;

/** Stops the count. The page may be about to close. */
function stopCounting() {
  if (!counting) return;
  call("POST", `/bulk/${counting}/abort`, {}, { keepalive: true }).catch(() => {});
  counting = undefined;
}

/** Counts the chains that a bulk operation would change, until the dialog is closed. Only then can it be confirmed. */
async function count(body, dialog, isShown) {
  const line = get("confirm-count");
  line.textContent = "Counting…";
  try {
    let operation = await call("POST", "/bulk", { ...body, dry_run: true });
    counting = operation.id;
    while (operation.state === "running") {
      line.textContent = `${chains(operation.visited)} so far…`;
      await new Promise((resolve) => setTimeout(resolve, 250));
      if (!isShown()) return stopCounting();
      operation = await call("GET", `/bulk/${operation.id}`);
    }
    counting = undefined;
    if (!isShown()) return;
    if (operation.state !== "completed") {
      line.textContent = `The chains could not be counted (${operation.reason ?? operation.state}). Close this dialog and try again.`;
      return;
    }
    line.textContent = `${chains(operation.visited)}.`;
    get("confirm-yes").disabled = false;
  } catch (error) {
    if (isShown()) line.textContent = error.message;
  }
}

function ask(button) {
  const dialog = get("confirm");
  const { title, text, option } = button.dataset;
  dialog.button = button;
  get("confirm-title").textContent = title;
  get("confirm-text").textContent = text;
  get("confirm-error").textContent = "";
  get("confirm-count").textContent = "";
  get("confirm-check").checked = false;
  get("confirm-option").hidden = !option;
  get("confirm-option").querySelector("span").textContent = option ?? "";
  const yes = get("confirm-yes");
  yes.textContent = button.textContent;
  const isCounted = Boolean(button.closest("[data-counted]"));
  yes.disabled = isCounted;
  yes.classList.toggle("danger", button.classList.contains("danger"));
  dialog.returnValue = "";
  dialog.showModal();
  if (!isCounted) return;
  dialog.operation = newId();
  const { operation } = dialog;
  count(JSON.parse(button.dataset.body), dialog, () => dialog.open && dialog.operation === operation);
}

async function perform(button) {
  const { method, optionName, then } = button.dataset;
  let { path } = button.dataset;
  const body = JSON.parse(button.dataset.body);
  if (button.closest("[data-counted]")) body.id = get("confirm").operation;
  if (optionName && get("confirm-check").checked) {
    if (method === "DELETE") path += `?${optionName}=true`;
    else body[optionName] = true;
  }
  await call(method, path, body);
  if (then) {
    location.assign(then);
    return;
  }
  notify(`${button.textContent}: done`);
}

async function onSubmit(event) {
  const dialog = get("confirm");
  if (event.submitter?.value !== "confirm") return;
  // The dialog stays open until the change is made, so that it can show why it was refused.
  event.preventDefault();
  const yes = get("confirm-yes");
  yes.disabled = true;
  try {
    await perform(dialog.button);
    // First, so that the focus returns to the button before the page replaces it.
    dialog.close("done");
    await refresh();
  } catch (error) {
    get("confirm-error").textContent = error.message;
    yes.disabled = false;
  }
}

export function startActions() {
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("button.action");
    if (button) ask(button);
  });
  get("confirm").querySelector("form").addEventListener("submit", onSubmit);
  get("confirm").addEventListener("close", stopCounting);
  addEventListener("pagehide", stopCounting);
}
