// The page: a list of runs, or one run as its server tells it about once a second.
import { KINDS } from "/static/kinds.js";
import { NODES, RUNS, head, row, errorRow } from "/static/tables.js";
import { plot } from "/static/plots.js";
import { Timeline } from "/static/timeline.js";
import { brief, byId, choice, duration, fill, make, measured, megabytes, percent, press, say } from "/static/words.js";

const QUIET = 8000; // milliseconds without a word until what is shown is called old
const LOST = "no contact to the page's server: what is shown may be old";
const address = new URL(location);
let name = address.searchParams.get("run");
if (address.searchParams.has("token")) { // it is in a cookie now, and need not be in anybody's history
  address.searchParams.delete("token");
  history.replaceState(null, "", address);
}

// ---- the list -----------------------------------------------------------------------------------

async function listRuns() {
  const { single, runs } = await (await fetch("/api/runs")).json();
  if (single) {
    name = runs[0].name;
    return showRun();
  }
  byId("runs").hidden = false;
  byId("no-runs").hidden = runs.length > 0;
  byId("run-table").hidden = !runs.length;
  say(byId("title"), "Runs");
  fill(byId("run-table").tBodies[0], runs, () => row(RUNS), (tr, run) => tr.update(run));
}

function keepListing() {
  head(byId("run-table"), RUNS);
  const again = () => listRuns()
    .then(() => contact(""), () => contact(LOST))
    .finally(() => { if (!name) setTimeout(again, 3000); });
  again();
}

// ---- one run ------------------------------------------------------------------------------------

let timeline, source, quiet, span = null, now = {};

function showRun() {
  byId("run").hidden = false;
  byId("runs").hidden = true;
  byId("back").hidden = !address.searchParams.has("run");
  head(byId("node-table"), NODES);
  for (const [kind, { name: text, colour }] of Object.entries(KINDS)) {
    const item = make("li", text), patch = make("i", "", kind === "send" || kind === "receive" ? { class: "thin" } : {});
    patch.style.background = `var(${colour})`;
    item.prepend(patch);
    byId("legend").append(item);
  }
  timeline = new Timeline(byId("timeline"), byId("hover"));
  choice(byId("spans"), "span", (chosen) => { span = chosen; listen(); });
  choice(byId("axis"), "axis", (axis) => plot({ axis }));
  let typing;
  byId("filter").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(listen, 300); });
  listen();
}

function listen() {
  source?.close();
  const wish = new URLSearchParams({ run: name, filter: byId("filter").value, ...(span && { span }) });
  source = new EventSource(`/api/events?${wish}`);
  source.onmessage = (event) => { heard(); update(JSON.parse(event.data)); };
  source.onerror = () => {
    if (source.readyState !== EventSource.CLOSED) return contact(LOST); // it tries again by itself
    contact(`the page's server does not show the run “${name}” (is it still there?)`);
    setTimeout(listen, 3000);
  };
}

function heard() {
  contact("");
  clearTimeout(quiet);
  quiet = setTimeout(() => contact("stale: no news from the page's server"), QUIET);
}

function contact(text) {
  const badge = byId("contact");
  say(badge, text);
  badge.hidden = !text;
}

function update(news) {
  if (news.run) about(news.run);
  if (news.now) tell((now = news.now));
  if (news.rows) nodes(news.rows);
  queue = news.queue ?? queue;
  if (news.queue || news.now) tiles();
  if (news.lanes) {
    press(byId("spans"), "span", String(news.lanes.span));
    timeline.show(news.lanes);
  }
  if (news.notes) notes(news.notes);
  if (news.curve || news.speed || news.queue) plot(picked(news, ["curve", "speed", "queue"])).catch((error) => contact(error.message));
}

const picked = (news, keys) => Object.fromEntries(keys.filter((key) => news[key]).map((key) => [key, news[key]]));

function about(run) {
  document.title = `${run.name} – fedoptima`;
  say(byId("title"), run.name);
  const clock = { real: "over the network", virtual: "simulated: times are virtual" }[run.clock];
  say(byId("about"), [run.method, run.model, run.data, `seed ${run.seed}`, clock].filter(Boolean).join(" · "));
}

