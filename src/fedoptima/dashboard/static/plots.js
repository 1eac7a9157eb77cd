// The plots, by plotly: it is large, so it is fetched when a run is shown, and not before.
import { byId, say } from "/static/words.js";

const known = { axis: "seconds", curve: null, speed: null, queue: null };
let loading = null;

function plotly() {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = "/static/plotly.min.js";
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => { loading = null; reject(new Error("plotly.js could not be fetched")); };
    document.head.append(script);
  });
  return loading;
}

export async function plot(news) {
  Object.assign(known, news);
  const Plotly = await plotly();
  for (const draw of [drawQueue, drawAccuracy, drawMetrics, drawSpeed]) draw(Plotly); // the first may leave, and make room
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => loading && plot({}));

function drawAccuracy(Plotly) {
  if (!known.curve) return;
  const { accuracy, metrics } = known.curve;
  const mode = accuracy.length > 60 ? "lines" : "lines+markers";
  const measured = accuracy.some((value) => value != null); // not in a dry run, nor at the beginning
  const instead = !measured && Object.keys(metrics).length > 0; // a task without an accuracy
  byId("accuracy-figure").hidden = instead;
  if (instead) return;
  react(Plotly, "accuracy", [line(known.curve[known.axis], accuracy, "accuracy", "--train", { mode })],
    { yaxis: { tickformat: ".0%", rangemode: "tozero", ...(measured ? {} : { range: [0, 1] }) } });
}

// The task's other metrics; the loss where there is no accuracy.
function drawMetrics(Plotly) {
  const metrics = Object.entries(known.curve?.metrics ?? {});
  byId("metrics-figure").hidden = !metrics.length;
  say(byId("metrics-title"), byId("accuracy-figure").hidden ? "Metrics" : "Other metrics");
  if (!metrics.length) return;
  const looks = [["--train", {}], ["--idle-2", { dash: "dash" }], ["--idle-1", { dash: "dot" }]];
  react(Plotly, "metrics", metrics.map(([name, values], index) => {
    const [variable, look] = looks[index % looks.length];
    return line(known.curve[known.axis], values, name, variable, { mode: "lines+markers", line: look });
  }), { yaxis: {} });
}

function drawSpeed(Plotly) {
  if (!known.speed) return;
  const x = known.speed[known.axis];
  react(Plotly, "speed", [
    line(x, known.speed.device, "all devices", "--train", {}),
    line(x, known.speed.server, "server", "--idle-2", { line: { dash: "dash" } }),
    ...(known.speed.reused.some(Boolean) ? [line(x, known.speed.reused, "server, reused", "--reuse", { line: { dash: "dot" } })] : []),
  ], { yaxis: { rangemode: "tozero" } });
}

function drawQueue(Plotly) {
  if (!known.queue) return;
  const { bins, bin_seconds: width, cap } = known.queue, used = bins.some((value) => value > 0);
  byId("queue-figure").hidden = !used && cap == null;
  const x = bins.map((_, index) => (index + 0.5) * width), traces = [];
  traces.push(line(x, bins, "waiting", "--train", { line: { shape: "hvh" } }));
  if (cap != null) {
    const ends = x.length ? [0, x.at(-1)] : [0, 1];
    traces.push(line(ends, [cap, cap], `cap: ${cap}`, "--idle-2", { mode: "lines", line: { dash: "dash" } }));
  }
  react(Plotly, "queue", traces, { yaxis: { rangemode: "tozero" } }, "seconds"); // it is not kept by epoch
}

function line(x, y, name, variable, { mode = "lines", line: look = {} }) {
  const width = y.length === 1 ? "markers" : mode; // a line of one point cannot be seen
  return { x, y, name, mode: width, line: { color: colour(variable), width: 2, ...look }, connectgaps: true };
}

function react(Plotly, id, traces, layout, axis = known.axis) {
  const box = { automargin: true, gridcolor: colour("--line"), linecolor: colour("--line"), zerolinecolor: colour("--line") };
  const title = { text: axis === "epochs" ? "epochs" : "seconds of training", font: { size: 11 } };
  Plotly.react(id, traces, {
    margin: { l: 8, r: 12, t: 24, b: 8 },
    showlegend: traces.length > 1,
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colour("--ink"), size: 12, family: "system-ui, sans-serif" },
    hovermode: "x unified",
    hoverlabel: { bgcolor: colour("--raised"), font: { color: colour("--ink") } },
    uirevision: axis, // a zoom stays while points come in
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
    xaxis: { ...box, title, rangemode: "tozero" },
    yaxis: { ...box, ...layout.yaxis },
  }, { responsive: true, displayModeBar: false });
}

function colour(variable) {
  return getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
}
