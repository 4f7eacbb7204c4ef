// Changes: a button names a call of the JSON API, and a dialog asks before it is made.

import { refresh } from "./live.js";

const api = `${document.body.dataset.base}/api/v1`;
const get = (id) => document.getElementById(id);

/** Calls the API. Throws an error with the detail of the problem. */
async function call(method, path, body) {
  const response = await fetch(api + path, {
    method,
    headers: { "content-type": "application/json", accept: "application/json" },
    body: method === "GET" || method === "DELETE" ? undefined : JSON.stringify(body),
    credentials: "same-origin",
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

/** Counts the chains that a bulk operation would change, until the dialog is closed. */
async function count(button, body, dialog) {
  const line = get("confirm-count");
  line.textContent = "Counting…";
  try {
    let operation = await call("POST", "/bulk", { ...body, dry_run: true });
    while (operation.state === "running") {
      line.textContent = `${operation.visited.toLocaleString()} chains match so far…`;
      await new Promise((resolve) => setTimeout(resolve, 250));
      if (!dialog.open || dialog.button !== button) {
        await call("POST", `/bulk/${operation.id}/abort`, {});
        return;
      }
      operation = await call("GET", `/bulk/${operation.id}`);
    }
    if (dialog.button === button) line.textContent = `${operation.visited.toLocaleString()} chains match.`;
  } catch (error) {
    if (dialog.button === button) line.textContent = error.message;
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
  yes.disabled = false;
  yes.classList.toggle("danger", button.classList.contains("danger"));
  dialog.returnValue = "";
  dialog.showModal();
  if (button.closest("[data-counted]")) count(button, JSON.parse(button.dataset.body), dialog);
}

async function perform(button) {
  const { method, optionName, then } = button.dataset;
  let { path } = button.dataset;
  const body = JSON.parse(button.dataset.body);
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
  await refresh();
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
    dialog.close("done");
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
}
