// Wheel, drag, pinch, keys, search -> view and state; everything is then drawn once per frame at most.

const strips = [...document.querySelectorAll("canvas.strip")];
const maps = [...document.querySelectorAll("canvas.map")];
const tip = document.getElementById("tip");
const search = document.getElementById("search");
let isDue = false;

function draw() {
  isDue = false;
  readColors();
  strips.forEach((canvas, k) => drawStrip(canvas, CASES[k]));
  maps.forEach((canvas, k) => drawMap(canvas, CASES[k]));
}

function due() {
  if (!isDue) { isDue = true; requestAnimationFrame(draw); }
}

// --- view ---

function show(from, to) {
  const span = Math.min(Math.max(to - from, SHORTEST_VIEW), 1.04 * LONGEST);
  const slack = 0.02 * LONGEST;
  const reach = CASES.map((one) => [-one.offset, one.window - one.offset]);
  const low = Math.min(...reach.map(([start]) => start)) - slack, high = Math.max(...reach.map(([, end]) => end)) + slack;
  let start = (from + to) / 2 - span / 2;
  start = Math.max(low - span / 2, Math.min(start, high - span / 2));
  if (span >= high - low) start = (low + high) / 2 - span / 2;
  view.from = start;
  view.to = start + span;
  due();
}

function zoom(factor, at = (view.from + view.to) / 2) {
  show(at - (at - view.from) * factor, at + (view.to - at) * factor);
}

function pan(share) {
  const by = share * (view.to - view.from);
  show(view.from + by, view.to + by);
}

function all() {
  for (const one of CASES) one.offset = 0;
  state.round = -1;
  show(-0.01 * LONGEST, 1.01 * LONGEST);
}

const STEPS = [...new Set(CASES.flatMap((one) => one.rounds.step))].sort((a, b) => a - b);

// The k-th of all rounds, in every case that has it, aligned at its start; of a single case the times stay the window's.
function goToRound(k) {
  if (!STEPS.length) return;
  state.round = Math.max(0, Math.min(k, STEPS.length - 1));
  let span = 0;
  for (const one of CASES) {
    const place = one.rounds.step.indexOf(STEPS[state.round]);
    if (place < 0) continue;
    one.offset = one.rounds.begin[place];
    span = Math.max(span, one.rounds.end[place] - one.rounds.begin[place]);
  }
  if (CASES.length === 1) {
    const at = CASES[0].offset;
    CASES[0].offset = 0;
    show(at - 0.03 * span, at + 1.03 * span);
  } else show(-0.03 * span, 1.03 * span);
}

function currentRound() {
  if (state.round >= 0) return state.round;
  const one = CASES[0], middle = (view.from + view.to) / 2 + one.offset;
  if (view.to - view.from > LONGEST || !one.rounds.step.length) return -1;
  return STEPS.indexOf(one.rounds.step[Math.max(0, above(one.rounds.begin, middle) - 1)]);
}

function focusOn(item) {
  const { one, row, i } = item;
  const room = Math.max(row.dur[i] * 1.5, 60);
  const middle = row.start[i] + row.dur[i] / 2 - one.offset;
  show(middle - room, middle + room);
}

// --- what is under the pointer ---

function timeAt(one, x) {
  return one.offset + view.from + (x - one.place.gutter) / one.scale;
}

function itemAt(one, x, y) {
  for (const lane of one.lanes) {
    const at = Math.floor((y - lane.y) / lane.rowHeight);
    if (at < 0 || at >= lane.rows.length) continue;
    const row = lane.rows[at], time = timeAt(one, x), near = 3 / one.scale;
    const i = above(row.end, time);
    const nearest = [i, i - 1].filter((k) => k >= 0 && k < row.n).map((k) => ({ k, off: Math.max(0, row.start[k] - time, time - row.end[k]) }));
    nearest.sort((a, b) => a.off - b.off);
    if (nearest.length && nearest[0].off <= near) return { one, lane, row, i: nearest[0].k };
  }
  return null;
}

function showTip(item, clientX, clientY) {
  tip.hidden = !item;
  if (!item) return;
  tip.textContent = described(item).join("\n");
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(12, Math.min(clientX + 14, innerWidth - box.width - 12)) + "px";
  tip.style.top = (clientY + 18 + box.height > innerHeight ? Math.max(8, clientY - box.height - 14) : clientY + 18) + "px";
}

function select(item) {
  state.selected = item;
  document.getElementById("selected").textContent = item ? described(item).join("\n") : "";
  due();
}

