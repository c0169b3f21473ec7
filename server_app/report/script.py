"""The page's script: values under the pointer, and a button that copies a command."""

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
  tip.textContent = [svg.dataset.label + ': ' + told, ...lines].join('\\n');
  tip.style.display = 'block';
  const wide = document.documentElement.clientWidth;
  tip.style.left = Math.max(4, Math.min(event.pageX + 14, wide - tip.offsetWidth - 8)) + 'px';
  tip.style.top = event.pageY + 14 + 'px';
  unmark(svg);
  const cursor = svg.querySelector('.axis').cloneNode();
  cursor.setAttribute('class', 'cursor');
  cursor.setAttribute('d', 'M' + x + ' ' + top + 'V' + bottom);
  svg.append(cursor);
};
for (const svg of document.querySelectorAll('svg[data-axes]')) {
  svg.querySelectorAll('title').forEach(title => title.remove());
  svg.addEventListener('pointermove', event => tell(svg, event));
  svg.addEventListener('pointerdown', event => tell(svg, event));
  svg.addEventListener('pointerleave', () => { unmark(svg); tip.style.display = 'none'; });
}
for (const button of document.querySelectorAll('button[data-copies]')) {
  button.hidden = !navigator.clipboard;
  button.addEventListener('click', async () => {
    const command = document.getElementById(button.dataset.copies).textContent;
    await navigator.clipboard.writeText(command).then(
      () => { button.textContent = 'copied'; }, () => { button.textContent = 'not allowed'; });
  });
}
"""
