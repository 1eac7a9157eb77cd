// The two tables: what their columns are called, and how a row is brought up to date.
import { ago, brief, make, measured, percent, say } from "/static/words.js";

const share = (key) => (row) =>
  row.busy == null ? "–" : percent(row[key] / ((row.busy + row.reused + row.idle_1 + row.idle_2) || 1));
const quality = (key) => ({ quality: found }) =>
  (found && found.name !== "accuracy" ? `${found.name} ` : "") + measured(found, key);
const figure = (key) => (row) => brief(row[key]);

export const NODES = [
  { title: "node", text: (row) => row.name },
  { title: "state", text: (row) => row.state, words: true },
  { title: "its time", bar: true },
  { title: "busy", text: share("busy"), hint: "without batches that are used again" },
  { title: "reused", text: share("reused"), hint: "training on batches again, while there is nothing else to do" },
  { title: "idle I", text: share("idle_1"), hint: "waiting for the other side" },
  { title: "idle II", text: share("idle_2"), hint: "waiting for slower devices" },
  { title: "GFLOP/s", text: figure("gflops") },
  { title: "up Mbit/s", text: figure("mbps") },
  { title: "blocks on it", text: (row) => row.split || "–", hint: "blocks of the model that are on the device" },
  { title: "version", text: figure("version") },
  { title: "behind", text: figure("behind"), hint: "versions between its model and the server's" },
  { title: "staleness", text: figure("staleness"), hint: "of its merged updates, mean" },
  { title: "batches used", text: figure("used"), hint: "activation batches that the server has trained on" },
  { title: "updates", text: figure("merged"), hint: "merged" },
  { title: "seen", text: (row) => (row.seen == null ? "" : ago(row.seen)), hint: "since its last sign of life" },
];

export const RUNS = [
  { title: "run", text: (run) => run.name, link: (run) => `/?run=${encodeURIComponent(run.name)}` },
  { title: "method", text: (run) => run.method, words: true },
  { title: "state", text: (run) => (run.text ? `${run.state}: ${run.text}` : run.state), words: true },
  { title: "accuracy", text: quality("last"), hint: "or the loss, where the task has no accuracy" },
  { title: "best", text: quality("best") },
  { title: "epochs", text: figure("epochs") },
  { title: "seed", text: (run) => String(run.seed ?? "") },
  { title: "clock", text: (run) => run.clock, words: true },
  { title: "last heard of", text: (run) => `${ago(run.age)} ago` },
];

export function head(table, columns) {
  const line = make("tr");
  for (const { title, hint, words, bar } of columns) {
    const cell = make("th", title, { scope: "col", class: words || bar ? "words" : "" });
    if (hint) cell.title = hint;
    line.append(cell);
  }
  table.tHead.replaceChildren(line);
}

export function row(columns) {
  const line = make("tr");
  columns.forEach(({ link, words, bar }, index) => {
    const cell = index ? make("td", "", { class: words || bar ? "words" : "" }) : make("th", "", { scope: "row" });
    if (link) cell.append(make("a"));
    if (bar) cell.append(stack());
    line.append(cell);
  });
  line.update = (item) => {
    line.className = `${item.well === false ? "unwell" : ""} ${item.error ? "has-error" : ""}`.trim();
    columns.forEach(({ text, link, bar }, index) => {
      const cell = line.cells[index];
      if (bar) return cell.firstChild.update(item);
      say(link ? cell.firstChild : cell, text(item));
      if (link) cell.firstChild.href = link(item);
      if (!index) cell.title = text(item);
    });
  };
  return line;
}

export function errorRow(width) {
  const line = make("tr"), cell = make("td", "", { colspan: width, class: "error" }), text = make("span");
  cell.append(text);
  line.append(cell);
  line.update = ({ error }) => say(text, error);
  return line;
}

function stack() {
  const bar = make("div", "", { class: "bar", "aria-hidden": "true" }); // the figures stand beside it
  for (const colour of ["--train", "--reuse", "--idle-1", "--idle-2"]) {
    const part = make("i");
    part.style.background = `var(${colour})`;
    bar.append(part);
  }
  bar.update = ({ busy, reused, idle_1: one, idle_2: two }) => {
    const whole = busy + reused + one + two || 1;
    [busy, reused, one, two].forEach((seconds, index) => { bar.children[index].style.width = `${(100 * (seconds ?? 0)) / whole}%`; });
  };
  return bar;
}
