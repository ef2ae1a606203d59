// The part of the lanes in view, drawn on a canvas.

// ---- view ----------------------------------------------------------------------------------------------------------

let view = { begin: 0, end: length };
let selected = null, hovered = null, matches = [], matching = null, choice = null, queued = false;
let width = 0, height = 0;

function look(begin, until, { remember = true } = {}) {
  const span = Math.min(length, Math.max(NARROWEST, until - begin));
  const from = Math.min(Math.max(0, begin + (until - begin - span) / 2), length - span);
  view = { begin: from, end: from + span };
  element("range").textContent = `${duration(view.begin)} to ${duration(view.end)} (${duration(span)})`;
  canvas.setAttribute("aria-label", `Timeline of ${lanes.map((l) => l.name).join(", ")}, showing ${element("range").textContent}`);
  if (remember) keepAddress();
  redraw();
}

function zoom(factor, at = (view.begin + view.end) / 2) {
  const span = view.end - view.begin, wanted = Math.min(length, Math.max(NARROWEST, span * factor));
  const begin = at - (at - view.begin) * (wanted / span);
  look(begin, begin + wanted);
}
const move = (share) => {
  const by = share * (view.end - view.begin);
  look(view.begin + by, view.end + by);
};
const all = () => look(0, length);

function goToStep(direction) {
  if (!steps.length) return;
  const middle = (view.begin + view.end) / 2, fitsOne = view.end - view.begin < 1.5 * steps[0].duration;
  const current = steps.findIndex((s) => middle < s.begin + s.duration);
  const here = current < 0 ? steps.length - 1 : current;
  const index = fitsOne ? here + direction : direction > 0 ? 0 : steps.length - 1;
  const step = steps[Math.min(Math.max(0, index), steps.length - 1)];
  look(step.begin - 0.03 * step.duration, step.begin + 1.03 * step.duration);
  select(step);
}

function select(event) {
  selected = event;
  element("event").textContent = event ? described(event).join(" — ") : "";
  redraw();
}

function reveal(event) {
  const span = view.end - view.begin;
  if (event.begin < view.begin || event.begin + event.duration > view.end || event.duration < span / 400) {
    const wanted = Math.min(span, Math.max(event.duration * 8, NARROWEST));
    const middle = event.begin + event.duration / 2;
    look(middle - wanted / 2, middle + wanted / 2);
  }
  const lane = lanes.find((l) => l.events.includes(event));
  const top = lane.top + PAD + event.row * ROW - RULER;
  if (top < frame.scrollTop) frame.scrollTop = top;
  else if (top + ROW > frame.scrollTop + height - RULER) frame.scrollTop = top + ROW + RULER - height;
  select(event);
}

// ---- drawing -------------------------------------------------------------------------------------------------------

let colours = {};
function readColours() {
  const style = getComputedStyle(document.documentElement);
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  colours = Object.fromEntries(["panel", "ink", "quiet", "line", "faint", "accent", "hit"].map((n) => [n, style.getPropertyValue(`--${n}`).trim()]));
  const fill = (hue, even) => (dark ? `hsl(${hue} 40% ${even ? 42 : 48}%)` : `hsl(${hue} 52% ${even ? 74 : 80}%)`);
  const bland = (even) => (dark ? `hsl(210 8% ${even ? 28 : 35}%)` : `hsl(210 12% ${even ? 82 : 88}%)`);
  // forward blue, backward violet, optimizer green, what waits and copies orange; operators and kernels by their name
  const known = { forward: 212, backward: 268, optimizer: 140, to_device: 32, "wait for data": 20 };
  colours.of = data.names.map((name) => {
    let hash = 7;
    for (let i = 0; i < name.length; i++) hash = (hash * 31 + name.charCodeAt(i)) >>> 0;
    return fill(known[name] ?? [200, 228, 262, 296, 330, 8, 36, 58, 96, 140, 168, 184][hash % 12], (hash >> 5) % 2);
  });
  colours.steps = [bland(true), bland(false)];
}

function redraw() {
  if (queued) return;
  queued = true;
  requestAnimationFrame(() => {
    queued = false;
    draw();
  });
}

function resize() {
  const ratio = devicePixelRatio || 1;
  width = canvas.clientWidth;
  height = frame.clientHeight;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  redraw();
}

const xOf = (us) => ((us - view.begin) / (view.end - view.begin)) * width;
const usOf = (x) => view.begin + (x / width) * (view.end - view.begin);

