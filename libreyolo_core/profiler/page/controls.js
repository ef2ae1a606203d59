// Pointer, keyboard, search, the address, and what stands around the timeline.

// ---- address: the view survives a reload, and can be shared --------------------------------------------------------

let keeping = 0;
function keepAddress() {
  clearTimeout(keeping);
  keeping = setTimeout(() => {
    const parts = [];
    if (view.end - view.begin < length * 0.9999) parts.push(`zoom=${view.begin.toFixed(3)},${view.end.toFixed(3)}`);
    if (element("find").value) parts.push(`find=${encodeURIComponent(element("find").value)}`);
    history.replaceState(null, "", parts.length ? `#${parts.join("&")}` : location.pathname + location.search);
  }, 150);
}

function readAddress() {
  const wanted = new Map(location.hash.slice(1).split("&").map((p) => [p.split("=")[0], p.slice(p.indexOf("=") + 1)]));
  try {
    search(decodeURIComponent(wanted.get("find") || ""));
  } catch {
    search("");
  }
  const [begin, until] = (wanted.get("zoom") || "").split(",").map(Number);
  if (until > begin) look(begin, until, { remember: false });
  else look(0, length, { remember: false });
}

// ---- pointer -------------------------------------------------------------------------------------------------------

function eventAt(x, y) {
  if (y < RULER) return null;
  const place = y + frame.scrollTop;
  const lane = lanes.find((l) => place >= l.top && place < l.top + l.height + 1);
  const row = lane && lane.rows[Math.floor((place - lane.top - 1 - PAD) / ROW)];
  if (!row) return null;
  let nearest = null, distance = 3;
  for (let i = firstVisible(row); i < row.length; i++) {
    const from = xOf(row[i].begin), to = Math.max(from + 1, xOf(row[i].begin + row[i].duration));
    const away = x < from ? from - x : x > to ? x - to : 0;
    if (away < distance) [nearest, distance] = [row[i], away];
    if (from > x + 3 || away === 0) break;
  }
  return nearest;
}

function point(event) {
  const box = canvas.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
}

