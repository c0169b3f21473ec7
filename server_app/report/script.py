"""The page's script: values under the pointer, and buttons that copy a command."""

SCRIPT = """
'use strict';
const tip = document.getElementById('tip');
const rounded = (value, unit, whole) => {
  if (whole) return String(Math.round(value));
  const prefix = [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k']].find(p => value >= p[0]);
  const text = String(+(value / (prefix ? prefix[0] : 1)).toPrecision(3));
  return (text + ' ' + (prefix ? prefix[1] : '') + unit).trim();
};
const unmark = svg => svg.querySelector('.cursor')?.remove();
const mark = (svg, path) => {
  unmark(svg);
  const cursor = svg.querySelector('.axis').cloneNode();
  cursor.setAttribute('class', 'cursor');
  cursor.setAttribute('d', path);
  svg.append(cursor);
};
const say = (text, event) => {
  tip.textContent = text;
  tip.style.display = 'block';
  const wide = document.documentElement.clientWidth;
  tip.style.left = Math.max(4, Math.min(event.pageX + 14, wide - tip.offsetWidth - 8)) + 'px';
  tip.style.top = event.pageY + 14 + 'px';
};
const hush = svg => { unmark(svg); tip.style.display = 'none'; };
const tell = (svg, event) => {
  const [x0, x1, left, right, y0, y1, bottom, top] = svg.dataset.axes.split(' ').map(Number);
  const box = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / box.width;
  const at = (event.clientX - box.left) * scale;
  const near = [...svg.querySelectorAll('.series')].map(line => {
    const points = [...line.points];
    const point = points.reduce((a, b) => Math.abs(b.x - at) < Math.abs(a.x - at) ? b : a);
    const value = y0 + (point.y - bottom) / (top - bottom) * (y1 - y0);
    return { name: line.dataset.name, x: point.x, value };
  });
  if (!near.length) return;
  const x = near.reduce((a, b) => Math.abs(b.x - at) < Math.abs(a.x - at) ? b : a).x;
  const spent = x0 + (x - left) / (right - left) * (x1 - x0);
  const lines = near.sort((a, b) => b.value - a.value)
    .map(each => ('plain' in svg.dataset ? rounded(each.value, '', false) + '  '
      : (100 * each.value).toFixed(1) + ' %  ') + each.name);
  const told = rounded(spent, svg.dataset.unit, 'whole' in svg.dataset);
  say([svg.dataset.label + ': ' + told, ...lines].join('\\n'), event);
  mark(svg, 'M' + x + ' ' + top + 'V' + bottom);
};
const tellCell = (svg, event) => {
  const [left, top, side] = svg.dataset.place.split(' ').map(Number);
  const box = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / box.width;
  const names = JSON.parse(svg.dataset.names), cell = side / names.length;
  const column = Math.floor(((event.clientX - box.left) * scale - left) / cell);
  const row = Math.floor(((event.clientY - box.top) * scale - top) / cell);
  if (!(row in names && column in names)) return hush(svg);
  const counts = svg.dataset.matrix.split(';')[row].split(',').map(Number);
  const all = counts.reduce((a, b) => a + b), share = 100 * counts[column] / (all || 1);
  say(names[row] + (row === column ? ' is right: ' : ' taken for ' + names[column] + ': ')
    + counts[column] + ' of ' + all + ' (' + share.toFixed(1) + ' %)', event);
  mark(svg, 'M' + (left + column * cell) + ' ' + (top + row * cell)
    + 'h' + cell + 'v' + cell + 'h' + -cell + 'z');
};
const watch = (svg, tells) => {
  for (const when of ['pointermove', 'pointerdown'])
    svg.addEventListener(when, event => tells(svg, event));
  svg.addEventListener('pointerleave', () => hush(svg));
};
for (const svg of document.querySelectorAll('svg[data-axes]')) {
  svg.querySelectorAll('title').forEach(title => title.remove());
  watch(svg, tell);
}
for (const svg of document.querySelectorAll('svg[data-matrix]')) watch(svg, tellCell);
for (const button of document.querySelectorAll('button[data-copies]')) {
  button.hidden = !navigator.clipboard;
  button.addEventListener('click', async () => {
    const command = document.getElementById(button.dataset.copies).textContent;
    await navigator.clipboard.writeText(command).then(
      () => { button.textContent = 'copied'; }, () => { button.textContent = 'not allowed'; });
  });
}
"""
