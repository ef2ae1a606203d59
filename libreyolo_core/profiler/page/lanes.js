// What is shown: the profile, its lanes laid out in rows, and their events in words.

const data = JSON.parse(document.getElementById("profile").textContent);
const element = (id) => document.getElementById(id);
const canvas = element("timeline"), frame = element("lanes"), tip = element("tip");
const context = canvas.getContext("2d");
const RULER = 24, ROW = 16, PAD = 3, NARROWEST = 0.05; // px, px, px, us

// ---- what is shown -------------------------------------------------------------------------------------------------

/** One lane with its events on rows, so that what ran inside an event stands below it. Times are us from the start. */
function layLane(lane, start) {
  const events = lane.events.map(([begin, duration, name]) => ({ begin: begin - start, duration, name }));
  events.sort((a, b) => a.begin - b.begin || b.duration - a.duration);
  const rows = [], open = [];
  for (const event of events) {
    // beginnings and durations are rounded to 1 ns, so that neighbours may seem to overlap by two
    while (open.length && open[open.length - 1] <= event.begin + 0.002) open.pop();
    event.row = open.length;
    event.lane = lane;
    open.push(event.begin + event.duration);
    (rows[event.row] ||= []).push(event);
  }
  return { name: lane.name, kind: lane.kind, events, rows, height: rows.length * ROW + 2 * PAD, top: 0 };
}

let start = Infinity, end = -Infinity;
for (const lane of data.lanes) {
  for (const [begin, duration] of lane.events) {
    start = Math.min(start, begin);
    end = Math.max(end, begin + duration);
  }
}
if (!(end > start)) [start, end] = [0, 1];
const length = end - start;
const lanes = data.lanes.map((lane) => layLane(lane, start));
let total = RULER;
for (const lane of lanes) {
  lane.top = total;
  total += lane.height + 1;
}
const steps = lanes.filter((l) => l.kind === "steps").flatMap((l) => l.events);
const perName = new Map();
for (const lane of lanes) {
  for (const event of lane.events) {
    const sum = perName.get(event.name) || { count: 0, duration: 0 };
    sum.count += 1;
    sum.duration += event.duration;
    perName.set(event.name, sum);
  }
}

// ---- words ---------------------------------------------------------------------------------------------------------

function duration(us) {
  for (const [scale, unit] of [[1e6, "s"], [1e3, "ms"], [1, "us"]]) {
    if (Math.abs(us) >= scale * 0.9995) return `${digits(us / scale)} ${unit}`;
  }
  return us === 0 ? "0 us" : `${digits(us * 1e3)} ns`;
}
const digits = (value) => {
  const size = Math.abs(value);
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2);
};
const percent = (share) => `${(100 * share).toFixed(1)}%`;

/** A time on the ruler: as many digits as its distance to the next needs. */
function moment(us, distance) {
  const [scale, unit] = end - start >= 2e6 && distance >= 1e4 ? [1e6, "s"] : distance >= 100 ? [1e3, "ms"] : [1, "us"];
  const places = Math.max(0, -Math.floor(Math.log10(distance / scale) + 1e-9));
  return `${(us / scale).toFixed(places)} ${unit}`;
}

function stepOf(event) {
  const middle = event.begin + event.duration / 2;
  return steps.find((s) => s !== event && s.begin <= middle && middle < s.begin + s.duration);
}

/** Name, then facts about an event. */
function described(event) {
  const step = stepOf(event), sum = perName.get(event.name);
  const facts = [`${duration(event.duration)} at ${duration(event.begin)}`];
  facts.push(step ? `${percent(event.duration / step.duration)} of step ${steps.indexOf(step) + 1} (${data.names[step.name]})` : `${percent(event.duration / length)} of the window`);
  if (sum.count > 1) facts.push(`${sum.count} of this name, ${duration(sum.duration)} in all`);
  return [data.names[event.name], `${event.lane.name}: ${facts.join(", ")}`];
}