function neighbour(by) {
  const item = state.selected;
  if (!item) {
    for (const lane of CASES[0].lanes) {
      if (lane.kind !== "op") continue;
      const row = lane.rows[0];
      select({ one: CASES[0], lane, row, i: Math.min(row.n - 1, above(row.end, view.from + CASES[0].offset)) });
      return;
    }
    return;
  }
  const i = item.i + by;
  if (i < 0 || i >= item.row.n) return;
  select({ ...item, i });
  bringIntoView(state.selected);
}

function bringIntoView({ one, row, i }) {
  const start = row.start[i] - one.offset, end = row.end[i] - one.offset, span = view.to - view.from;
  if (start < view.from || end > view.to) show((start + end) / 2 - span / 2, (start + end) / 2 + span / 2);
}

// --- pointers ---

strips.forEach((canvas, k) => {
  const one = CASES[k];
  const pointers = new Map();
  let last = null, moved = 0;
  const inside = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  canvas.addEventListener("wheel", (event) => {
    const isSideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
    const by = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 400 : 1;
    if (!isSideways && event.deltaY > 0 && view.to - view.from >= 1.02 * LONGEST) return; // nothing is left to zoom out of: the page scrolls
    event.preventDefault();
    if (isSideways) pan(((event.deltaX || event.deltaY) * by) / one.place.plot);
    else zoom(Math.exp(Math.max(-240, Math.min(240, event.deltaY * by)) * 0.0022), timeAt(one, inside(event)[0]) - one.offset);
    showTip(null);
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    const [x, y] = inside(event);
    pointers.set(event.pointerId, [x, y]);
    canvas.setPointerCapture(event.pointerId);
    moved = 0;
    last = pointers.size === 1 ? x : null;
    if (event.shiftKey) state.measure = { one, a: timeAt(one, x), b: timeAt(one, x), isOpen: true };
    else { state.measure = null; canvas.classList.add("dragging"); }
    due();
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = inside(event);
    if (!pointers.has(event.pointerId)) {
      if (event.pointerType === "mouse") hover(itemAt(one, x, y), event);
      return;
    }
    const before = pointers.get(event.pointerId);
    pointers.set(event.pointerId, [x, y]);
    moved += Math.abs(x - before[0]) + Math.abs(y - before[1]);
    if (state.measure && state.measure.isOpen) { state.measure.b = timeAt(one, x); due(); return; }
    if (pointers.size === 2) pinch(one, [...pointers.entries()], event.pointerId, before[0]);
    else if (last !== null && moved > 3) { const by = (before[0] - x) / one.scale; show(view.from + by, view.to + by); }
    if (moved > 3) showTip(null);
  });
  const release = (event) => {
    if (!pointers.delete(event.pointerId)) return;
    canvas.classList.remove("dragging");
    if (state.measure) state.measure.isOpen = false;
    else if (event.type === "pointerup" && moved <= 3 && !pointers.size) select(itemAt(one, ...inside(event)));
    last = null;
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", () => { if (!pointers.size) hover(null); });
  canvas.addEventListener("dblclick", (event) => { const item = itemAt(one, ...inside(event)); if (item) { select(item); focusOn(item); } });
});

function hover(item, event) {
  const was = state.hover;
  state.hover = item;
  showTip(item, event && event.clientX, event && event.clientY);
  if (!item !== !was || (item && (item.row !== was.row || item.i !== was.i))) due();
}

// Two fingers: what lies under each of them stays there.
function pinch(one, entries, movedId, before) {
  const [[, fixed]] = entries.filter(([id]) => id !== movedId), [[, now]] = entries.filter(([id]) => id === movedId);
  const old = Math.abs(before - fixed[0]), fresh = Math.abs(now[0] - fixed[0]);
  if (old > 8 && fresh > 8) zoom(old / fresh, timeAt(one, fixed[0]) - one.offset);
}

maps.forEach((canvas, k) => {
  const one = CASES[k];
  const go = (event) => {
    const box = canvas.getBoundingClientRect();
    const middle = ((event.clientX - box.left) / box.width) * one.window - one.offset, half = (view.to - view.from) / 2;
    show(middle - half, middle + half);
  };
  canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); go(event); });
  canvas.addEventListener("pointermove", (event) => { if (event.buttons) go(event); });
});

// --- search ---

let found = [], foundAt = -1;

