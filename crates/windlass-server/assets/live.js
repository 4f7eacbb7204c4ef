// Live updates. A page fetches itself again when an event says that it may have changed, and replaces the parts that
// differ: all HTML comes from the server.
//
// Browsers allow six connections per server over HTTP/1.1, so all tabs share one event stream. The tab that holds a Web
// Lock opens it and passes the events on through a BroadcastChannel. When the tab is closed, another one gets the lock.

const base = document.body.dataset.base;
const kind = document.body.dataset.refresh;
const chain = document.body.dataset.chain;
const name = `windlass-events:${base}`;

/** The least time between two fetches, by the kind of page, in milliseconds. */
const pauses = { sample: 1000, list: 5000, slow: 10000, chain: 1000, bulk: 500 };

/** A stream without an event for this long is dead. The server sends a heartbeat every 15 s. */
const SILENCE_MS = 45000;

let afterUpdate = () => {};
let isPaused = false;
let latestSums = "";
let fetchedAt = Date.now();
let planned = 0;
let isFetching = false;
const shown = new Map();

/** Fetches the page again and replaces the parts that differ. */
export async function refresh() {
  clearTimeout(planned);
  planned = 0;
  if (isFetching) return plan();
  isFetching = true;
  fetchedAt = Date.now();
  try {
    const response = await fetch(location.href, { headers: { accept: "text/html" }, credentials: "same-origin" });
    if (response.redirected && new URL(response.url).pathname === `${base}/login`) return location.reload();
    replace(new DOMParser().parseFromString(await response.text(), "text/html"));
  } catch {
    // The server cannot be reached: the stream notices when it can be again.
  } finally {
    isFetching = false;
  }
}

function replace(page) {
  // Another version of the server has other scripts.
  const script = (root) => root.querySelector("script[type=module]")?.getAttribute("src");
  if (script(page) && script(page) !== script(document)) return location.reload();
  document.title = page.title;
  for (const part of document.querySelectorAll("[data-part]")) {
    const next = page.getElementById(part.id);
    if (!next || shown.get(part.id) === next.innerHTML) continue;
    shown.set(part.id, next.innerHTML);
    const focus = focusIn(part);
    const scrolled = [...part.querySelectorAll(".scroll")].map((element) => element.scrollLeft);
    part.replaceChildren(...document.adoptNode(next).childNodes);
    part.querySelectorAll(".scroll").forEach((element, index) => (element.scrollLeft = scrolled[index] ?? 0));
    afterUpdate(part);
    focus?.(part);
  }
}

/** Returns a function that moves the focus to the same place in the new content. */
function focusIn(part) {
  const focusable = "a, button, [tabindex]";
  const { activeElement } = document;
  if (!part.contains(activeElement)) return undefined;
  const index = [...part.querySelectorAll(focusable)].indexOf(activeElement);
  const href = activeElement.getAttribute("href");
  return (next) => {
    const all = [...next.querySelectorAll(focusable)];
    (all.find((element) => href && element.getAttribute("href") === href) ?? all[index])?.focus({ preventScroll: true });
  };
}

/** Plans a fetch, not too soon after the one before. */
function plan() {
  if (planned || isPaused || kind === "never" || document.hidden) return;
  const isBusy = document.querySelector("dialog[open]") || String(getSelection()) !== "";
  const wait = Math.max(pauses[kind] - (Date.now() - fetchedAt), isBusy ? 1000 : 0, 0);
  planned = setTimeout(() => {
    planned = 0;
    if (document.querySelector("dialog[open]") || String(getSelection()) !== "") plan();
    else refresh();
  }, wait);
}

function onEvent(type, data) {
  if (type === "state") return showState(data);
  if (type === "resync") return plan();
  if (type === "bulk" && kind === "bulk") return plan();
  if (type === "jobs" && kind === "chain") {
    const { events, missed } = JSON.parse(data);
    if (missed > 0 || events.some((event) => event.chain === chain)) plan();
    return;
  }
  if (type !== "sample") return;
  // Events of jobs can be lost, and not every store sends them.
  const isOld = kind === "chain" && Date.now() - fetchedAt > pauses.slow;
  if (kind === "sample" || kind === "slow" || isOld) return plan();
  if (kind === "list") {
    const { at, oldest_ready_ms, ...sums } = JSON.parse(data).sums;
    const text = JSON.stringify(sums);
    if (text !== latestSums) plan();
    latestSums = text;
  }
}