function draw() {
  context.fillStyle = colours.panel;
  context.fillRect(0, 0, width, height);
  context.font = "11.5px system-ui, sans-serif";
  context.textBaseline = "middle";
  drawGrid();
  for (const lane of lanes) {
    const top = lane.top - frame.scrollTop;
    if (top > height || top + lane.height < RULER) continue;
    context.fillStyle = colours.line;
    context.fillRect(0, top, width, 1);
    lane.rows.forEach((row, i) => {
      const y = top + 1 + PAD + i * ROW;
      if (y < height && y + ROW > RULER) drawRow(row, y, lane.kind);
    });
  }
  drawRuler();
  if (choice) {
    context.fillStyle = colours.accent;
    context.globalAlpha = 0.25;
    context.fillRect(Math.min(choice.from, choice.to), 0, Math.abs(choice.to - choice.from), height);
    context.globalAlpha = 1;
  }
}

function firstVisible(row) {
  let low = 0, high = row.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (row[middle].begin + row[middle].duration < view.begin) low = middle + 1;
    else high = middle;
  }
  return low;
}

function drawRow(row, y, kind) {
  let drawnTo = -1;
  for (let i = firstVisible(row); i < row.length && row[i].begin <= view.end; i++) {
    const event = row[i];
    const from = Math.max(-2, xOf(event.begin)), to = Math.min(width + 2, xOf(event.begin + event.duration));
    const shown = matching === null || kind === "steps" || matching.has(event);
    // one event a pixel is enough, but one that was searched for is never skipped
    if (to < drawnTo && !(matching !== null && shown)) continue;
    const wide = to - from;
    context.globalAlpha = shown ? 1 : 0.18;
    context.fillStyle = kind === "steps" ? colours.steps[i % 2] : colours.of[event.name];
    context.fillRect(from, y, Math.max(1, wide > 3 ? wide - 0.6 : wide), ROW - 1);
    drawnTo = from + 1;
    if (matching !== null && matching.has(event)) {
      context.fillStyle = colours.hit;
      context.fillRect(from, y + ROW - 3, Math.max(1.5, wide - 0.6), 2);
    }
    if (wide > 26) drawText(data.names[event.name], Math.max(0, from) + 4, y + ROW / 2, Math.min(width, to) - Math.max(0, from) - 7);
    if (event === selected || event === hovered) {
      context.globalAlpha = 1;
      context.strokeStyle = event === selected ? colours.accent : colours.ink;
      context.lineWidth = event === selected ? 2 : 1;
      context.strokeRect(from + 0.5, y + 0.5, Math.max(2, wide - 1.5), ROW - 2);
    }
  }
  context.globalAlpha = 1;
}

function drawText(text, x, y, room) {
  if (room < 18) return;
  context.fillStyle = colours.ink;
  let shown = text;
  if (context.measureText(text.slice(0, 400)).width > room) {
    let low = 0, high = Math.min(text.length, Math.ceil(room / 3));
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (context.measureText(`${text.slice(0, middle)}…`).width <= room) low = middle;
      else high = middle - 1;
    }
    if (low < 2) return;
    shown = `${text.slice(0, low)}…`;
  }
  context.fillText(shown, x, y);
}

function ticks() {
  const rough = ((view.end - view.begin) / width) * 110;
  const power = 10 ** Math.floor(Math.log10(rough));
  const distance = power * ([1, 2, 5, 10].find((m) => m * power >= rough) ?? 10);
  const marks = [];
  for (let at = Math.ceil(view.begin / distance) * distance; at <= view.end; at += distance) marks.push(at);
  return { distance, marks };
}

function drawGrid() {
  context.fillStyle = colours.faint;
  for (const at of ticks().marks) context.fillRect(Math.round(xOf(at)), 0, 1, height);
}

function drawRuler() {
  context.fillStyle = colours.panel;
  context.fillRect(0, 0, width, RULER);
  context.fillStyle = colours.line;
  context.fillRect(0, RULER - 1, width, 1);
  const { distance, marks } = ticks();
  for (const at of marks) {
    const x = Math.round(xOf(at));
    context.fillStyle = colours.line;
    context.fillRect(x, RULER - 7, 1, 7);
    context.fillStyle = colours.quiet;
    if (x < width - 60) context.fillText(moment(at, distance), x + 4, RULER / 2 - 1);
  }
}