function find(needle) {
  state.needle = needle.trim().toLowerCase();
  const hits = document.getElementById("hits");
  found = [];
  foundAt = -1;
  if (!state.needle) {
    state.hits = null;
    hits.textContent = "";
    due();
    return;
  }
  state.hits = CASES.map((one) => new Set(one.names.flatMap((name, place) => (name.toLowerCase().includes(state.needle) ? [place] : []))));
  const times = CASES.map(() => [0, 0]);
  for (const one of CASES) {
    for (const lane of one.lanes) {
      for (const row of lane.rows) {
        for (let i = 0; row.name && i < row.n; i++) {
          if (!state.hits[one.index].has(row.name[i])) continue;
          found.push({ one, lane, row, i });
          times[one.index][0] += 1;
          times[one.index][1] += row.dur[i];
        }
      }
    }
  }
  found.sort((a, b) => a.one.index - b.one.index || a.row.start[a.i] - b.row.start[b.i]);
  hits.textContent = found.length ? times.map(([count, time]) => count + " found, " + duration(time)).join(" | ") : "none found";
  hits.className = found.length ? "" : "none";
  due();
}

function nextFound() {
  if (!found.length) return;
  foundAt = (foundAt + 1) % found.length;
  select(found[foundAt]);
  const { row, i } = found[foundAt];
  if (view.to - view.from > 400 * Math.max(row.dur[i], 100)) focusOn(found[foundAt]); else bringIntoView(found[foundAt]);
}

search.addEventListener("input", () => find(search.value));
search.addEventListener("keydown", (event) => {
  if (event.key === "Enter") { event.preventDefault(); nextFound(); }
  if (event.key === "Escape") { search.value = ""; find(""); search.blur(); }
});

// --- keys and buttons ---

const ACTIONS = {
  previous: () => goToRound(currentRound() - 1),
  next: () => goToRound(currentRound() + 1),
  out: () => zoom(1.6),
  in: () => zoom(1 / 1.6),
  all,
  found: nextFound,
  help: () => {
    const help = document.getElementById("help");
    help.hidden = !help.hidden;
    document.querySelector('[data-do="help"]').setAttribute("aria-expanded", String(!help.hidden));
  },
  left: () => pan(-0.2),
  right: () => pan(0.2),
  before: () => neighbour(-1),
  after: () => neighbour(1),
  focus: () => state.selected && focusOn(state.selected),
  search: () => search.focus(),
  clear: () => { state.measure = null; select(null); },
};
const KEYS = {
  "[": "previous", "]": "next", "-": "out", "_": "out", "+": "in", "=": "in", 0: "all", "?": "help", ArrowLeft: "left", ArrowRight: "right",
  ",": "before", ".": "after", f: "focus", "/": "search", Escape: "clear", a: "left", d: "right", w: "in", s: "out",
};

for (const button of document.querySelectorAll("[data-do]")) button.addEventListener("click", () => ACTIONS[button.dataset.do]());
document.addEventListener("keydown", (event) => {
  const isTyping = event.target instanceof Element && event.target.closest("input, textarea, .scroll");
  const action = KEYS[event.key];
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey || !action) return;
  event.preventDefault();
  ACTIONS[action]();
});

// --- legend ---

function legend() {
  const list = document.getElementById("legend");
  const seen = new Set(CASES.flatMap((one) => one.lanes.filter((lane) => lane.kind !== "idle").flatMap((lane) => lane.rows.flatMap((row) => [...row.stage]))));
  const entries = DATA.stages.map((stage, k) => [stage, DATA.colors[k], seen.has(k)]).filter(([, , isSeen]) => isSeen);
  const blamed = new Set(CASES.flatMap((one) => one.lanes.filter((lane) => lane.kind === "idle").flatMap((lane) => lane.rows.flatMap((row) => [...row.cause].map((cause) => DATA.blame[cause])))));
  const idle = { host: "idle: host late", launch: "idle: launched, not started", device: "idle: between nodes or queued ops", none: "idle: nothing to run, or not known" };
  for (const [blame, label] of Object.entries(idle)) if (blamed.has(blame)) entries.push([label, "var(--" + blame + ")"]);
  for (const [label, color] of entries) {
    const entry = document.createElement("li"), patch = document.createElement("span");
    patch.style.background = color;
    entry.append(patch, label);
    list.append(entry);
  }
}

legend();
new ResizeObserver(due).observe(document.getElementById("content"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", due);
addEventListener("beforeprint", () => { state.printing = true; draw(); });
addEventListener("afterprint", () => { state.printing = false; due(); });
draw();
