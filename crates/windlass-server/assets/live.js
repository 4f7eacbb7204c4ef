// Live updates. A page fetches itself again when an event says that it may have changed, and replaces the parts that
// differ: all HTML comes from the server.
//
// Browsers allow six connections per server over HTTP/1.1, so all tabs share one event stream. The tab that holds a Web
// Lock opens it and passes the events on through a BroadcastChannel. When the tab is closed, another one gets the lock.

const base = document.body.dataset.base;
const name = `windlass-events:${base}`;

/** When the page is fetched again. It may change: a chain that closes changes less often. */
const kind = () => document.body.dataset.refresh;

/** The least time between two fetches, by the kind of page, in milliseconds. */
const pauses = { sample: 1000, list: 5000, slow: 10000, chain: 1000, bulk: 500 };

/** A stream without an event for this long is dead: the server has left out three heartbeats. */
const SILENCE_MS = 3 * Number(document.body.dataset.heartbeat);

/** The longest time that a fetch of the page may take. The server answers each request within 30 s. */
const FETCH_MS = 40000;

let afterUpdate = () => {};
let afterKind = () => {};
let isPaused = false;
let latestSums = "";
let fetchedAt = Date.now();
let planned = 0;
let isFetching = false;
let isStale = false;
const shown = new Map();

/** Fetches the page again and replaces the parts that differ. */
export async function refresh({ evenPaused = true } = {}) {
  clearTimeout(planned);
  planned = 0;
  if (isFetching) {
    // The answer on its way may be older than the change that calls for this one.
    isStale = true;
    return;
  }
  isFetching = true;
  isStale = false;
  fetchedAt = Date.now();
  try {
    const response = await fetch(location.href, {
      headers: { accept: "text/html" },
      credentials: "same-origin",
      signal: AbortSignal.timeout(FETCH_MS),
    });
    if (response.redirected && new URL(response.url).pathname === `${base}/login`) return location.reload();
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    // The page may have been paused since. It is fetched again when the pause ends.
    if (evenPaused || !isPaused) replace(page);
  } catch {
    // The server cannot be reached: the stream notices when it can be again.
  } finally {
    isFetching = false;
    if (isStale) plan();
  }
}

/** What a viewer may have scrolled. */
const scrolling = ".scroll, pre";

