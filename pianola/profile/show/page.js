'use strict';
// Makes the page of what page_json.cpp wrote. All of it is text: nothing from a profile is ever parsed as HTML.
const data = JSON.parse(document.getElementById('profile').textContent);

function fill(made, attributes = {}, ...children) {
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}
const html = (tag, ...rest) => fill(document.createElement(tag), ...rest);
const svg = (tag, ...rest) => fill(document.createElementNS('http://www.w3.org/2000/svg', tag), ...rest);

function button(text, label, act) {
  const made = html('button', {class: 'button', type: 'button'}, text);
  if (label) made.setAttribute('aria-label', label);
  made.addEventListener('click', act);
  return made;
}

// Numbers stay on one line with their units.
const unbroken = text => text.replace(/(\d) (%|[num]?s|[KMG]iB)(?![A-Za-z])/g, '$1\u00a0$2');
const note = text => html('p', {class: 'note'}, unbroken(text));
const folded = (summary, ...children) => html('details', {}, html('summary', {}, summary), ...children);
const section = (id, heading, ...children) =>
  html('section', {class: id, 'aria-labelledby': id}, html('h2', {id}, heading), ...children);

function cell(made, content) {
  if (typeof content === 'string') return fill(made, {}, content);
  const {mark, text = '', code, note, value, bar} = content;
  made.append(mark ? html('span', {class: 'key'}, html('i', {class: mark}), text) : text);
  if (code) made.append(mark ? ' ' : '', html('code', {}, code));
  if (note) made.append(html('span', {class: 'narrow'}, note));
  if (value !== undefined) made.dataset.v = value;
  if (bar !== undefined) {
    made.classList.add('share');
    made.append(html('i', {style: `transform:scaleX(${bar})`}));
  }
  return made;
}

