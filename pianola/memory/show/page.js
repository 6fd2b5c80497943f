"use strict";
const picture = JSON.parse(document.getElementById("picture").textContent);
const blocks = picture.blocks.map(([made, freed, offset, bytes, owner, madeIn, freedIn]) =>
  ({made, freed, offset, bytes, owner, madeIn, freedIn}));
const find = (selector) => document.querySelector(selector);

function inWords(bytes) {
  const units = ["bytes", "KiB", "MiB", "GiB"];
  let unit = 0;
  for (; bytes >= 1024 && unit < 3; ++unit) bytes /= 1024;
  return (unit === 0 ? bytes : bytes.toFixed(bytes < 10 ? 2 : 1)) + "\u00a0" + units[unit];
}

// Bytes in use behind each event.
const used = new Float64Array(picture.end + 1);
for (const block of blocks) {
  used[block.made] += block.bytes;
  if (block.freed < picture.end) used[block.freed] -= block.bytes;
}
let peak = 0;
for (let i = 1; i <= picture.end; ++i) {
  used[i] += used[i - 1];
  if (used[i] > used[peak]) peak = i;
}

// Owners at the peak, the largest first: the first eight have colours of their own.
const atPeak = new Map();
for (const block of blocks) {
  if (block.made > peak || block.freed <= peak) continue;
  const one = atPeak.get(block.owner) || {owner: block.owner, bytes: 0, blocks: 0};
  one.bytes += block.bytes;
  one.blocks += 1;
  atPeak.set(block.owner, one);
}
const owners = [...atPeak.values()].sort((a, b) => b.bytes - a.bytes);
const rank = new Map(owners.slice(0, 8).map((one, i) => [one.owner, i]));
const colourOf = (owner) => rank.has(owner) ? "--c" + rank.get(owner) : "--rest";

find("h1").textContent = picture.title;
document.title = picture.title;
const isPool = picture.segments.length !== 0;
find("h2.blocks").textContent = isPool ? "Blocks, where they lie in the pool" : "Blocks, where a plan puts them";
find(".segments").hidden = !isPool;
const timesBound = (bytes) => picture.bound ? (bytes / picture.bound).toFixed(2) + " times that" : "";
for (const [name, value, note] of [
  ["in use at most", inWords(picture.bound), "no pool can be smaller"],
  ...(isPool ? [["pool", inWords(picture.pool), timesBound(picture.pool)],
                ["segments", String(picture.segments.length), "that torch's allocator asked the driver for"]]
             : [["pool, planned", inWords(picture.bytes), timesBound(picture.bytes)],
                ["pool, as torch's allocator would", inWords(picture.pool), timesBound(picture.pool)]]),
  ["blocks", String(blocks.length), inWords(blocks.reduce((sum, block) => sum + block.bytes, 0)) + " handed out in all"],
]) {
  const tile = document.createElement("div");
  for (const [tag, text] of [["dt", name], ["dd", value], ["dd", note]]) {
    const line = document.createElement(tag);
    line.textContent = text;
    tile.append(line);
  }
  find(".tiles").append(tile);
}
for (const one of owners) {
  const row = document.createElement("tr");
  for (const [text, kind] of [[picture.owners[one.owner], ""], [String(one.blocks), "number"], [inWords(one.bytes), "number"]]) {
    const cell = document.createElement("td");
    cell.textContent = text;
    cell.className = kind;
    row.append(cell);
  }
  const bar = document.createElement("td"), mark = document.createElement("i");
  bar.className = "bar";
  bar.style.setProperty("--c", "var(" + colourOf(one.owner) + ")");
  mark.style.setProperty("--w", (100 * one.bytes / owners[0].bytes) + "%");
  bar.append(mark);
  row.append(bar);
  find("tbody").append(row);
}

const canvas = find("canvas");
const words = find(".words");
let chosen = null, kept = false;

const toX = (event) => event / picture.end * canvas.clientWidth;
const toY = (bytes) => canvas.clientHeight * (1 - bytes / Math.max(picture.bytes, 1));

function draw() {
  const scale = window.devicePixelRatio || 1;
  canvas.width = canvas.clientWidth * scale;
  canvas.height = canvas.clientHeight * scale;
  const pen = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  pen.scale(scale, scale);
  for (const block of blocks) {
    const x = toX(block.made), y = toY(block.offset + block.bytes);
    const width = Math.max(toX(block.freed) - x, 1), height = Math.max(toY(block.offset) - y, 1);
    pen.fillStyle = colour(colourOf(block.owner));
    pen.globalAlpha = chosen === null || chosen === block ? 1 : 0.45;
    pen.fillRect(x, y, width, height);
    if (height < 4 || width < 4) continue;
    pen.strokeStyle = colour("--page");
    pen.strokeRect(x, y, width, height);
  }
  pen.globalAlpha = 1;
  pen.strokeStyle = colour("--line");
  pen.lineWidth = 1;
  for (const begin of picture.segments.slice(1)) {
    pen.beginPath();
    pen.moveTo(0, toY(begin));
    pen.lineTo(canvas.clientWidth, toY(begin));
    pen.stroke();
  }
  pen.strokeStyle = colour("--used");
  pen.lineWidth = 1.5;
  pen.beginPath();
  for (let i = 0; i < picture.end; ++i) {
    pen.lineTo(toX(i), toY(used[i]));
    pen.lineTo(toX(i + 1), toY(used[i]));
  }
  pen.stroke();
}

const operation = (number) => number < 0 ? "no operation" : "operation " + number;

function say(block) {
  chosen = block;
  const end = block && (block.freed < picture.end ? "freed in " + operation(block.freedIn) : "in use when the step is over");
  words.textContent = block === null ? "\u00a0" : inWords(block.bytes) + " at " + inWords(block.offset) + ", made in " +
    operation(block.madeIn) + ", " + end + ": " + picture.owners[block.owner];
  draw();
}

function blockAt(event) {
  const at = event.offsetX / canvas.clientWidth * picture.end;
  const byte = (1 - event.offsetY / canvas.clientHeight) * picture.bytes;
  return blocks.find((one) => one.made <= at && at < one.freed && one.offset <= byte && byte < one.offset + one.bytes) || null;
}

canvas.addEventListener("mousemove", (event) => { if (!kept) say(blockAt(event)); });
canvas.addEventListener("mouseleave", () => { if (!kept) say(null); });
canvas.addEventListener("click", (event) => { const block = blockAt(event); kept = block !== null; say(block); });
canvas.addEventListener("keydown", (event) => {
  const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
  if (!step || blocks.length === 0) return;
  kept = true;
  say(blocks[(blocks.indexOf(chosen) + step + blocks.length) % blocks.length]);
  event.preventDefault();
});
canvas.setAttribute("aria-label", blocks.length + " blocks of memory over the step, " + inWords(picture.bound) + " in use at most");
window.addEventListener("resize", draw);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
draw();
