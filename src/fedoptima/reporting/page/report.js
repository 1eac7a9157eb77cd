"use strict";
// Draws the figures of the report. Everything it needs is in the page; it makes no requests.
(() => {
  const report = JSON.parse(document.getElementById("report-data").textContent);
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => dark.matches && !root.classList.contains("printing");
  const touch = matchMedia("(pointer: coarse)").matches;
  const config = {
    responsive: true,
    displaylogo: false,
    displayModeBar: touch ? true : "hover",
    // One of plotly's buttons would send the figure to its maker's server.
    modeBarButtonsToRemove: ["sendChartToCloud", "select2d", "lasso2d", "autoScale2d"],
    plotlyServerURL: "",
  };

  // ---- light and dark ------------------------------------------------------------------------

  function themed(figure) {
    const css = getComputedStyle(root);
    const colour = (name) => css.getPropertyValue(name).trim();
    const layout = {
      margin: { l: 12, r: 12, t: 12, b: 12 },
      showlegend: figure.traces.length > 1,
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", traceorder: "normal",
        itemwidth: 44 },
      hoverlabel: { bgcolor: colour("--raised"), font: { color: colour("--ink") }, namelength: -1 },
      // A finger that scrolls the page must not zoom a plot; the buttons above it do.
      dragmode: touch ? false : "zoom",
      bargap: 0.25,
      ...figure.layout,
      height: figure.height,
      uirevision: "keep",
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: colour("--ink"), family: getComputedStyle(document.body).fontFamily, size: 12 },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--soft"), activecolor: colour("--accent") },
    };
    for (const axis of ["xaxis", "yaxis"]) {
      layout[axis] = {
        automargin: true,
        gridcolor: colour("--line"),
        linecolor: colour("--line"),
        zerolinecolor: colour("--line"),
        ...layout[axis],
      };
    }
    return layout;
  }

  // ---- timelines -----------------------------------------------------------------------------
  // A lane is a stack of thin rows of a heatmap. A column of it shows the shares of time of each
  // kind, from the top; the rows below show transfers.

  const STACK = 6, TRANSFER = 2, GAP = 2;
  const ROWS = STACK + 2 * TRANSFER + GAP;
  const COLUMNS = 800;
  const kindOf = Object.fromEntries(report.kinds.map((kind, index) => [kind.key, index]));
  const stacked = ["train", "reuse", "merge", "other", "idle_1", "idle_2", "away"].map((key) => kindOf[key]);
  const jobs = new Set(stacked.slice(0, 4));
  const ENOUGH = [0.01, 0.5]; // of a column: one row of a transfer, or two

  function unpack(text, Type) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    return new Type(bytes.buffer);
  }

  class Timeline {
    constructor(data) {
      this.data = data;
      this.shares = data.shares.map((lane) =>
        Object.entries(lane).map(([kind, row]) => [Number(kind), unpack(row, Uint8Array)]));
      if (data.spans) {
        const { start, end, node, kind, what, words } = data.spans;
        this.spans = {
          start: unpack(start, Float32Array), end: unpack(end, Float32Array),
          node: unpack(node, Uint8Array), kind: unpack(kind, Uint8Array),
          what: unpack(what, Uint16Array), words,
        };
      }
    }

    // Seconds of each kind in each column, a lane at a time: [lane][kind][column]. With spans, a
    // lane also knows the job that filled most of each column.
    columns(from, to, count) {
      const lanes = this.data.nodes.map(() => report.kinds.map(() => new Float32Array(count)));
      const width = (to - from) / count;
      for (const lane of lanes) lane.most = { seconds: new Float32Array(count), word: [] };
      const add = (row, start, end, seconds, most, word) => {
        const first = Math.max(0, Math.floor((start - from) / width));
        const last = Math.min(count - 1, Math.floor((end - from) / width));
        const density = seconds / (end - start);
        for (let i = first; i <= last; i++) {
          const left = Math.max(start, from + i * width), right = Math.min(end, from + (i + 1) * width);
          if (right <= left) continue;
          row[i] += density * (right - left);
          if (most && right - left > most.seconds[i]) {
            most.seconds[i] = right - left;
            most.word[i] = word;
          }
        }
      };
      if (this.spans) {
        const { start, end, node, kind, what, words } = this.spans;
        for (let i = 0; i < start.length; i++) {
          if (end[i] > start[i] && end[i] > from && start[i] < to) {
            const lane = lanes[node[i]];
            const most = jobs.has(kind[i]) ? lane.most : null;
            add(lane[kind[i]], start[i], end[i], end[i] - start[i], most, words[what[i]]);
          }
        }
        return lanes;
      }
      const bin = this.data.binSeconds;
      this.shares.forEach((kinds, lane) => kinds.forEach(([kind, row]) => {
        const first = Math.max(0, Math.floor(from / bin)), last = Math.min(row.length, Math.ceil(to / bin));
        for (let i = first; i < last; i++) {
          if (row[i]) add(lanes[lane][kind], i * bin, (i + 1) * bin, (row[i] / 255) * bin);
        }
      }));
      return lanes;
    }

    trace(from, to) {
      const nodes = this.data.nodes, unit = this.data.unitSeconds;
      // Never finer than what is known: a bin is the smallest piece where spans are not.
      const bins = this.spans ? COLUMNS : Math.ceil((to - from) / this.data.binSeconds);
      const count = Math.max(1, Math.min(COLUMNS, bins)), width = (to - from) / count;
      const z = [], text = [];
      this.columns(from, to, count).forEach((kinds, lane) => {
        const rows = Array.from({ length: ROWS }, () => new Array(count).fill(null));
        const said = new Array(count);
        for (let i = 0; i < count; i++) {
          let sum = 0;
          for (const kind of stacked) {
            // Rows whose middle lies in this kind's part of the column.
            const next = sum + kinds[kind][i] / width;
            for (let r = Math.ceil(sum * STACK - 0.5); r < STACK && r + 0.5 < next * STACK + 1e-3; r++) {
              if (r >= 0) rows[r][i] = kind;
            }
            sum = next;
          }
          [kindOf.send, kindOf.receive].forEach((kind, which) => ENOUGH.forEach((least, r) => {
            if (kinds[kind][i] / width > least) rows[STACK + which * TRANSFER + r][i] = kind;
          }));
          said[i] = report.kinds
            .map((kind, index) => [kind.name, Math.min(100, (100 * kinds[index][i]) / width)])
            .filter(([, share]) => share >= 0.05)
            .map(([name, share]) => `${name} ${share.toFixed(share < 10 ? 1 : 0)} %`)
            .join("<br>");
        }
        const name = `<b>${nodes[lane].tick}</b><br>`;
        const word = (i) => (kinds.most.word[i] ? `<br>job: ${kinds.most.word[i]}` : "");
        const texts = said.map((line, i) => name + (line ? line + word(i) : "not in the run"));
        rows.forEach((row) => { z.push(row); text.push(texts); });
      });
      const colours = report.kinds.map((kind) => (isDark() ? kind.dark : kind.light));
      return {
        type: "heatmap", z, text, x0: (from + width / 2) / unit, dx: width / unit, y0: 0, dy: 1,
        zmin: -0.5, zmax: colours.length - 0.5, showscale: false, hoverongaps: false,
        colorscale: colours.flatMap((colour, i) =>
          [[i / colours.length, colour], [(i + 1) / colours.length, colour]]),
        hovertemplate: `%{text}<extra>at %{x:.4g} ${this.data.unit}</extra>`,
      };
    }

    layout() {
      const nodes = this.data.nodes, end = this.data.seconds / this.data.unitSeconds;
      return {
        xaxis: { title: { text: `time, ${this.data.unit}` }, range: [0, end], showgrid: false,
          zeroline: false, minallowed: 0, maxallowed: end },
        yaxis: { tickmode: "array", tickvals: nodes.map((_, i) => i * ROWS + STACK / 2 - 0.5),
          ticktext: nodes.map((node) => node.tick), range: [nodes.length * ROWS - 1, -1],
          fixedrange: true, showgrid: false, zeroline: false },
      };
    }
  }

  function drawTimeline(plot, figure) {
    const timeline = new Timeline(figure.lanes), seconds = figure.lanes.seconds || 1;
    const unit = figure.lanes.unitSeconds;
    const shown = { ...figure, traces: [], layout: timeline.layout() };
    let from = 0, to = seconds;
    const draw = () => Plotly.react(plot, [timeline.trace(from, to)],
      { ...themed(shown), xaxis: { ...themed(shown).xaxis, range: [from / unit, to / unit] } }, config);
    draw().then(() => plot.on("plotly_relayout", () => {
      const [left, right] = plot.layout.xaxis.range.map((edge) => Number(edge) * unit);
      const [low, high] = [Math.max(0, left), Math.min(seconds, right)];
      if (plot.layout.xaxis.autorange || !(high > low)) [from, to] = [0, seconds];
      else if (Math.abs(low - from) + Math.abs(high - to) < 1e-9 * seconds) return;
      else [from, to] = [low, high];
      draw();
    }));
    return draw;
  }

  // ---- all of them ---------------------------------------------------------------------------

  const drawn = new Map(); // plot -> how to draw it again

  function draw(plot) {
    const figure = report.figures[plot.id];
    if (drawn.has(plot)) return;
    if (figure.lanes) {
      drawn.set(plot, drawTimeline(plot, figure));
    } else {
      const again = () => Plotly.react(plot, figure.traces, themed(figure), config);
      drawn.set(plot, again);
      again();
    }
  }

  // One after the other, so that the page can be read meanwhile.
  function drawShown() {
    const waiting = [...document.querySelectorAll(".plot")].filter(
      (plot) => !drawn.has(plot) && !plot.closest("[hidden]"));
    const next = () => {
      const plot = waiting.shift();
      if (!plot) { root.dataset.drawn = "yes"; return; }
      draw(plot);
      setTimeout(next, 0);
    };
    next();
  }

  const drawAgain = () => drawn.forEach((again) => again());
  dark.addEventListener("change", drawAgain);
  for (const [event, printing] of [["beforeprint", true], ["afterprint", false]]) {
    addEventListener(event, () => { root.classList.toggle("printing", printing); drawAgain(); });
  }
  const choice = document.getElementById("choose-run");
  if (choice) {
    const choose = () => {
      for (const run of document.querySelectorAll("section.run")) run.hidden = run.id !== choice.value;
      drawShown();
    };
    choice.addEventListener("change", choose);
    choose();
  } else {
    drawShown();
  }
})();
