// One lane a node. A column of a lane shows the shares of time of each kind, from the top; the two
// thin lines below it are transfers.
import { KINDS } from "/static/kinds.js";
import { duration, say } from "/static/words.js";

const STACKED = ["train", "reuse", "merge", "other", "idle_1", "idle_2", "away"], TRANSFERS = ["send", "receive"];
const LANE = 26, BAR = 15, LINE = 3, AXIS = 22;

export class Timeline {
  constructor(box, hover) {
    this.canvas = box.querySelector("canvas");
    this.hover = hover;
    this.data = { start: 0, bin_seconds: 1, lanes: [] };
    new ResizeObserver(() => this.draw()).observe(box);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    this.canvas.addEventListener("pointermove", (event) => this.point(event.offsetX, event.offsetY));
    this.canvas.addEventListener("pointerdown", (event) => this.point(event.offsetX, event.offsetY));
  }

  show(data) {
    for (const lane of data.lanes) {
      for (const [kind, row] of Object.entries(lane.shares)) lane.shares[kind] = percents(row);
    }
    this.data = data;
    this.draw();
  }

  draw() {
    const { lanes } = this.data, css = getComputedStyle(document.documentElement);
    const colour = (name) => css.getPropertyValue(name).trim();
    const width = this.canvas.parentElement.clientWidth, height = Math.max(1, lanes.length) * LANE + AXIS;
    const scale = window.devicePixelRatio || 1, context = this.canvas.getContext("2d");
    this.canvas.width = width * scale;
    this.canvas.height = height * scale;
    this.canvas.style.height = `${height}px`;
    context.scale(scale, scale);
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    const longest = Math.max(0, ...lanes.map((lane) => context.measureText(lane.name).width));
    this.left = Math.min(longest, width * 0.28) + 10;
    this.bins = Math.max(1, ...lanes.flatMap((lane) => Object.values(lane.shares).map((row) => row.length)));
    this.column = (width - this.left) / this.bins;
    lanes.forEach((lane, index) => this.lane(context, lane, index * LANE, colour));
    this.axis(context, width, lanes.length * LANE, colour);
    this.canvas.dataset.lanes = lanes.length;
    this.canvas.dataset.bins = this.bins;
  }

  lane(context, lane, top, colour) {
    context.fillStyle = colour("--ink");
    context.textAlign = "left";
    context.fillText(shortened(context, lane.name, this.left - 10), 0, top + BAR / 2 + 1);
    const filled = new Array(this.bins).fill(0);
    const ratio = window.devicePixelRatio || 1; // whole pixels of the screen: no seams
    const edge = (bin) => Math.round((this.left + bin * this.column) * ratio) / ratio;
    const rectangle = (bin, y, height) => context.fillRect(edge(bin), y, edge(bin + 1) - edge(bin), height);
    for (const kind of STACKED) {
      context.fillStyle = colour(KINDS[kind].colour);
      (lane.shares[kind] ?? []).forEach((share, bin) => {
        const height = (BAR * Math.min(share, 100 - filled[bin])) / 100;
        if (height > 0) rectangle(bin, top + (BAR * filled[bin]) / 100, height);
        filled[bin] += share;
      });
    }
    TRANSFERS.forEach((kind, line) => {
      context.fillStyle = colour(KINDS[kind].colour);
      (lane.shares[kind] ?? []).forEach((share, bin) => {
        context.globalAlpha = share ? 0.35 + 0.0065 * share : 0;
        rectangle(bin, top + BAR + 1 + line * LINE, LINE - 1);
      });
      context.globalAlpha = 1;
    });
  }

  axis(context, width, top, colour) {
    const { start, bin_seconds: bin } = this.data, seconds = this.bins * bin;
    const most = Math.max(2, Math.floor((width - this.left) / 110));
    const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 36000, 86400];
    const step = steps.find((each) => seconds / each <= most) ?? 86400 * Math.ceil(seconds / 86400 / most);
    context.fillStyle = colour("--soft");
    context.textAlign = "center";
    for (let at = Math.ceil(start / step) * step; at <= start + seconds; at += step) {
      const x = this.left + ((at - start) / seconds) * (width - this.left), text = clock(at);
      const half = context.measureText(text).width / 2;
      context.fillRect(x, top, 1, 4);
      if (x + half <= width) context.fillText(text, Math.max(x, this.left + half), top + 14);
    }
  }

  point(x, y) {
    const lane = this.data.lanes[Math.floor(y / LANE)], bin = Math.floor((x - this.left) / this.column);
    if (!lane || bin < 0 || bin >= this.bins) return;
    const parts = [...STACKED, ...TRANSFERS]
      .map((kind) => [KINDS[kind].name, lane.shares[kind]?.[bin]])
      .filter(([, share]) => share)
      .map(([name, share]) => `${name} ${Math.round(share)} %`);
    const at = this.data.start + bin * this.data.bin_seconds;
    say(this.hover, `${lane.name}, at ${duration(Math.max(0, at))}: ${parts.join(", ") || "not in the run"}`);
  }
}

// One character a bin, from "#" for nothing to "}" for all of it.
const percents = (row) => Array.from(row, (letter) => (100 * (letter.charCodeAt(0) - 35)) / 90);

function clock(seconds) {
  const whole = Math.round(seconds), two = (number) => String(number).padStart(2, "0");
  if (whole < 60) return `${whole} s`;
  const hours = Math.floor(whole / 3600), rest = `${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
  return hours ? `${hours}:${rest}` : rest;
}

function shortened(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  const end = text.slice(-4); // names often differ by the number at their end
  let length = text.length - 4;
  while (length > 1 && context.measureText(`${text.slice(0, length)}…${end}`).width > room) length -= 1;
  return `${text.slice(0, length)}…${end}`;
}
