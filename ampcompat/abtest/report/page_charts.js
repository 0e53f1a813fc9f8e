// Draws every chart in the colours of the page, and again when these or the width change. All charts share one legend,
// one crosshair and the zoom of their steps: signals of the Vega views, which are set here.
const dark = window.matchMedia('(prefers-color-scheme: dark)');
const touch = window.matchMedia('(pointer: coarse)');  // there a finger on a chart scrolls the page

// The rows of a chart, which the page holds by line and field.
function unpacked(lines) {
  return lines.flatMap(({fields, along}) => {
    const names = Object.keys(along), count = names.length ? along[names[0]].length : 1;
    return Array.from({length: count}, (_, at) => names.reduce((row, name) => ({...row, [name]: along[name][at]}), fields));
  });
}

const boxes = [...document.querySelectorAll('.chart')].map(box => {
  const spec = JSON.parse(box.querySelector('script').textContent), byLine = {};
  spec.data.values = unpacked(spec.usermeta.lines);
  delete spec.usermeta;
  const named = name => (spec.params || []).some(each => each.name === name);
  const lines = (spec.layer || []).find(each => each.mark && each.mark.type === 'line');
  for (const row of lines ? spec.data.values : []) {
    const key = [row.run, row.seed || 1, row.smoothed || ''].join('\n');  // seeds are numbered from 1
    (byLine[key] = byLine[key] || []).push(row);
  }
  for (const rows of Object.values(byLine)) rows.sort((one, other) => one.step - other.step);
  const value = lines && (spec.data.values[0].scale === undefined ? 'value' : 'scale');
  return {box, spec, byLine, value, isLine: Boolean(lines), isSmoothed: named('smoothing'), views: []};
});
// What was chosen is kept while the page of `ab --live` is loaded again.
const isServed = location.protocol === 'http:', kept = JSON.parse(isServed && sessionStorage.getItem('chosen') || '{}');
const hidden = new Set(kept.hidden || []), zoom = kept.zoom || {}, menus = kept.menus || {};
let apart = Boolean(kept.apart);

function keep() {
  if (isServed) sessionStorage.setItem('chosen', JSON.stringify({hidden: [...hidden], zoom, menus, apart}));
}

function signal(one, name, value) {
  for (const view of one.views) view.signal(name, value).runAsync();
}

// -- drawing --

function specOf(one, width, height, only) {
  const spec = JSON.parse(JSON.stringify(one.spec));
  spec.config = CONFIGS[dark.matches ? 1 : 0];
  spec.width = width;
  spec.autosize = {type: 'fit-x', contains: 'padding'};
  spec.height = height;
  if (only) {
    const lines = spec.layer.find(each => each.mark.type === 'line');
    spec.title = {text: only, fontSize: 12};
    lines.encoding.strokeWidth = {value: 1.5};
    lines.encoding.y.axis = {...lines.encoding.y.axis, title: null, tickCount: 3};
    lines.encoding.x.title = null;
    spec.transform.push({filter: {field: 'run', equal: only}});
    for (const each of spec.params) delete each.bind;
  }
  return spec;
}

async function embed(one, target, spec, isPanel) {
  const options = {actions: isPanel ? false : {export: true, source: false, compiled: false, editor: false}};
  options.tooltip = {theme: dark.matches ? 'dark' : 'light'};
  const {view} = await vegaEmbed(target, spec, options);
  view.signal('hidden', [...hidden]);
  for (const name of ['x_low', 'x_high']) if (one.isLine && zoom[name] !== undefined) view.signal(name, zoom[name]);
  await view.runAsync();
  one.views.push(view);
  if (one.isLine) watch(one, view, target);
  return view;
}

async function draw() {
  for (const one of boxes) {
    for (const view of one.views) view.finalize();
    const whole = one.box.querySelector('.drawn'), panels = one.box.querySelector('.panels');
    one.views = [];
    panels.replaceChildren();
    const spec = specOf(one, whole.clientWidth, 220), chosen = menus[one.box.id] || (menus[one.box.id] = {});
    for (const each of spec.params) if (each.name in chosen) each.value = chosen[each.name];
    const view = await embed(one, whole, spec);
    for (const {name} of spec.params.filter(each => each.bind)) {
      view.addSignalListener(name, (_, value) => { chosen[name] = value; keep(); });
    }
    const runs = RUNS.filter(each => !hidden.has(each.run) && one.spec.data.values.some(row => row.run === each.run));
    if (!apart || !one.isLine || runs.length < 2) continue;
    const ends = view.scale('y').domain();
    const names = one.isSmoothed ? ['smoothing', 'log'] : [];
    for (const {run} of runs) {
      const panel = panels.appendChild(document.createElement('div'));
      const spec = specOf(one, whole.clientWidth, 90, run);
      const inner = await embed(one, panel, spec, true);
      inner.signal('y_low', ends[0]).signal('y_high', ends[1]).runAsync();
      for (const name of names.filter(each => spec.params.some(param => param.name === each))) {
        view.addSignalListener(name, (_, value) => inner.signal(name, value).runAsync());
      }
    }
  }
}