const LOOKS = { running: "good", starting: "good", finished: "good", failed: "bad", unreadable: "bad", silent: "soft", stopped: "soft" };

function tell({ state, text, reading, share, records }) {
  const badge = byId("state"), progress = byId("progress");
  badge.hidden = false;
  badge.className = `badge ${reading == null ? LOOKS[state] : "soft"}`;
  const part = reading ? ` (${percent(reading)})` : "";
  const said = text ? `${state}: ${text}` : state;
  say(badge, reading == null ? said : `reading the trace: ${brief(records)} records${part}`);
  progress.hidden = share == null;
  if (share != null) progress.value = reading || share;
}

// ---- figures ------------------------------------------------------------------------------------

let queue = {};

function idle({ busy, reused, idle_1: one, idle_2: two }) {
  const whole = busy + reused + one + two;
  const again = reused ? `; reused batches ${percent(reused / whole)}` : "";
  return whole ? [percent((one + two) / whole), `I ${percent(one / whole)}, II ${percent(two / whole)}${again}`] : ["–", ""];
}

function tiles() {
  const items = [
    [now.quality?.name ?? "accuracy", measured(now.quality, "last"), now.quality ? `best ${measured(now.quality, "best")}` : ""],
    ["time", duration(now.seconds), `${brief(now.epochs)} epochs, ${brief(now.version)} merges`],
    ["server idle", ...idle(now.server_usage)],
    ["devices idle, mean", ...idle(now.device_usage)],
    ["samples per second", brief(now.device_throughput), `on devices; ${brief(now.server_throughput)} on the server${now.reused_throughput ? `, ${brief(now.reused_throughput)} reused` : ""}; ${brief(now.useful_throughput)} useful, all in all`],
    ["queue, mean", brief(queue.mean), `peak ${brief(queue.peak)}${queue.cap == null ? "" : `, cap ${queue.cap}`}`],
    ["traffic", megabytes(now.up_bytes + now.down_bytes), `${megabytes(now.up_bytes)} up`],
    ["records", brief(now.records), `${brief(now.records_per_second)} a second`],
  ];
  const create = () => {
    const tile = make("div"), value = make("dd");
    value.append(make("span"), make("small"));
    tile.append(make("dt"), value);
    return tile;
  };
  fill(byId("tiles"), items, create, (tile, [label, value, more]) => {
    const [term, data] = tile.children;
    say(term, label);
    say(data.children[0], value);
    say(data.children[1], more);
  });
}

function nodes({ shown, matching, all, not_well: notWell }) {
  const items = shown.flatMap((each) => (each.error ? [each, { error: each.error }] : [each]));
  const body = byId("node-table").tBodies[0];
  // A row and an error's row differ in shape: where the order changes, start over.
  const shape = items.map((item) => (item.name ? "r" : "e")).join("");
  if (body.dataset.shape !== shape) body.replaceChildren();
  body.dataset.shape = shape;
  fill(body, items, (item) => (item.name ? row(NODES) : errorRow(NODES.length)), (tr, item) => tr.update(item));
  const more = byId("more"), left = matching - (shown.length - 1);
  more.hidden = all === shown.length - 1 && !notWell;
  const filtered = matching < all ? `${matching} of ${all} devices match; ` : `${all} devices; `;
  say(more, `${filtered}${left > 0 ? `${left} more are not shown: filter to see them; ` : ""}${notWell} away or failed`);
}

function notes(items) {
  byId("no-notes").hidden = items.length > 0;
  const create = () => {
    const item = make("li");
    item.append(make("time"), make("strong"), make("span"));
    return item;
  };
  fill(byId("notes"), items, create, (item, { at, node, kind, text, serious, times }) => {
    const [time, who, what] = item.children;
    say(time, at < 0 ? "before" : duration(at));
    say(who, `${node} `);
    say(what, `${kind}${text ? `: ${text}` : ""}${times > 1 ? ` (${times} times)` : ""}`);
    what.className = serious ? "serious" : "";
  });
}

if (name) showRun();
else keepListing();
