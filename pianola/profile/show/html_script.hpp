#pragma once
#include <string_view>

namespace pianola::profiling {

/// What the page does on top of what it shows without a script: zoom, sort, copy, and open all for print.
inline constexpr std::string_view kScript = R"js(
'use strict';
document.documentElement.classList.add('js');
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const element = (tag, className, text) => {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
};
const button = (text, label, act) => {
  const made = element('button', 'button', text);
  made.type = 'button';
  if (label) made.setAttribute('aria-label', label);
  made.addEventListener('click', act);
  return made;
};

// Timeline: the view is a stretch of the drawing, whose width is 100000 whatever time that is.
const WIDTH = 100000;
const UNITS = [['s', 1e9], ['ms', 1e6], ['us', 1e3], ['ns', 1]];

function tickStep(rough) {
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
  const digit = rough / power;
  return power * (digit < 1.5 ? 1 : digit < 3.5 ? 2 : digit < 7.5 ? 5 : 10);
}

function tickText(time, step) {
  if (time === 0) return '0';
  const [name, size] = UNITS.find(unit => time >= unit[1]) || UNITS[3];
  const decimals = Math.max(0, Math.ceil(Math.log10(size / step)) + 1);
  return `${parseFloat((time / size).toFixed(decimals))} ${name}`;
}

function timeline(section) {
  const plot = section.querySelector('.plot');
  const svg = plot.querySelector('svg');
  const over = plot.querySelector('.over');
  const readout = section.querySelector('.readout');
  const height = svg.viewBox.baseVal.height;
  const duration = Number(plot.dataset.ns);
  const ranges = all('.r', svg).map(rect => ({
    from: Number(rect.getAttribute('x')),
    to: Number(rect.getAttribute('x')) + Number(rect.getAttribute('width')),
    top: rect.parentNode.transform.baseVal[0].matrix.f,
    name: rect.textContent.split('\n')[0],
  }));
  let from = 0, to = WIDTH, waiting = false;

  const percent = x => 100 * (x - from) / (to - from);
  const label = (className, x, text) => {
    const made = element('span', className, text);
    made.style.left = `${percent(x)}%`;
    return made;
  };
  const draw = () => {
    waiting = false;
    svg.setAttribute('viewBox', `${from} 0 ${to - from} ${height}`);
    const made = [];
    const perNs = WIDTH / duration;
    const step = tickStep((to - from) / perNs / Math.max(2, plot.clientWidth / 120));
    for (let time = Math.ceil(from / perNs / step) * step; time * perNs < to; time += step) {
      const room = (to - time * perNs) / (to - from) * plot.clientWidth;
      made.push(label('tick', time * perNs, room > 44 ? tickText(time, step) : ''));
    }
    for (const range of ranges) {
      const begin = Math.max(from, range.from), end = Math.min(to, range.to);
      if ((end - begin) / (to - from) * plot.clientWidth < 48) continue;
      const name = label('name', begin, range.name);
      name.style.width = `${percent(end) - percent(begin)}%`;
      name.style.top = `${range.top}px`;
      made.push(name);
    }
    over.replaceChildren(...made);
  };
  const show = (begin, end) => {
    const width = Math.min(WIDTH, Math.max(end - begin, Math.max(WIDTH / 20000, 100 * WIDTH / duration)));
    from = Math.max(0, Math.min(WIDTH - width, (begin + end - width) / 2));
    to = from + width;
    if (!waiting) requestAnimationFrame(draw);
    waiting = true;
  };
  const zoom = (factor, at = (from + to) / 2) => show(at - (at - from) * factor, at + (to - at) * factor);
  const pan = part => show(from + part * (to - from), to + part * (to - from));
  const whole = () => show(0, WIDTH);
  const at = event => {
    const box = plot.getBoundingClientRect();
    return from + (event.clientX - box.left) / box.width * (to - from);
  };

  const tools = section.querySelector('.tools');
  tools.append(button('+', 'Zoom in', () => zoom(0.5)), button('\u2212', 'Zoom out', () => zoom(2)),
               button('\u2190', 'Earlier', () => pan(-0.5)), button('\u2192', 'Later', () => pan(0.5)),
               button('All', 'Show all', whole),
               element('span', '',
                       'Drag over a stretch to zoom in; Ctrl and wheel zoom; keys + \u2212 \u2190 \u2192 0.'));
  plot.tabIndex = 0;
  plot.setAttribute('role', 'group');
  plot.setAttribute('aria-label', 'Timeline; plus and minus zoom, the arrow keys move, 0 shows all');
  readout.hidden = false;
  plot.addEventListener('keydown', event => {
    const acts = {'+': () => zoom(0.5), '=': () => zoom(0.5), '-': () => zoom(2), '0': whole, Home: whole,
                  Escape: whole, ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2)};
    if (!acts[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    acts[event.key]();
  });
  plot.addEventListener('wheel', event => {
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    const wanted = event.ctrlKey || event.metaKey || document.activeElement === plot || sideways;
    if (!wanted || (to - from === WIDTH && (sideways || event.deltaY > 0))) return;  // the page scrolls
    event.preventDefault();
    if (sideways) pan(event.deltaX / plot.clientWidth);
    else zoom(Math.exp(event.deltaY * 0.002), at(event));
  }, {passive: false});
  plot.addEventListener('dblclick', whole);

  let begun = null;
  const picked = element('div', 'picked');
  plot.addEventListener('pointerdown', event => {
    if (event.button === 0) begun = {x: event.clientX, at: at(event), from, to};
  });
  plot.addEventListener('pointermove', event => {
    if (begun === null || Math.abs(event.clientX - begun.x) < 4) return;
    plot.setPointerCapture(event.pointerId);
    if (event.pointerType === 'touch') {
      const moved = (begun.x - event.clientX) / plot.clientWidth * (begun.to - begun.from);
      show(begun.from + moved, begun.to + moved);
      return;
    }
    const ends = [percent(begun.at), percent(at(event))].sort((a, b) => a - b);
    picked.style.left = `${ends[0]}%`;
    picked.style.width = `${ends[1] - ends[0]}%`;
    plot.append(picked);
  });
  const finish = event => {
    if (begun !== null && picked.isConnected && event.type === 'pointerup') {
      show(Math.min(begun.at, at(event)), Math.max(begun.at, at(event)));
    }
    begun = null;
    picked.remove();
  };
  plot.addEventListener('pointerup', finish);
  plot.addEventListener('pointercancel', finish);
  plot.addEventListener('pointerover', event => {
    if (event.target.tagName === 'rect') readout.textContent = event.target.textContent;
  });

  for (const row of all('.gaps tbody tr', section)) {
    const begin = Number(row.dataset.from), end = Number(row.dataset.to);
    const cell = element('td', 'n');
    cell.append(button('Show', `Show the gap of ${row.cells[1].textContent}`, () => {
      const around = 2 * (end - begin);
      show(begin - around, end + around);
      plot.scrollIntoView({block: 'nearest'});
    }));
    row.append(cell);
  }
  const last = section.querySelector('.gaps thead tr');
  if (last) last.append(element('td'));
  window.addEventListener('resize', draw);
  draw();
}
all('section.timeline').forEach(timeline);

// Regions: sorted over both tables, of which the first stays as long as it is.
function sortable(section) {
  const bodies = all('tbody', section);
  const shown = bodies[0].rows.length;
  const heads = all('thead', section);
  const sort = (column, order) => {
    const rows = bodies.flatMap(body => [...body.rows]);
    const key = row => row.cells[column].dataset.v === undefined ? row.cells[column].textContent
                                                                 : Number(row.cells[column].dataset.v);
    const sign = order === 'descending' ? -1 : 1;
    rows.sort((a, b) => sign * (typeof key(a) === 'number' ? key(a) - key(b) : key(a).localeCompare(key(b))));
    rows.forEach((row, i) => bodies[i < shown ? 0 : 1].append(row));
    for (const head of heads) {
      [...head.rows[0].cells].forEach((cell, i) => {
        if (i === column) cell.setAttribute('aria-sort', order);
        else cell.removeAttribute('aria-sort');
      });
    }
  };
  for (const head of heads) {
    [...head.rows[0].cells].forEach((cell, column) => {
      const text = cell.textContent;
      cell.textContent = '';
      const made = button(text, '', () => {
        const first = bodies[0].rows[0].cells[column].dataset.v === undefined ? 'ascending' : 'descending';
        const now = cell.getAttribute('aria-sort');
        sort(column, now === null ? first : now === 'descending' ? 'ascending' : 'descending');
      });
      made.className = '';
      cell.append(made);
    });
  }
}
all('section.regions').forEach(sortable);

// Code to copy.
for (const block of all('.code')) {
  const code = block.querySelector('code');
  const copy = button('Copy', '', async () => {
    let done = true;
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      getSelection().selectAllChildren(code);  // no clipboard, as in some local files
      done = document.execCommand('copy');
    }
    copy.textContent = done ? 'Copied' : 'Selected';
    setTimeout(() => { copy.textContent = 'Copy'; }, 2000);
  });
  copy.setAttribute('aria-live', 'polite');
  block.firstElementChild.append(copy);
}

window.addEventListener('beforeprint', () => all('details').forEach(part => { part.open = true; }));
)js";

}  // namespace pianola::profiling