const words = { live: "live", wait: "reconnecting", paused: "paused" };
let streamState = "wait";

function showState(state = streamState) {
  streamState = state;
  const button = document.getElementById("live");
  const shownState = isPaused ? "paused" : streamState;
  button.dataset.live = shownState;
  button.querySelector(".word").textContent = words[shownState] ?? shownState;
  button.setAttribute("aria-pressed", String(isPaused));
}

export function togglePause() {
  isPaused = !isPaused;
  showState();
  if (!isPaused) plan();
}

/** The stream of this browser. Only the tab that holds the lock runs it. */
class Stream {
  constructor(pass) {
    this.pass = pass;
    this.wants = new Set(["samples", "bulk"]);
    this.failures = 0;
  }

  open() {
    this.close();
    const topics = [...this.wants].sort();
    const query = topics.map((topic) => `topic=${topic}`).join("&");
    this.topics = topics.join();
    this.source = new EventSource(`${base}/api/v1/events?${query}`);
    for (const type of ["resync", "sample", "jobs", "bulk", "heartbeat", "end"]) {
      this.source.addEventListener(type, (event) => this.received(type, event.data));
    }
    this.source.onerror = () => this.retry();
    this.listen();
  }

  received(type, data) {
    this.listen();
    if (type === "end") {
      if (JSON.parse(data).reason === "session") this.pass("login", "");
      return this.retry();
    }
    this.failures = 0;
    this.pass("state", "live");
    if (type !== "heartbeat") this.pass(type, data);
  }

  /** A connection can die without an error, for example when a computer wakes up. */
  listen() {
    clearTimeout(this.silence);
    this.silence = setTimeout(() => this.retry(), SILENCE_MS);
  }

  /** Opens another stream after a pause that grows. An event source itself gives up after an answer with an error. */
  retry() {
    this.close();
    this.pass("state", "wait");
    const wait = Math.min(500 * 2 ** this.failures, 10000) * (0.75 + Math.random() / 2);
    this.failures += 1;
    this.timer = setTimeout(async () => {
      const session = await fetch(`${base}/api/v1/session`).catch(() => undefined);
      if (session?.status === 401) this.pass("login", "");
      this.open();
    }, wait);
  }

  close() {
    clearTimeout(this.timer);
    clearTimeout(this.silence);
    this.source?.close();
    this.source = undefined;
  }

  /** A tab needs a topic. A topic that no tab needs any more stays until the next stream. */
  want(topics) {
    for (const topic of topics) this.wants.add(topic);
    if (this.source && [...this.wants].sort().join() !== this.topics) this.open();
  }
}

const wanted = kind === "chain" ? ["jobs"] : [];

function receive(type, data) {
  if (type === "login") location.reload();
  else onEvent(type, data);
}

/** Shares one stream with the other tabs. */
function share() {
  const channel = new BroadcastChannel(name);
  let stream;
  let release;
  channel.onmessage = ({ data }) => {
    if (data.want) stream?.want(data.want);
    else if (data.calls) channel.postMessage({ want: wanted });
    else receive(data.type, data.data);
  };
  const lead = () => new Promise((resolve) => {
    release = resolve;
    stream = new Stream((type, data) => {
      channel.postMessage({ type, data });
      receive(type, data);
    });
    stream.want(wanted);
    stream.open();
    // The topics of the other tabs are not known.
    channel.postMessage({ calls: true });
  });
  const begin = () => {
    navigator.locks.request(name, lead);
    channel.postMessage({ want: wanted });
  };
  addEventListener("pagehide", () => {
    stream?.close();
    stream = undefined;
    release?.();
  });
  // The browser has kept the page and shows it again.
  addEventListener("pageshow", (event) => {
    if (!event.persisted) return;
    begin();
    plan();
  });
  begin();
}

export function startLive(update) {
  afterUpdate = update;
  document.getElementById("live").addEventListener("click", togglePause);
  document.addEventListener("visibilitychange", plan);
  // Locks need HTTPS or a loopback address. Without them, each tab has its own stream.
  if (navigator.locks && window.BroadcastChannel) {
    share();
    return;
  }
  const stream = new Stream(receive);
  stream.want(wanted);
  stream.open();
  addEventListener("pagehide", () => stream.close());
}