function replace(page) {
  // A proxy may answer instead of the server.
  if (!page.body.dataset.refresh) return;
  // Another version of the server has other scripts.
  const script = (root) => root.querySelector("script[type=module]")?.getAttribute("src");
  if (script(page) && script(page) !== script(document)) return location.reload();
  // A page that reports a problem has little in common with the page itself.
  if ("problem" in document.body.dataset && !("problem" in page.body.dataset)) return location.reload();
  document.title = page.title;
  const before = kind();
  document.body.dataset.refresh = page.body.dataset.refresh;
  if (kind() !== before) afterKind();
  for (const part of document.querySelectorAll("[data-part]")) {
    const next = page.getElementById(part.id);
    if (!next || shown.get(part.id) === next.innerHTML) continue;
    shown.set(part.id, next.innerHTML);
    const focus = focusIn(part);
    const scrolled = [...part.querySelectorAll(scrolling)].map(({ scrollLeft, scrollTop }) => [scrollLeft, scrollTop]);
    part.replaceChildren(...document.adoptNode(next).childNodes);
    part.querySelectorAll(scrolling).forEach((element, index) => element.scrollTo(...(scrolled[index] ?? [0, 0])));
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
  if (planned || isPaused || kind() === "never" || document.hidden) return;
  const isBusy = document.querySelector("dialog[open]") || String(getSelection()) !== "";
  const wait = Math.max(pauses[kind()] - (Date.now() - fetchedAt), isBusy ? 1000 : 0, 0);
  planned = setTimeout(() => {
    planned = 0;
    if (document.querySelector("dialog[open]") || String(getSelection()) !== "") plan();
    else refresh({ evenPaused: false });
  }, wait);
}

function onEvent(type, data) {
  if (type === "state") return showState(data);
  if (type === "resync") return plan();
  if (type === "bulk" && kind() === "bulk") return plan();
  if (type === "jobs" && kind() === "chain") {
    const { events, missed } = JSON.parse(data);
    // On a busy store, every message misses some events. They rarely concern this chain.
    const mayBeMissed = missed > 0 && Date.now() - fetchedAt > pauses.slow;
    if (mayBeMissed || events.some((event) => event.chain === document.body.dataset.chain)) plan();
    return;
  }
  if (type !== "sample") return;
  // Events of jobs can be lost, and not every store sends them.
  const isOld = kind() === "chain" && Date.now() - fetchedAt > pauses.slow;
  if (kind() === "sample" || kind() === "slow" || isOld) return plan();
  if (kind() === "list") {
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
  clearTimeout(planned);
  planned = 0;
  if (!isPaused) plan();
}

/** The topics that this page needs besides the usual ones. */
const wanted = () => (kind() === "chain" ? ["jobs"] : []);

/** The stream of this browser. Only the tab that holds the lock runs it. */
class Stream {
  /** `call` asks the other tabs for the topics that they need. */
  constructor(pass, call = () => {}) {
    this.pass = pass;
    this.call = call;
    this.failures = 0;
    this.forget();
  }

  /** Forgets the topics of other tabs, and asks for them again: a topic that nobody needs costs the workers. */
  forget() {
    this.wants = new Set(["samples", "bulk", ...wanted()]);
    this.call();
    clearTimeout(this.narrowing);
    this.narrowing = setTimeout(() => this.narrow(), 1000);
  }

  open() {
    this.close();
    this.topics = new Set(this.wants);
    const query = [...this.topics].map((topic) => `topic=${topic}`).join("&");
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
    this.forget();
    this.pass("state", "wait");
    const wait = Math.min(500 * 2 ** this.failures, 10000) * (0.75 + Math.random() / 2);
    this.failures += 1;
    this.timer = setTimeout(async () => {
      const session = await fetch(`${base}/api/v1/session`).catch(() => undefined);
      if (this.isClosed) return;
      if (session?.status === 401) this.pass("login", "");
      this.open();
    }, wait);
  }

  /** Ends the stream for good. */
  end() {
    this.isClosed = true;
    clearTimeout(this.narrowing);
    this.close();
  }

  close() {
    clearTimeout(this.timer);
    clearTimeout(this.silence);
    this.source?.close();
    this.source = undefined;
  }

  /** A tab needs these topics. */
  want(topics) {
    for (const topic of topics) this.wants.add(topic);
    if (this.source && topics.some((topic) => !this.topics.has(topic))) this.open();
  }

  /** This tab needs other topics than before. */
  change() {
    if (wanted().length) this.want(wanted());
    else this.forget();
  }

  /** All tabs have answered: opens a stream without the topics that none of them needs. */
  narrow() {
    if (this.source && this.topics.size > this.wants.size) this.open();
  }
}

function receive(type, data) {
  if (type === "login") location.reload();
  else onEvent(type, data);
}

/** Shares one stream with the other tabs. */
function share() {
  const channel = new BroadcastChannel(name);
  let stream;
  let release;
  let silence;
  let isGone = false;
  const follow = () => {
    clearTimeout(silence);
    silence = setTimeout(takeOver, SILENCE_MS * 4 / 3);
  };
  channel.onmessage = ({ data }) => {
    follow();
    if (data.want) stream?.want(data.want);
    else if (data.drop) stream?.forget();
    else if (data.calls) channel.postMessage({ want: wanted() });
    else receive(data.type, data.data);
  };
  const end = () => {
    stream?.end();
    stream = undefined;
  };
  const lead = () => new Promise((resolve) => {
    // A request that waited may be granted after the page was left.
    if (isGone) return resolve();
    end();
    release = resolve;
    const pass = (type, data) => {
      channel.postMessage({ type, data });
      receive(type, data);
    };
    stream = new Stream(pass, () => channel.postMessage({ calls: true }));
    stream.open();
  });
  // The request fails if another tab has taken over.
  const begin = (options = {}) => {
    navigator.locks.request(name, options, lead).catch(end);
    channel.postMessage({ want: wanted() });
    follow();
  };
  // The tab that leads is suspended: it holds the lock, but passes nothing on.
  function takeOver() {
    if (stream || document.hidden) return follow();
    showState("wait");
    begin({ steal: true });
  }
  afterKind = () => {
    stream?.change();
    channel.postMessage(wanted().length ? { want: wanted() } : { drop: true });
  };
  addEventListener("pagehide", () => {
    isGone = true;
    if (wanted().length) channel.postMessage({ drop: true });
    end();
    release?.();
  });
  // The browser has kept the page and shows it again.
  addEventListener("pageshow", (event) => {
    if (!event.persisted) return;
    isGone = false;
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
  let stream;
  const begin = () => {
    stream = new Stream(receive);
    stream.open();
  };
  afterKind = () => stream.change();
  addEventListener("pagehide", () => stream.end());
  addEventListener("pageshow", (event) => event.persisted && begin());
  begin();
}