// -- crosshair and zoom --

const reading = document.body.appendChild(document.createElement('div'));
reading.id = 'reading';
reading.hidden = true;

function place(view, event) {
  const frame = view.container().querySelector('.marks').getBoundingClientRect();
  const [left, top] = view.origin(), padding = view.padding();
  return [event.clientX - frame.left - left - padding.left, event.clientY - frame.top - top - padding.top];
}

function cross(step) {
  for (const one of boxes.filter(each => each.isLine)) {
    for (const view of one.views) {
      const x = step === null ? null : view.scale('x')(step);
      view.signal('crossed', x !== null && x >= 0 && x <= view.width() ? x : null).runAsync();
    }
  }
}

// The row of a line at a step: the last one for a loss scale, which holds until it changes, else the nearest one.
function rowAt(rows, step, holds) {
  const at = rows.findIndex(row => row.step > step), before = rows[at < 0 ? rows.length - 1 : at - 1];
  if (at < 0) return rows.length && step > rows[rows.length - 1].step + 1e-9 && !holds ? null : before;
  if (holds || !before) return holds ? before : rows[at].step - step < 1 ? rows[at] : null;
  return step - before.step <= rows[at].step - step ? before : rows[at];
}

function shown(value) {
  if (value === null || value === undefined) return 'not finite';
  return Math.abs(value) >= 1e-3 && Math.abs(value) < 1e7 || value === 0
    ? Number(value.toPrecision(4)).toLocaleString('en', {maximumSignificantDigits: 6}) : value.toExponential(2);
}

function read(one, view, step, event) {
  const smoothing = one.isSmoothed ? one.views[0].signal('smoothing') : '';
  const format = one.box.id === 'chart-difference' ? each => shown(100 * each) + ' %' : shown;
  reading.replaceChildren();
  reading.appendChild(document.createElement('b')).textContent = 'step ' + step + (smoothing && smoothing !== 'none' ? ', ' + smoothing + ' smoothing' : '');
  for (const {run, colour, seeds} of RUNS) {
    for (let seed = 1; seed <= seeds; ++seed) {
      const rows = one.byLine[[run, seed, smoothing].join('\n')];
      if (!rows || hidden.has(run) || hidden.has(run + ' / ' + seed)) continue;
      const row = rowAt(rows, step, one.value === 'scale'), line = reading.appendChild(document.createElement('div'));
      const several = seeds > 1 && one.byLine[[run, 2, smoothing].join('\n')];
      line.appendChild(document.createElement('i')).style.background = colour;
      line.appendChild(document.createElement('span')).textContent = run + (several ? ', seed ' + seed : '');
      const text = row ? (row[one.value] === null ? 'not finite' : format(row[one.value])) : 'ended';
      line.appendChild(document.createElement('span')).textContent = text + (row && row.skipped && row.step === step ? ', skipped' : '');
    }
  }
  reading.hidden = false;
  const left = event.clientX + 16 + reading.offsetWidth < window.innerWidth
    ? event.clientX + 16 : Math.max(4, event.clientX - 16 - reading.offsetWidth);
  const top = Math.min(event.clientY + 16, window.innerHeight - reading.offsetHeight - 4);
  Object.assign(reading.style, {left: left + 'px', top: Math.max(4, top) + 'px'});
}

function leave() {
  reading.hidden = true;
  cross(null);
}

function zoomTo(one, ends) {
  for (const name of ['x_low', 'x_high']) {
    zoom[name] = ends[name];
    for (const each of boxes.filter(other => other.isLine)) signal(each, name, ends[name] === undefined ? null : ends[name]);
  }
  for (const each of ends.y_low === undefined ? boxes.filter(other => other.isLine) : [one]) {
    if (ends.y_low === undefined && ends.x_low !== undefined) break;
    for (const name of ['y_low', 'y_high']) signal(each, name, ends[name] === undefined ? null : ends[name]);
  }
  document.querySelector('#unzoom').hidden = ends.x_low === undefined;
  keep();
}

