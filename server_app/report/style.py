"""The page's style: readable on a phone, in light and in dark mode.

A Python module, as the template and the script are: Flower's bundles take no .css, .js or .html.
"""

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --card: #f5f6f8; --ink: #1b1f24; --faint: #5b6573; --line: #d9dde3;
  --accent: #0b6bcb; --warn: #fff3d6; --warn-ink: #6b4a00; --most: 60%;
  --c0: #0b6bcb; --c1: #d1560f; --c2: #12805c; --c3: #a23b9c;
  --c4: #8a6d00; --c5: #c2255c; --c6: #0c8599; --c7: #5c677d;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14171b; --card: #1d2126; --ink: #e6e9ed; --faint: #9aa5b1; --line: #343b44;
    --accent: #6cb2ff; --warn: #3a2f10; --warn-ink: #ffd983; --most: 42%;
    --c0: #6cb2ff; --c1: #ff9d5c; --c2: #4fd1a1; --c3: #e58be0;
    --c4: #e0c04a; --c5: #ff8fb3; --c6: #5fd0e3; --c7: #aab4c4;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
}
main, header { max-width: 76rem; margin: 0 auto; padding: 0 1rem; }
header { padding-top: 1.5rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .75rem; padding-top: .75rem;
     border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.5rem 0 .5rem; overflow-wrap: anywhere; }
p { margin: .5rem 0; max-width: 60rem; }
a { color: var(--accent); }
.faint, .notes { color: var(--faint); font-size: .875rem; }
.notes { margin: .35rem 0 0; }
nav { display: flex; flex-wrap: wrap; gap: .25rem 1rem; margin: .75rem 0; font-size: .9rem; }
.banner { background: var(--warn); color: var(--warn-ink); padding: .6rem .9rem;
          border-radius: .5rem; overflow-wrap: anywhere; }
.cards { display: grid; gap: .75rem; margin: 1rem 0; padding: 0;
         grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); }
.cards > div { background: var(--card); border-radius: .6rem; padding: .7rem .9rem; }
.cards dt { color: var(--faint); font-size: .8rem; }
.cards dd { margin: 0; font-size: 1.25rem; font-weight: 600; white-space: nowrap;
            font-variant-numeric: tabular-nums; }
.cards small { display: block; white-space: normal; color: var(--faint); font-size: .75rem;
               font-weight: 400; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: .5rem; }
.tall { max-height: 34rem; overflow-y: auto; }
table { border-collapse: collapse; width: 100%; font-size: .875rem;
        font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .7rem; text-align: right; white-space: nowrap; }
th { color: var(--faint); font-weight: 600; background: var(--card); position: sticky; top: 0; }
td { border-top: 1px solid var(--line); }
th:first-child, td:first-child, .text th, .text td { text-align: left; }
td.prose { white-space: normal; min-width: 14rem; overflow-wrap: anywhere; }
th.prose, td.prose, th.often, td.often { text-align: left; }
th:first-child:not(.prose), td:first-child:not(.prose) { position: sticky; left: 0; }
td:first-child { background: var(--paper); }
th:first-child { z-index: 1; }
.figures { display: grid; gap: 1rem;
           grid-template-columns: repeat(auto-fill, minmax(min(100%, 21rem), 1fr)); }
.figures.wide { grid-template-columns: repeat(auto-fill, minmax(min(100%, 30rem), 1fr)); }
.scroll + .figures, .notes + .figures { margin-top: 1rem; }
figure { margin: 0; padding: .75rem; background: var(--card); border-radius: .6rem; min-width: 0; }
figcaption { font-weight: 600; font-size: .9rem; margin-bottom: .25rem; }
svg { display: block; width: 100%; height: auto; touch-action: pan-y; }
.legend { display: flex; flex-wrap: wrap; gap: .1rem .9rem; margin: 0 0 .4rem; padding: 0;
          list-style: none; font-size: .8rem; color: var(--faint); }
.legend li { overflow-wrap: anywhere; }
.legend i { display: inline-block; width: .8rem; height: .25rem; margin-right: .35rem;
            border-radius: 2px; background: currentColor; vertical-align: middle; }
.legend i.dashed { background: repeating-linear-gradient(90deg, currentColor 0 4px, transparent 4px
                   6px); }
.c0 { color: var(--c0); } .c1 { color: var(--c1); } .c2 { color: var(--c2); }
.c3 { color: var(--c3); } .c4 { color: var(--c4); } .c5 { color: var(--c5); }
.c6 { color: var(--c6); } .c7 { color: var(--c7); }
svg text { font-size: 12px; fill: var(--faint); }
svg .label { fill: var(--ink); font-size: 11px; paint-order: stroke; stroke: var(--card);
             stroke-width: 2px; }