function hover(event) {
  const found = event && eventAt(...point(event));
  if (found !== hovered) {
    hovered = found;
    redraw();
  }
  tip.hidden = !found;
  if (!found) return;
  const [name, facts] = described(found);
  const heading = document.createElement("b");
  heading.textContent = name.length > 300 ? `${name.slice(0, 300)}…` : name;
  tip.replaceChildren(heading, facts);
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8))}px`;
  tip.style.top = `${event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 10 : event.clientY + 18}px`;
}

let grip = null;
canvas.addEventListener("pointerdown", (event) => {
  if (event.button !== 0) return;
  const [x, y] = point(event);
  canvas.setPointerCapture(event.pointerId);
  grip = { x, y, ...view, scroll: frame.scrollTop, moved: false };
  if (event.shiftKey || y < RULER) choice = { from: x, to: x };
  canvas.classList.add(choice ? "choosing" : "moving");
  tip.hidden = true;
});
canvas.addEventListener("pointermove", (event) => {
  if (!grip) return hover(event);
  const [x, y] = point(event);
  grip.moved ||= Math.abs(x - grip.x) + Math.abs(y - grip.y) > 3;
  if (choice) {
    choice.to = x;
    redraw();
  } else if (grip.moved) {
    const by = ((grip.x - x) / width) * (grip.end - grip.begin);
    frame.scrollTop = grip.scroll + grip.y - y;
    look(grip.begin + by, grip.end + by);
  }
});
canvas.addEventListener("pointerup", (event) => {
  if (!grip) return;
  const [x, y] = point(event);
  if (choice && grip.moved) look(usOf(Math.min(choice.from, choice.to)), usOf(Math.max(choice.from, choice.to)));
  else if (!grip.moved) select(eventAt(x, y));
  letGo();
});
function letGo() {
  grip = choice = null;
  canvas.classList.remove("choosing", "moving");
  redraw();
}
canvas.addEventListener("pointercancel", letGo);
canvas.addEventListener("pointerleave", () => hover(null));
canvas.addEventListener("dblclick", (event) => {
  const found = eventAt(...point(event));
  if (found) look(found.begin - 0.05 * found.duration, found.begin + 1.05 * found.duration);
});
canvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  const pixels = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 400 : 1;
  if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
    move(((event.deltaX || event.deltaY) * pixels) / width);
  } else {
    zoom(1.0018 ** (event.deltaY * pixels), usOf(point(event)[0]));
  }
  hover(event);
}, { passive: false });

// ---- keyboard ------------------------------------------------------------------------------------------------------

const keys = {
  "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: all, Home: all,
  ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2),
  ArrowUp: () => (frame.scrollTop -= 2 * ROW), ArrowDown: () => (frame.scrollTop += 2 * ROW),
  ",": () => goToStep(-1), ".": () => goToStep(1),
  Escape: () => { select(null); search(""); },
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target === element("find");
  if (typing && event.key === "Enter") goToMatch(event.shiftKey ? -1 : 1);
  else if (typing && event.key === "Escape") search("");
  else if (!typing && event.key === "/") element("find").focus();
  else if (event.target === canvas && event.key === "Enter") goToMatch(event.shiftKey ? -1 : 1);
  else if (!typing && keys[event.key] && (event.target === canvas || !event.key.startsWith("Arrow"))) keys[event.key]();
  else return;
  event.preventDefault();
});

// ---- search --------------------------------------------------------------------------------------------------------

function search(text) {
  if (element("find").value !== text) element("find").value = text;
  const wanted = text.trim().toLowerCase();
  if (!wanted) {
    matches = [];
    matching = null;
    element("found").textContent = "";
  } else {
    const names = new Set(data.names.flatMap((n, i) => (n.toLowerCase().includes(wanted) ? [i] : [])));
    matches = lanes.flatMap((l) => l.events.filter((e) => names.has(e.name))).sort((a, b) => a.begin - b.begin);
    matching = new Set(matches);
    element("found").textContent = matches.length ? `${matches.length} found, ${duration(matches.reduce((s, e) => s + e.duration, 0))}` : "none found";
  }
  redraw();
}

function goToMatch(direction) {
  if (!matches.length) return;
  const at = matches.indexOf(selected);
  reveal(matches[(at < 0 ? (direction > 0 ? 0 : matches.length - 1) : at + direction + matches.length) % matches.length]);
}

// ---- around the timeline -------------------------------------------------------------------------------------------

function add(parent, tag, text, attributes = {}) {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return parent.appendChild(made);
}

function fillTable(id, headings, rows) {
  const table = element(id);
  const head = add(table.createTHead().insertRow(), "th", headings[0], { scope: "col" }).parentNode;
  headings.slice(1).forEach((h) => add(head, "th", h, { scope: "col" }));
  const body = table.createTBody();
  for (const [name, ...cells] of rows) {
    const row = body.insertRow();
    const button = add(add(row, "td", ""), "button", name, { type: "button", title: name });
    button.addEventListener("click", () => {
      search(name);
      keepAddress();
      goToMatch(1);
    });
    cells.forEach((c) => add(row, "td", c));
  }
}

element("title").textContent = data.title;
element("window").textContent = data.window;
element("verdict").textContent = data.verdict.name;
element("verdict").closest(".verdict").dataset.name = data.verdict.name;
element("reason").textContent = data.verdict.reason;
data.verdict.levers.forEach((lever) => add(element("levers"), "li", lever));
for (const [label, value, of] of data.facts) {
  const fact = add(element("facts"), "div", "");
  add(fact, "dt", label);
  add(add(fact, "dd", value), "small", of);
}
for (const lane of lanes) add(element("labels"), "li", lane.name, { title: lane.name, style: `height: ${lane.height + 1}px` });
element("kernels").closest("section").hidden = !data.kernels.length;
fillTable("kernels", ["name", "total", "count", "mean"], data.kernels);
fillTable("ops", ["name", "self", "total", "count"], data.ops);
fillTable("phases", ["name", "per step", "share"], data.phases);
element("made").textContent = data.made;

const clicks = { "zoom-in": () => zoom(0.5), "zoom-out": () => zoom(2), fit: all, "step-back": () => goToStep(-1), "step-on": () => goToStep(1), "find-back": () => goToMatch(-1), "find-on": () => goToMatch(1) };
for (const [id, run] of Object.entries(clicks)) element(id).addEventListener("click", run);
element("find").addEventListener("input", () => {
  search(element("find").value);
  keepAddress();
});
frame.addEventListener("scroll", redraw);
addEventListener("hashchange", readAddress);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  readColours();
  redraw();
});
frame.style.height = `min(${total + 4}px, 52vh)`;
new ResizeObserver(resize).observe(frame);
readColours();
resize();
readAddress();