function watch(one, view, target) {
  const surface = view.container().querySelector('.marks');
  const frame = target.appendChild(document.createElement('div'));
  let from = null;
  frame.className = 'frame';
  frame.hidden = true;
  const follow = event => {
    const [x, y] = place(view, event);
    if (from) {
      const around = target.getBoundingClientRect();
      Object.assign(frame.style, {
        left: Math.min(event.clientX, from.clientX) - around.left + target.scrollLeft + 'px',
        top: Math.min(event.clientY, from.clientY) - around.top + 'px',
        width: Math.abs(event.clientX - from.clientX) + 'px', height: Math.abs(event.clientY - from.clientY) + 'px',
      });
      frame.hidden = false;
      return leave();
    }
    if (x < 0 || x > view.width() || y < 0 || y > view.height()) return leave();
    const step = Math.round(view.scale('x').invert(x));
    cross(step);
    read(one, view, step, event);
  };
  surface.addEventListener('pointermove', follow);
  surface.addEventListener('click', event => { if (event.pointerType === 'touch') follow(event); });
  surface.addEventListener('pointerleave', event => { if (!from && event.pointerType !== 'touch') leave(); });
  surface.addEventListener('pointerdown', event => {
    if (event.pointerType === 'touch' || event.button !== 0) return;
    from = event;
    surface.setPointerCapture(event.pointerId);
    event.preventDefault();
  });
  surface.addEventListener('pointerup', event => {
    if (!from) return;
    const [[x, y], [x0, y0]] = [place(view, event), place(view, from)], ends = {};
    from = null;
    frame.hidden = true;
    if (Math.abs(x - x0) < 6) return;
    const clip = (value, most) => Math.max(0, Math.min(value, most));
    const steps = [x, x0].map(each => view.scale('x').invert(clip(each, view.width()))).sort((a, b) => a - b);
    [ends.x_low, ends.x_high] = steps;
    if (Math.abs(y - y0) > 30) {
      const values = [y, y0].map(each => view.scale('y').invert(clip(each, view.height()))).sort((a, b) => a - b);
      [ends.y_low, ends.y_high] = values;
    }
    zoomTo(one, ends);
  });
  surface.addEventListener('dblclick', () => zoomTo(one, {}));
}

// -- the legend --

function chip(text, key, colour) {
  const button = document.createElement('button');
  button.className = 'chip';
  button.setAttribute('aria-pressed', String(!hidden.has(key)));
  if (colour) {
    const line = button.appendChild(document.createElement('i'));
    line.style.borderTop = '4px solid ' + colour;
  }
  button.append(text);
  button.onclick = event => {
    if (event.shiftKey) {
      const alone = RUNS.every(({run}) => hidden.has(run) === (run !== key.split(' / ')[0]));
      hidden.clear();
      for (const {run} of alone ? [] : RUNS) if (run !== key.split(' / ')[0]) hidden.add(run);
    } else if (!hidden.delete(key)) {
      hidden.add(key);
    }
    show();
  };
  return button;
}

function show() {
  const legend = document.querySelector('#legend');
  legend.querySelectorAll('.group').forEach(each => each.remove());
  for (const {run, colour, seeds, remark} of RUNS) {
    const group = legend.querySelector('.groups').appendChild(document.createElement('span'));
    group.className = 'group';
    group.append(chip(run + (remark && ': ' + remark), run, colour));
    for (let seed = 1; seed <= seeds && seeds > 1; ++seed) {
      const each = chip(String(seed), run + ' / ' + seed);
      each.title = each.ariaLabel = run + ', seed ' + seed;
      each.disabled = hidden.has(run);
      group.append(each);
    }
  }
  keep();
  if (apart) draw();
  else for (const one of boxes) signal(one, 'hidden', [...hidden]);
}

document.querySelector('#legend').hidden = false;
document.querySelector('#unzoom').onclick = () => zoomTo(null, {});
document.querySelector('#unzoom').hidden = zoom.x_low === undefined;
document.querySelector('#apart').checked = apart;
document.querySelector('#apart').onchange = event => { apart = event.target.checked; keep(); draw(); };
let drawnWidth = window.innerWidth, waiting = 0;
show();
if (!apart) draw();
dark.addEventListener('change', draw);
document.addEventListener('pointerdown', event => { if (!event.target.closest('.marks')) leave(); });
window.addEventListener('scroll', leave, {passive: true});
window.addEventListener('resize', () => {
  if (window.innerWidth === drawnWidth) return;  // on phones scrolling changes the height
  drawnWidth = window.innerWidth;
  clearTimeout(waiting);
  waiting = setTimeout(draw, 200);
});