@media (min-width: 40rem) { .wide svg text, .wide svg .label { font-size: 9px; } }
svg .small, svg .small text { font-size: 9px; }
.node { fill: color-mix(in srgb, var(--card), currentColor 18%); stroke: currentColor; }
.grid { stroke: var(--line); stroke-width: 1; fill: none; }
.axis { stroke: var(--faint); stroke-width: 1; fill: none; }
.series, .front { fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round; }
.front { stroke-width: 1.25; opacity: .8; }
.dashed { stroke-dasharray: 5 3; }
.band { fill: currentColor; opacity: .16; }
.range { stroke: currentColor; stroke-width: 1.5; }
.dot { fill: currentColor; stroke: currentColor; stroke-width: 1.5; }
.hollow { fill: var(--card); }
.right { stroke: var(--c2); } .wrong { stroke: var(--c1); }
.bar, .taken { fill: currentColor; }
.taken { fill: var(--c7); opacity: .45; } .refused { fill: var(--c1); } .failed { fill: var(--c5); }
.mean { stroke: var(--ink); stroke-width: 1.5; stroke-dasharray: 3 2; fill: none; }
.cursor { stroke: var(--faint); stroke-width: 1; fill: none; pointer-events: none; }
.choice { display: flex; flex-wrap: wrap; gap: .4rem; margin: .5rem 0 1rem; }
.choice label { padding: .3rem .8rem; border: 1px solid var(--line); border-radius: 2rem;
                font-size: .875rem; cursor: pointer; }
.pick { position: absolute; opacity: 0; pointer-events: none; }
.over > div { display: none; }
#over-rounds:checked ~ .figures .over-rounds, #over-bytes:checked ~ .figures .over-bytes,
#over-seconds:checked ~ .figures .over-seconds { display: block; }
#over-rounds:checked ~ .choice [for=over-rounds], #over-bytes:checked ~ .choice [for=over-bytes],
#over-seconds:checked ~ .choice [for=over-seconds] {
  background: var(--accent); border-color: var(--accent); color: var(--paper);
}
#over-rounds:focus-visible ~ .choice [for=over-rounds],
#over-bytes:focus-visible ~ .choice [for=over-bytes],
#over-seconds:focus-visible ~ .choice [for=over-seconds] {
  outline: 2px solid var(--accent); outline-offset: 2px;
}
.tiles { display: flex; flex-wrap: wrap; gap: 3px; margin: .5rem 0; }
.tiles span { width: 1.9rem; height: 1.9rem; border-radius: 4px; display: grid; cursor: default;
  place-items: center; font-size: .7rem; font-variant-numeric: tabular-nums; color: var(--ink);
  background: color-mix(in srgb, var(--paper),
                        var(--tint) calc(12% + var(--often) * (var(--most) - 12%))); }
.tiles .attacks { outline: 2px dashed var(--c1); outline-offset: -2px; }
.parts td { min-width: 3.2rem; }
.parts .share {
  background: color-mix(in srgb, var(--paper), var(--tint) calc(var(--held) * var(--most))); }
.parts .often { min-width: 10rem; }
.often b { display: inline-block; height: .6rem; border-radius: 2px; background: var(--c7);
           margin-right: .5rem; width: calc(var(--bar) * 6rem); }
pre { background: var(--card); border-radius: .5rem; padding: .75rem; margin: .5rem 0;
      overflow-x: auto; font-size: .8rem; line-height: 1.45; }
code { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
.command { display: flex; gap: .5rem; align-items: flex-start; }
.command pre { flex: 1; min-width: 0; white-space: pre-wrap; overflow-wrap: anywhere; }
button { font: inherit; font-size: .8rem; padding: .45rem .8rem; margin-top: .5rem; cursor: pointer;
         color: inherit; background: var(--card); border: 1px solid var(--line);
         border-radius: .5rem; }
details { margin: .5rem 0; }
summary { cursor: pointer; overflow-wrap: anywhere; }
#tip { position: absolute; pointer-events: none; z-index: 2; padding: .35rem .6rem; max-width: 90vw;
       background: var(--ink); color: var(--paper); border-radius: .4rem; font-size: .78rem;
       line-height: 1.35; white-space: pre-wrap; overflow-wrap: anywhere; display: none; }
footer { color: var(--faint); font-size: .8rem; margin: 3rem 0 2rem; }
@media (max-width: 30rem) { h1 { font-size: 1.25rem; } .cards dd { font-size: 1.1rem; } }
@media print { .choice, nav, button { display: none; } }
"""
