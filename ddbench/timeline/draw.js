// The strip and its map, drawn anew for every change: what is narrower than a pixel is summed up in it.

const AXIS = 20, BAND = 18, GAP = 5, TITLE = 12;
const HEIGHTS = { range: 16, call: 13, idle: 12 };
const LIGHT = { ink: "#000000", faint: "#444444", rule: "#cccccc", paper: "#ffffff", lane: "#f5f6f8", host: "#c0392b", launch: "#c77700", device: "#7b8794", none: "#b9c0c7", band: "#0072b2", mark: "#d81b60" };
let colors = LIGHT;

function readColors() {
  if (state.printing) { colors = LIGHT; return; }
  const style = getComputedStyle(document.documentElement);
  colors = {};
  for (const name of Object.keys(LIGHT)) colors[name] = style.getPropertyValue("--" + name).trim() || LIGHT[name];
}

const inks = DATA.colors.map((color) => {
  const [r, g, b] = [1, 3, 5].map((at) => (parseInt(color.slice(at, at + 2), 16) / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#000000" : "#ffffff";
});

// Where everything lies in a panel of this width.
function layout(one, width) {
  const gutter = width >= 700 ? 148 : 0;
  let y = AXIS + (one.rounds.step.length ? BAND : 0) + GAP;
  const count = one.lanes.reduce((sum, lane) => sum + (lane.kind === "op" ? lane.rows.length : 0), 0);
  for (const lane of one.lanes) {
    y += gutter ? 0 : TITLE;
    lane.y = y;
    lane.rowHeight = HEIGHTS[lane.kind] || (count <= 4 ? 26 : count <= 8 ? 20 : 15);
    y += lane.rowHeight * lane.rows.length + GAP;
  }
  return { gutter, width, plot: width - gutter, height: y };
}

function canvasContext(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

function drawStrip(canvas, one) {
  const width = canvas.clientWidth || 960;
  const place = layout(one, width);
  if (canvas.style.height !== place.height + "px") canvas.style.height = place.height + "px";
  const c = canvasContext(canvas, width, place.height);
  const scale = place.plot / (view.to - view.from);
  const from = view.from + one.offset, to = view.to + one.offset;
  const x = (time) => place.gutter + (time - from) * scale;
  Object.assign(one, { place, scale, x });
  c.font = "11px system-ui, sans-serif";
  c.textBaseline = "middle";
  c.save();
  c.beginPath();
  c.rect(place.gutter, 0, place.plot, place.height);
  c.clip();
  for (const lane of one.lanes) {
    c.fillStyle = colors.lane;
    c.fillRect(place.gutter, lane.y, place.plot, lane.rowHeight * lane.rows.length);
  }
  drawAxis(c, one, from, to);
  drawRounds(c, one, from, to);
  for (const lane of one.lanes) lane.rows.forEach((row, at) => drawRow(c, one, lane, row, lane.y + at * lane.rowHeight, from, to));
  drawMarks(c, one);
  c.restore();
  drawTitles(c, one);
}

function drawTitles(c, one) {
  const { gutter } = one.place;
  c.textAlign = "left";
  c.fillStyle = colors.faint;
  c.font = (gutter ? "11" : "10") + "px system-ui, sans-serif";
  for (const lane of one.lanes) {
    const title = lane.title + (lane.leftOut ? " (" + lane.leftOut + " deeper not shown)" : "");
    c.fillText(title, gutter ? 8 : 4, gutter ? lane.y + (lane.rowHeight * lane.rows.length) / 2 : lane.y - TITLE / 2, gutter ? gutter - 14 : 380);
  }
  if (gutter && one.rounds.step.length) c.fillText("rounds", 8, AXIS + BAND / 2);
}

// A step of 1, 2 or 5 units that leaves room for the labels.
function tickStep(span, plot) {
  const least = (span / plot) * 96;
  const power = 10 ** Math.floor(Math.log10(least));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= least);
}

function drawAxis(c, one, from, to) {
  const step = Math.max(1, tickStep(to - from, one.place.plot));
  const [size, unit] = step >= 1e8 ? [1e9, "s"] : step >= 1e5 ? [1e6, "ms"] : [1e3, "us"];
  const places = Math.max(0, Math.ceil(-Math.log10(step / size) - 1e-9));
  c.textAlign = "left";
  for (let k = Math.ceil((from - one.offset) / step); k * step + one.offset <= to; k++) {
    const at = one.x(k * step + one.offset);
    c.fillStyle = colors.rule;
    c.fillRect(at, 0, 1, one.place.height);
    c.fillStyle = colors.faint;
    c.fillText((k * step / size).toFixed(places) + " " + unit, at + 4, AXIS / 2);
  }
}

function drawRounds(c, one, from, to) {
  const { step, begin, end, tokens } = one.rounds;
  const most = Math.max(1, ...tokens.map((own) => (own ? own[1] : 0)));
  c.textAlign = "left";
  for (let k = 0; k < step.length; k++) {
    if (end[k] < from || begin[k] > to) continue;
    const left = one.x(begin[k]), right = one.x(end[k]);
    if (k % 2) {
      c.globalAlpha = 0.35;
      c.fillStyle = colors.rule;
      c.fillRect(left, AXIS + BAND, right - left, one.place.height);
    }
    c.globalAlpha = tokens[k] ? 0.12 + 0.55 * (tokens[k][1] / most) : 0.08;
    c.fillStyle = colors.band;
    c.fillRect(left, AXIS, Math.max(0.5, right - left - 1), BAND - 2);
    c.globalAlpha = 1;
    const seen = Math.max(left, one.place.gutter), room = Math.min(right, one.place.width) - seen;
    c.fillStyle = colors.ink;
    for (const text of roundTexts(step[k], tokens[k])) {
      if (c.measureText(text).width < room - 8) {
        c.fillText(text, seen + 4, AXIS + BAND / 2 - 1);
        break;
      }
    }
    c.fillStyle = colors.faint;
    c.fillRect(left, AXIS, 1, right - left > 6 ? one.place.height : BAND - 2);
  }
}

function roundTexts(step, tokens) {
  if (!tokens) return ["round " + step, String(step)];
  const [accepted, emitted] = tokens;
  return [
    "round " + step + ": " + emitted + (emitted === 1 ? " token, " : " tokens, ") + accepted + " accepted of " + tokens[2] + " nodes",
    "round " + step + ": " + emitted + (emitted === 1 ? " token" : " tokens"), step + ": +" + emitted, "+" + emitted,
  ];
}

function colorOf(lane, row, i) {
  if (lane.kind === "idle") return colors[DATA.blame[row.cause[i]]];
  if (lane.kind === "call" && DATA.callKinds[row.kind[i]] === "sync") return colors.host;
  return DATA.colors[row.stage[i]];
}

function isHit(one, lane, row, i) {
  return state.hits !== null && row.name !== undefined && state.hits[one.index].has(row.name[i]);
}

function drawRow(c, one, lane, row, y, from, to) {
  const height = lane.rowHeight - 1;
  const base = lane.kind === "call" ? 0.6 : 1;
  let column = NaN, sums = null, marked = false;
  const flush = () => {
    if (sums === null) return;
    let best = null, all = 0;
    for (const [color, time] of sums) { all += time; if (best === null || time > sums.get(best)) best = color; }
    c.globalAlpha = (state.hits !== null && !marked ? 0.15 : 1) * base * Math.min(1, 0.3 + all);
    c.fillStyle = marked ? colors.mark : best;
    c.fillRect(column, y, 1, height);
    sums = null;
    marked = false;
  };
  for (let i = above(row.end, from); i < row.n && row.start[i] < to; i++) {
    const left = one.x(row.start[i]), width = row.dur[i] * one.scale;
    const hit = isHit(one, lane, row, i);
    if (width < 1) {
      if (Math.floor(left) !== column) { flush(); column = Math.floor(left); }
      sums = sums || new Map();
      const color = colorOf(lane, row, i);
      sums.set(color, (sums.get(color) || 0) + Math.max(width, 0.02));
      marked = marked || hit;
      continue;
    }
    flush();
    drawItem(c, one, lane, row, i, [Math.max(left, one.place.gutter - 2), y, left + width, height], hit);
  }
  flush();
  c.globalAlpha = 1;
}

function drawItem(c, one, lane, row, i, [left, y, right, height], hit) {
  const width = Math.min(right, one.place.width + 2) - left;
  const isQuiet = state.hits !== null && !hit;
  const color = colorOf(lane, row, i);
  c.globalAlpha = isQuiet ? 0.15 : lane.kind === "call" ? 0.6 : 1;
  c.fillStyle = color;
  c.fillRect(left, y, width > 3 ? width - 0.75 : width, height);
  if (lane.kind === "op" && DATA.kinds[row.kind[i]] === "copy" && width >= 2) {
    c.fillStyle = colors.ink;
    c.fillRect(left, y + height - 3, width > 3 ? width - 0.75 : width, 3);
  }
  if (hit) {
    c.globalAlpha = 1;
    c.strokeStyle = colors.mark;
    c.lineWidth = 2;
    c.strokeRect(left + 0.5, y + 0.5, Math.max(1, width - 1.5), height - 1);
  }
  if (width > 34 && height > 10) {
    const text = labelOf(one, lane, row, i);
    const room = Math.floor((width - 8) / 5.9);
    c.fillStyle = lane.kind === "idle" || lane.kind === "call" ? colors.ink : inks[row.stage[i]];
    c.globalAlpha = isQuiet ? 0.4 : 1;
    if (room > 3) c.fillText(text.length > room ? text.slice(0, room - 1) + "…" : text, left + 4, y + height / 2 + 0.5);
  }
}

// What fits on an item: of idle time who is to blame, the cause in full is in the tip.
function labelOf(one, lane, row, i) {
  if (lane.kind !== "idle") return lane.kind === "range" ? nameOf(one, lane, row, i) : shortName(nameOf(one, lane, row, i));
  const blame = DATA.blame[row.cause[i]];
  if (blame === "host") return row.stage[i] === NO_STAGE ? "host" : "host in " + DATA.stages[row.stage[i]];
  return { launch: "launched", device: "device", none: "" }[blame];
}

// --- above the items ---

function boxOf({ one, lane, row, i }) {
  const y = lane.y + lane.rows.indexOf(row) * lane.rowHeight;
  const left = one.x(row.start[i]);
  return { left, y, width: Math.max(1.5, row.dur[i] * one.scale), height: lane.rowHeight - 1 };
}

function drawMarks(c, one) {
  for (const [item, strength] of [[state.hover, 1], [state.selected, 2]]) {
    if (!item || item.one !== one) continue;
    const box = boxOf(item);
    c.strokeStyle = colors.ink;
    c.lineWidth = strength;
    c.strokeRect(box.left - 0.5, box.y - 0.5, box.width + 1, box.height + 1);
    drawArrow(c, item, strength);
  }
  if (state.measure && state.measure.one === one) {
    const { a, b } = state.measure;
    const [left, right] = [one.x(Math.min(a, b)), one.x(Math.max(a, b))];
    c.globalAlpha = 0.15;
    c.fillStyle = colors.band;
    c.fillRect(left, AXIS, right - left, one.place.height);
    c.globalAlpha = 1;
    c.fillStyle = colors.paper;
    const text = duration(Math.abs(b - a)), width = c.measureText(text).width + 10;
    const at = Math.min(Math.max(left + 2, one.place.gutter), one.place.width - width);
    c.fillRect(at, AXIS + 2, width, 16);
    c.fillStyle = colors.ink;
    c.fillText(text, at + 5, AXIS + 10.5);
  }
}

// From a launch to what it launched, whichever of the two is meant.
function drawArrow(c, item, strength) {
  const { one, lane, row, i } = item;
  let call = null, op = null;
  if (lane.kind === "op" && row.latency[i] >= 0) [call, op] = [callAt(one, row.start[i] - row.latency[i]), item];
  if (lane.kind === "call" && launchesOf(one).has(row.start[i])) [call, op] = [item, { one, ...launchesOf(one).get(row.start[i]) }];
  if (!call || !op) return;
  const tail = boxOf(call), head = boxOf(op);
  const [x0, y0, x1, y1] = [tail.left, tail.y + tail.height, head.left, head.y];
  c.strokeStyle = colors.ink;
  c.fillStyle = colors.ink;
  c.lineWidth = strength;
  c.beginPath();
  c.moveTo(x0, y0);
  c.bezierCurveTo(x0, y0 + (y1 - y0) * 0.6, x1, y0 + (y1 - y0) * 0.4, x1, y1);
  c.stroke();
  c.beginPath();
  c.moveTo(x1, y1);
  c.lineTo(x1 - 3.5, y1 - 7);
  c.lineTo(x1 + 3.5, y1 - 7);
  c.fill();
}

// --- the map: the whole window, and what of it is in view ---

function drawMap(canvas, one) {
  const width = canvas.clientWidth || 960, height = canvas.clientHeight || 30;
  const c = canvasContext(canvas, width, height);
  const key = [width, colors.paper, colors.ink].join();
  if (one.mapKey !== key) { one.mapKey = key; one.mapColumns = mapColumns(one, width); }
  c.fillStyle = colors.lane;
  c.fillRect(0, 0, width, height);
  one.mapColumns.forEach((own, at) => {
    let y = height;
    for (const [stage, share] of own) {
      const part = Math.max(2, share * height);
      c.fillStyle = DATA.colors[stage];
      c.fillRect(at, y - part, 1, part);
      y -= part;
    }
  });
  const scale = width / one.window;
  const left = Math.max(0, (view.from + one.offset) * scale), right = Math.min(width, (view.to + one.offset) * scale);
  c.fillStyle = colors.paper;
  c.globalAlpha = 0.65;
  c.fillRect(0, 0, left, height);
  c.fillRect(right, 0, width - right, height);
  c.globalAlpha = 1;
  c.strokeStyle = colors.ink;
  c.lineWidth = 1.5;
  c.strokeRect(left + 0.75, 0.75, Math.max(3, right - left - 1.5), height - 1.5);
}

// Of every pixel column the share of time in each stage; ops of several streams at once may fill it more than once.
function mapColumns(one, width) {
  const count = Math.max(1, Math.floor(width));
  const columns = Array.from({ length: count }, () => new Map());
  const size = one.window / count;
  for (const lane of one.lanes) {
    if (lane.kind !== "op") continue;
    for (const row of lane.rows) {
      for (let i = 0; i < row.n; i++) {
        const last = Math.min(count - 1, Math.floor(row.end[i] / size));
        for (let at = Math.max(0, Math.floor(row.start[i] / size)); at <= last; at++) {
          const part = Math.min(row.end[i], (at + 1) * size) - Math.max(row.start[i], at * size);
          if (part > 0) columns[at].set(row.stage[i], (columns[at].get(row.stage[i]) || 0) + part / size);
        }
      }
    }
  }
  return columns;
}