function table({caption, heads, rows, foot = []}, of = '') {
  const styles = heads.map(head => ({'#': 'n', '~': 'wide muted'})[head[0]] || '');
  const line = row => html('tr', {class: row.class || ''}, ...row.cells.map(
    (content, i) => cell(i ? html('td', {class: styles[i]}) : html('th', {scope: 'row'}), content)));
  const titles = heads.map((head, i) => html('th', {scope: 'col', class: styles[i]}, head.replace(/^[#~]/, '')));
  return html('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': caption},
              html('table', {class: of}, html('caption', {}, caption), html('thead', {}, html('tr', {}, ...titles)),
                   html('tbody', {}, ...rows.map(line)), html('tfoot', {}, ...foot.map(line))));
}

function durationText(time) {
  if (time < 1000) return time ? `${Math.round(time)} ns` : '0 us';
  const [unit, size] = [['us', 1e3], ['ms', 1e6]].find(known => time / known[1] < 999.5) || ['s', 1e9];
  const value = time / size;
  return `${value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0)} ${unit}`;
}

// Timeline: the view is a stretch of the drawing, whose width is 100000 whatever time that is. Text in it would be stretched with
// it: labels and the axis are HTML over it.
const WIDTH = 100000;
const HEIGHTS = {ranges: 18, calls: 18, gaps: 14, work: 22};

function tickStep(rough) {
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
  const digit = rough / power;
  return power * (digit < 1.5 ? 1 : digit < 3.5 ? 2 : digit < 7.5 ? 5 : 10);
}

function tickText(time, step) {
  if (time === 0) return '0';
  const units = [['s', 1e9], ['ms', 1e6], ['us', 1e3], ['ns', 1]];
  const [name, size] = units.find(unit => time >= unit[1]) || units[3];
  const decimals = Math.max(0, Math.ceil(Math.log10(size / step)) + 1);
  return `${parseFloat((time / size).toFixed(decimals))} ${name}`;
}

// Of a merged mark as much of the colour as there is time covered in it, as when the events are drawn side by side.
function drawnMark([begin, time, colour, name, count, covered, longest], names, height, duration) {
  const made = svg('rect', {class: colour, x: begin * WIDTH / duration, width: Math.max(time * WIDTH / duration, 0.1), height});
  const from = durationText(begin);
  if (count) made.setAttribute('opacity', Math.min(1, Math.max(0.15, covered / time)).toFixed(2));
  made.append(svg('title', {}, count
    ? `${count} together, ${durationText(covered)} in ${durationText(time)} from ${from}\nlongest: ${names[name]}, ${durationText(longest)}`
    : `${names[name]}\n${durationText(time)} from ${from}`));
  return made;
}

function drawing({duration, names, rows}) {
  const lanes = [], groups = [], ranges = [];
  let top = 24, above = {};
  for (const row of rows) {
    const height = HEIGHTS[row.kind];
    if (above.kind) top += above.kind === row.kind ? 4 : 12;
    if (above.kind !== row.kind || above.label !== row.label) {  // else a deeper range
      lanes.push(html('span', {style: `top:${top}px;line-height:${height}px`}, row.label));
    }
    groups.push(svg('g', {class: 'row', transform: `translate(0 ${top})`},
                    ...row.marks.map(mark => drawnMark(mark, names, height, duration))));
    for (const [begin, time, , name, count] of row.kind === 'ranges' ? row.marks : []) {
      if (!count) ranges.push({from: begin * WIDTH / duration, to: (begin + time) * WIDTH / duration, top, name: names[name]});
    }
    top += height;
    above = row;
  }
  const height = top + 4;
  const label = `Timeline of ${durationText(duration)}: ranges, host calls, idle times and device work; the tables below hold the numbers`;
  const picture = svg('svg', {height, preserveAspectRatio: 'none', role: 'img', 'aria-label': label}, ...groups);
  const over = html('div', {class: 'over', 'aria-hidden': true});
  const plot = html('div', {class: 'plot', tabindex: 0, role: 'group',
                            'aria-label': 'Timeline; plus and minus zoom, the arrow keys move, 0 shows all'}, picture, over);
  const tracks = html('div', {class: 'tracks', style: `height:${height}px`}, html('div', {class: 'lanes', 'aria-hidden': true}, ...lanes), plot);
  return {tracks, plot, picture, over, ranges, height};
}

function timeline(shown) {
  const {duration} = shown.drawing;
  const {tracks, plot, picture, over, ranges, height} = drawing(shown.drawing);
  let from = 0, to = WIDTH, waiting = false;

  const percent = x => 100 * (x - from) / (to - from);
  const label = (of, x, text) => html('span', {class: of, style: `left:${percent(x)}%`}, text);
  const draw = () => {
    waiting = false;
    picture.setAttribute('viewBox', `${from} 0 ${to - from} ${height}`);
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

  const keys = {'+': () => zoom(0.5), '=': () => zoom(0.5), '-': () => zoom(2), '0': whole, Home: whole, Escape: whole,
                ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2)};
  plot.addEventListener('keydown', event => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
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
  const picked = html('div', {class: 'picked'});
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
  const readout = html('p', {class: 'readout note'}, 'Point at a mark for its name and times.');
  plot.addEventListener('pointerover', event => {
    if (event.target.tagName === 'rect') readout.textContent = event.target.textContent;
  });

  const tools = html('div', {class: 'tools'}, button('+', 'Zoom in', () => zoom(0.5)), button('\u2212', 'Zoom out', () => zoom(2)),
                     button('\u2190', 'Earlier', () => pan(-0.5)), button('\u2192', 'Later', () => pan(0.5)),
                     button('All', 'Show all', whole),
                     html('span', {}, 'Drag over a stretch to zoom in; Ctrl and wheel zoom; keys + \u2212 \u2190 \u2192 0.'));
  const legend = shown.legend.map(([title, items]) => html(
    'li', {}, `${title}:`, ...items.map(([colour, words]) => html('span', {}, html('i', {class: colour}), words))));
  const gaps = shown.gaps ? table(shown.gaps, 'gaps') : '';
  for (const [i, row] of shown.gaps ? [...gaps.querySelectorAll('tbody tr')].entries() : []) {
    const {shows: [begin, end], cells} = shown.gaps.rows[i];
    row.append(html('td', {class: 'n'}, button('Show', `Show the gap of ${cells[1]}`, () => {
      const around = 2 * (end - begin);
      show((begin - around) * WIDTH / duration, (end + around) * WIDTH / duration);
      plot.scrollIntoView({block: 'nearest'});
    })));
  }
  if (gaps) gaps.querySelector('thead tr').append(html('td'));
  window.addEventListener('resize', draw);
  return section('timeline', `Timeline of ${shown.heading}`, note(shown.note), tools,
                 html('figure', {}, tracks, html('figcaption', {}, html('ul', {class: 'legend'}, ...legend))), readout, gaps,
                 folded('Rows in numbers', table(shown.rows)));
}

function idle({label, bar, table: numbers}) {
  const parts = bar.map(({mark, share, title}) => html('span', {class: mark, style: `width:${100 * share}%`, title}));
  return section('idle', 'Where the idle time comes from',
                 html('figure', {}, html('div', {class: 'bar', role: 'img', 'aria-label': label}, ...parts)), table(numbers));
}

// Bin i is the i-th slot of the chart, from less than 1 us on; each is twice as long as the one before.
function durations({note: words, bins, bars, edges, table: numbers}) {
  const highest = Math.max(...bars.map(bar => bar.kernels));
  const rects = [], texts = [];
  for (const [us, text] of [[50, '50 us'], [1000, '1 ms']]) {
    const left = 100 * (1 + Math.log2(us)) / bins;
    texts.push(html('span', {class: left > 80 ? 'limit end' : 'limit', style: `left:${left}%`}, text));
  }
  for (const {bin, kernels, words, share} of bars) {
    const height = Math.max(86 * kernels / highest, 0.6);  // a line of a pixel, where there are any
    rects.push(svg('rect', {class: 'k', x: bin * 100 + 4, y: 100 - height, width: 92, height},
                   svg('title', {}, `${words}: ${kernels.toLocaleString('en')}`)));
    texts.push(html('span', {class: 'value', style: `left:${100 * (bin + 0.5) / bins}%;bottom:${height + 1}%`}, share));
  }
  edges.forEach((edge, i) => texts.push(
    html('span', {class: i % 2 ? 'edge odd' : 'edge', style: `left:${100 * (i + 1) / bins}%`}, edge)));
  const chart = svg('svg', {viewBox: `0 0 ${bins * 100} 100`, preserveAspectRatio: 'none', 'aria-hidden': true}, ...rects);
  const label = 'Histogram of kernel durations; the table below holds the numbers';
  return section('durations', 'How long kernels run', note(words),
                 html('figure', {}, html('div', {class: 'histogram', role: 'img', 'aria-label': label}, chart, ...texts)),
                 folded('Durations in numbers', table(numbers)));
}

function scopeChart({now, words, longest, rows}) {
  const percent = time => 100 * time / Math.max(1.04 * longest, 1);  // a little beyond what is longest
  const lines = rows.map(({what, state, times, value}) => {
    const chart = svg('svg', {viewBox: '0 0 100 36', preserveAspectRatio: 'none'});
    if (times) {
      const [low, expected, high] = times.map(percent);
      const d = `M${low} 18H${high}M${low} 12v12M${high} 12v12`;
      chart.append(svg('rect', {class: 'expected', y: 9, width: expected, height: 18}), svg('path', {class: 'halo', d}),
                   svg('path', {class: 'interval', d}));
    }
    return html('div', {class: `scope ${state}`}, html('span', {class: 'what'}, what),
                html('div', {class: 'track'}, chart, html('span', {class: 'now', style: `left:${percent(now)}%`})),
                html('span', {class: times ? 'value' : 'value muted'}, value));
  });
  const head = html('div', {class: 'scope head'}, html('span', {class: 'what'}),
                    html('div', {class: 'track'}, html('span', {style: `right:${100 - percent(now)}%`}, words)),
                    html('span', {class: 'value'}));
  const label = 'Predicted time of an iteration by scope; the table below holds the numbers';
  return html('figure', {}, html('div', {class: 'scopes', role: 'img', 'aria-label': label}, head, ...lines));
}

function code(language, text) {
  const shown = html('code', {}, text);
  const copy = button('Copy', '', async () => {
    let done = true;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      getSelection().selectAllChildren(shown);  // no clipboard, as in some local files
      done = document.execCommand('copy');
    }
    copy.textContent = done ? 'Copied' : 'Selected';
    setTimeout(() => { copy.textContent = 'Copy'; }, 2000);
  });
  copy.setAttribute('aria-live', 'polite');
  return html('div', {class: 'code'}, html('div', {}, html('span', {}, language), copy),
              html('pre', {tabindex: 0, 'aria-label': language}, shown));
}

function scopes({note: words, chart, table: numbers, memory, memory_note, calls}) {
  const call = (of, heading) => [html('h3', of.best ? {class: 'call'} : {}, heading), html('div', {class: 'columns'},
    ...['Python', 'C++'].filter(language => of[language]).map(language => code(language, of[language])))];
  const best = calls.filter(of => of.best).flatMap(of => call(of, `The call to write: ${of.scope}`));
  const others = calls.filter(of => !of.best).flatMap(of => call(of, of.scope));
  return section('what-to-graph', 'What to graph', note(words), scopeChart(chart), table(numbers), table(memory), note(memory_note),
                 ...best, others.length ? folded('Calls for the other scopes', ...others) : '');
}

// Sorted over both tables, of which the first stays as long as it is.
function sortable(tables) {
  const bodies = tables.map(made => made.querySelector('tbody'));
  const shown = bodies[0].rows.length;
  const heads = tables.map(made => [...made.querySelectorAll('thead th')]);
  const key = (row, column) => row.cells[column].dataset.v === undefined ? row.cells[column].textContent : Number(row.cells[column].dataset.v);
  const mark = (column, order) => heads.forEach(head => head.forEach((cell, i) => {
    if (i === column) cell.setAttribute('aria-sort', order);
    else cell.removeAttribute('aria-sort');
  }));
  const sort = column => {
    const rows = bodies.flatMap(body => [...body.rows]);
    const numbers = typeof key(rows[0], column) === 'number';
    const now = heads[0][column].getAttribute('aria-sort');
    const order = now ? (now === 'descending' ? 'ascending' : 'descending') : numbers ? 'descending' : 'ascending';
    const compare = (a, b) => numbers ? key(a, column) - key(b, column) : key(a, column).localeCompare(key(b, column));
    rows.sort((a, b) => order === 'descending' ? compare(b, a) : compare(a, b));
    rows.forEach((row, i) => bodies[i < shown ? 0 : 1].append(row));
    mark(column, order);
  };
  for (const head of heads) {
    head.forEach((cell, column) => {
      const made = button(cell.textContent, '', () => sort(column));
      made.className = '';
      cell.replaceChildren(made);
    });
  }
  mark(heads[0].length - 1, 'descending');
}

function regions(shown) {
  const [first, further] = shown.map(part => table(part));
  sortable(further ? [first, further] : [first]);
  return section('regions', 'Regions that waste most',
                 note('Idle is the time that the device waited for work issued inside the region. Regions lie inside each other, ' +
                      'so that the times do not add up.'),
                 first, further ? folded(`Further regions (${shown[1].rows.length})`, further) : '');
}

const waits = ({table: numbers, further}) => section(
  'waits', 'Waits for the device', table(numbers), further ? note(`Further calls with less idle time: ${further}.`) : '');

function reasons() {
  const list = (heading, of, sentences) => sentences.length ? [html('div', {}, html('h2', {}, heading), html(
    'ul', {class: `sentences ${of}`}, ...sentences.map(sentence => html('li', {}, unbroken(sentence)))))] : [];
  const lists = [...list('Reasons', '', data.reasons), ...list('In the way', 'hindering', data.obstacles)];
  return lists.length ? html('section', {class: 'columns', 'aria-label': 'Reasons and obstacles'}, ...lists) : '';
}

document.title = `${data.title} - Pianola profile`;
const part = (make, shown) => shown ? [make(shown)] : [];
document.querySelector('header').append(
  html('p', {class: 'title'}, data.title), html('p', {class: `mark ${data.verdict.style}`}, data.verdict.words),
  html('h1', {}, unbroken(data.verdict.headline)),
  html('dl', {class: 'tiles'}, ...data.tiles.map(([label, value, remark]) => html(
    'div', {}, html('dt', {}, label), html('dd', {}, value), html('dd', {}, remark)))));
document.querySelector('main').append(
  reasons(), ...part(timeline, data.timeline), ...part(idle, data.idle), ...part(durations, data.durations),
  ...part(scopes, data.scopes), ...part(regions, data.regions), ...part(waits, data.waits));
window.dispatchEvent(new Event('resize'));  // the timeline, whose width is known now
document.querySelector('footer').append(
  html('h2', {}, 'What was profiled'),
  html('dl', {class: 'facts'}, ...data.facts.flatMap(([name, value]) => [html('dt', {}, name), cell(html('dd'), value)])),
  html('p', {}, `Pianola ${data.version}`));
window.addEventListener('beforeprint', () => document.querySelectorAll('details').forEach(part => { part.open = true; }));
