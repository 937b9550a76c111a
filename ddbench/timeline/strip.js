"use strict";
// The data as it lies in the page -> cases, lanes and rows to look things up in. Times are nanoseconds.

const DATA = JSON.parse(document.getElementById("data").textContent);
const NO_STAGE = DATA.stages.length - 1;
const SHORTEST_VIEW = 20; // ns across the whole strip

function unpacked(value, n) {
  return Array.isArray(value) ? Float64Array.from(value) : new Float64Array(n).fill(value);
}

function rowOf(packed) {
  const row = { n: packed.n };
  for (const name of Object.keys(packed)) if (name !== "n") row[name] = unpacked(packed[name], packed.n);
  row.end = new Float64Array(packed.n);
  for (let i = 0, at = 0; i < packed.n; i++) {
    at = packed.start === undefined ? at : at + row.start[i];
    row.start[i] = at;
    row.end[i] = at + row.dur[i];
  }
  return row;
}

const shortNames = new Map();
function shortName(name) {
  let short = shortNames.get(name);
  if (short === undefined) {
    const plain = name.replace(/^void /, "").replace(/(<unnamed>|\(anonymous namespace\))::/g, "").replace(/_v\d+$/, "");
    const head = plain.split(/[<(]/, 1)[0];
    short = head.slice(head.lastIndexOf("::") + 1).replace(/^:/, "") || head || plain;
    shortNames.set(name, short);
  }
  return short;
}

const CASES = DATA.cases.map((data, index) => {
  const lanes = data.lanes.map((lane) => ({ ...lane, rows: lane.rows.map(rowOf) }));
  const ends = lanes.flatMap((lane) => lane.rows.map((row) => (row.n ? row.end[row.n - 1] : 0)));
  return { ...data, index, lanes, offset: 0, window: Math.max(data.window, 1, ...ends) };
});
const LONGEST = Math.max(...CASES.map((one) => one.window));
const view = { from: -0.01 * LONGEST, to: 1.01 * LONGEST }; // relative to each case's offset
const state = { hover: null, selected: null, needle: "", hits: null, measure: null, round: -1, printing: false };

// First i with values[i] > limit, of values in order.
function above(values, limit) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] > limit) high = middle; else low = middle + 1;
  }
  return low;
}

// What a launch led to: start of the call -> first op and how many.
function launchesOf(one) {
  if (one.launches) return one.launches;
  one.launches = new Map();
  for (const lane of one.lanes) {
    if (lane.kind !== "op") continue;
    for (const row of lane.rows) {
      for (let i = 0; i < row.n; i++) {
        if (row.latency[i] < 0) continue;
        const launch = row.start[i] - row.latency[i];
        const known = one.launches.get(launch);
        if (!known) one.launches.set(launch, { lane, row, i, count: 1 });
        else {
          known.count += 1;
          if (row.start[i] < known.row.start[known.i]) Object.assign(known, { lane, row, i });
        }
      }
    }
  }
  return one.launches;
}

// The call that starts at that moment; of several the innermost.
function callAt(one, launch) {
  let found = null;
  for (const lane of one.lanes) {
    if (lane.kind !== "call") continue;
    for (const row of lane.rows) {
      const i = above(row.start, launch) - 1;
      if (i >= 0 && row.start[i] === launch) found = { one, lane, row, i };
    }
  }
  return found;
}

function roundAt(one, step) {
  const place = one.rounds.step.indexOf(step);
  return place < 0 ? null : { place, tokens: one.rounds.tokens[place] };
}

function nameOf(one, lane, row, i) {
  if (lane.kind === "idle") return DATA.causes[row.cause[i]];
  if (lane.kind === "range") return DATA.stages[row.stage[i]];
  return one.names[row.name[i]];
}

// --- text ---

function digits(value) {
  if (value === 0) return "0";
  return value.toFixed(Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value)))));
}

function duration(ns) {
  const size = Math.abs(ns);
  if (size >= 1e9) return digits(ns / 1e9) + " s";
  if (size >= 1e6) return digits(ns / 1e6) + " ms";
  if (size >= 1e3) return digits(ns / 1e3) + " us";
  return Math.round(ns) + " ns";
}

function bytes(count) {
  for (const [size, unit] of [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) if (count >= size) return digits(count / size) + " " + unit;
  return count + " B";
}

function exact(ns) {
  return (ns / 1e3).toFixed(3) + " us";
}

// All that is known of one item, line by line.
function described({ one, lane, row, i }) {
  const lines = [nameOf(one, lane, row, i)];
  const where = [lane.title];
  if (lane.kind === "idle") {
    if (row.stage[i] !== NO_STAGE) where.push("host in " + DATA.stages[row.stage[i]]);
    where.push(row.next[i] === NO_STAGE ? "" : "before " + DATA.stages[row.next[i]]);
  } else {
    where.push(DATA.stages[row.stage[i]]);
    const round = roundAt(one, row.round[i]);
    if (row.round[i] >= 0) where.push("round " + row.round[i]);
    if (round && round.tokens) where.push(round.tokens[1] + (round.tokens[1] === 1 ? " token, " : " tokens, ") + round.tokens[0] + " accepted");
  }
  lines.push(where.filter(Boolean).join(" · "));
  lines.push("at " + exact(row.start[i]) + ", takes " + duration(row.dur[i]) + (row.dur[i] >= 1e3 ? " (" + row.dur[i] + " ns)" : ""));
  if (lane.kind === "op") lines.push(...describedOp(row, i));
  if (lane.kind === "call") {
    const led = launchesOf(one).get(row.start[i]);
    lines.push(DATA.callKinds[row.kind[i]].replace("_", " ") + (led ? ": " + led.count + (led.count > 1 ? " ops" : " op") + ", the first after " + duration(led.row.start[led.i] - row.start[i]) : ""));
  }
  return lines;
}

function describedOp(row, i) {
  const kind = DATA.kinds[row.kind[i]];
  const facts = [kind + (row.replayed[i] ? " of a graph replay" : "")];
  if (kind === "copy" || kind === "memset") {
    facts.push(bytes(row.bytes[i]) + (row.dur[i] > 0 ? " at " + bytes(row.bytes[i] / row.dur[i] * 1e9) + "/s" : ""));
  }
  const lines = [facts.join(", ")];
  if (row.latency[i] >= 0) lines.push("started " + duration(row.latency[i]) + " after " + (row.replayed[i] ? "its graph was launched" : "its launch"));
  else if (kind !== "operator") lines.push("launch not recorded");
  return lines;
}
