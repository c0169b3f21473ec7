"""The page, as a Jinja template: all that comes from a run is escaped."""

TEMPLATE = """
{%- macro table(given, text=false) -%}
<div class="scroll{% if given.rows|length > 16 %} tall{% endif %}">
<table{% if text %} class="text"{% endif %}>
{% set prose = given.prose %}
{% if given.columns|join %}
<thead><tr>{% for column in given.columns %}<th{% if prose[loop.index0] %} class="prose"{% endif %}>
{{- column }}</th>{% endfor %}</tr></thead>
{% endif %}
<tbody>{% for row in given.rows %}
<tr>{% for cell in row %}<td{% if prose[loop.index0] %} class="prose"{% endif %}>{{ cell }}</td>
{%- endfor %}</tr>{% endfor %}
</tbody></table></div>
{% for note in given.notes %}<p class="notes">{{ note }}</p>{% endfor %}
{%- endmacro -%}
{%- macro legend(entries) -%}
<ul class="legend">{% for colour, name in entries %}<li><i class="c{{ colour % 8 }}
{%- if colour >= 8 %} dashed{% endif %}"></i>{{ name }}</li>{% endfor %}</ul>
{%- endmacro -%}
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>{{ page.title }}</title>
<style>{{ style }}</style>
</head>
<body>
<header>
<h1>{{ page.title }}</h1>
<p class="faint">{{ page.subtitle }}</p>
{% for warning in page.warnings %}<p class="banner">{{ warning }}</p>{% endfor %}
<nav>{% for name, title in sections %}<a href="#{{ name }}">{{ title }}</a>{% endfor %}</nav>
</header>
<main>
<section id="results"><h2>Results</h2>
{% for given in page.tables %}<h3>{{ given.heading }}</h3>{{ table(given) }}{% endfor %}
{% if page.tables_note %}<p class="banner">{{ page.tables_note }}</p>{% endif %}
{% if page.cards %}<dl class="cards">{% for card in page.cards %}<div><dt>{{ card.name }}</dt>
<dd>{{ card.value }}{% if card.note %}<small>{{ card.note }}</small>{% endif %}</dd></div>
{% endfor %}</dl>{% endif %}
{% for given in page.results %}<h3>{{ given.heading }}</h3>{{ table(given) }}{% endfor %}
</section>
<section id="accuracy"><h2>Accuracy as training goes on</h2>
{% if page.figures %}
{% for over, title in page.overs %}
<input class="pick" type="radio" name="over" id="over-{{ over }}"{% if loop.first %} checked
{%- endif %}>{% endfor %}
<div class="choice">{% for over, title in page.overs %}<label for="over-{{ over }}">{{ title }}
</label>{% endfor %}</div>
{% if page.shared_legend %}{{ legend(page.shared_legend) }}{% endif %}
<div class="figures">{% for figure in page.figures %}
<figure class="over"><figcaption>{{ figure.title }}</figcaption>
{% if not page.shared_legend %}{{ legend(figure.legend) }}{% endif %}
{% for over, chart in figure.charts.items() %}{{ over_class(chart, over) }}{% endfor %}
</figure>{% endfor %}</div>
<p class="notes">{{ page.figures_note }}</p>
{% else %}<p>No round has tested anything yet.</p>{% endif %}
</section>
{% if page.classes %}
<section id="classes"><h2>Classes</h2>
{% if page.classes.sentence %}<p>{{ page.classes.sentence }}</p>{% endif %}
<div class="scroll{% if page.classes.rows|length > 16 %} tall{% endif %}">
<table class="parts"><thead><tr><th>class</th><th>examples</th>
{% for column in page.classes.columns %}<th>{{ column }}</th>{% endfor %}</tr></thead><tbody>
{% for row in page.classes.rows %}<tr><td>{{ row.name }}</td><td>{{ row.examples }}</td>
{% for share in row.shares %}<td class="share" style="--held:{{ '%.2f'|format(share or 0) }};
--tint:var(--c{{ loop.index0 % 8 }})">{{ percent(share) }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>
<p class="notes">{{ page.classes.note }}</p>
{% if page.classes.matrices %}<div class="figures wide" style="margin-top:1rem">
{% for figure in page.classes.matrices %}<figure><figcaption>{{ figure.title }}</figcaption>
{% for chart in figure.charts.values() %}{{ chart }}{% endfor %}</figure>{% endfor %}</div>
<p class="notes">A row is of the examples of a class, a column of what they were taken for; the
stronger, the larger the share of the row. Wrong answers are drawn stronger than right ones.</p>
{% endif %}
{% if page.classes.confused %}<h3>{{ page.classes.confused.heading }}</h3>
{{ table(page.classes.confused) }}{% endif %}
</section>
{% endif %}
<section id="cost"><h2>Accuracy against cost</h2>
{% if page.front %}<div class="figures wide"><figure>
<figcaption>{{ page.front.title }}</figcaption>{{ legend(page.front.legend) }}
{% for chart in page.front.charts.values() %}{{ chart }}{% endfor %}</figure></div>
<p class="notes">A filled dot is on the front: nothing that costs as little is more accurate.
Each level is a dot, and so is each early exit, as if all answers were taken there.
{% if page.has_budgets %}Small dots are budgets: easy inputs leave early, by thresholds fitted to
validation data.{% endif %}</p>
{% else %}<p>{{ page.no_fleet }}</p>{% endif %}
</section>
{% if page.system %}
<section id="system"><h2>Collaborative inference</h2>
{% if page.system.tree %}<div class="figures wide"><figure>
<figcaption>Nodes, by exit</figcaption>{{ page.system.tree }}</figure></div>
<p class="notes">In requests per second: ↑ arrives at a node, the number in it is served, and that
of a line transferred.</p>
{% endif %}
{% for given in page.system.tables %}<h3>{{ given.heading }}</h3>{{ table(given) }}{% endfor %}
{% if page.system.figures %}<div class="figures wide" style="margin-top:1rem">
{% for figure in page.system.figures %}<figure><figcaption>{{ figure.title }}</figcaption>
{{ legend(figure.legend) }}
{% for chart in figure.charts.values() %}{{ chart }}{% endfor %}</figure>{% endfor %}</div>
<p class="notes">By serving setting a line through a dot is the deviation over seeds; a filled dot
is of runs that were trained for the setting.</p>{% endif %}
</section>
{% endif %}
<section id="fleet"><h2>The fleet</h2>
{% if page.costs %}{{ table(page.costs) }}{% else %}<p>{{ page.no_fleet }}</p>{% endif %}
{% if page.computation %}<h3>Computation</h3>{{ table(page.computation) }}{% endif %}
{% for fleet in page.fleets %}
{% if page.fleets|length == 1 %}
<h3>Clients</h3><p class="faint">{{ fleet.tile_note }}</p>
{% if fleet.tiles %}{{ legend(page.level_legend) }}{% endif %}
<div class="tiles">{% for tile in fleet.tiles %}<span title="{{ tile.text }}"
 {% if tile.attacks %}class="attacks"{% endif %}
 style="--tint:var(--c{{ tile.colour % 8 }});--often:{{ '%.2f'|format(tile.strength) }}">
{{- tile.number }}</span>{% endfor %}</div>
{% endif %}
{% if fleet.parts %}
{% if page.fleets|length > 1 %}
<details><summary>Parts of the network: {{ fleet.group }}</summary>
{% else %}<h3>Parts of the network</h3>{% endif %}
<div class="scroll tall"><table class="parts"><thead><tr><th>part</th><th>parameters</th>
{% for level in fleet.levels %}<th>level {{ level }}</th>{% endfor %}
<th>client-rounds</th><th class="often">each parameter</th></tr></thead><tbody>
{% for part in fleet.parts %}<tr><td>{{ part.name }}</td><td>{{ part.parameters }}</td>
{% for share in part.shares %}<td class="share" style="--held:{{ '%.2f'|format(share) }};
--tint:var(--c{{ loop.index0 % 8 }})">{% if share %}{{ '%.0f'|format(100 * share) }} %{% else %}-
{%- endif %}</td>{% endfor %}
<td>{{ part.trained }}</td><td class="often"><b style="--bar:{{ '%.3f'|format(part.bar) }}"></b>
{{- '%.3g'|format(part.often) }}</td></tr>{% endfor %}
</tbody></table></div>
<p class="notes">What share of a part's parameters each level holds, in how many client-rounds
some of it was trained, and in how many a parameter of it was, on average. {{ fleet.part_note }}
</p>
{% if page.fleets|length > 1 %}</details>{% endif %}
{% endif %}
{% endfor %}
</section>
<section id="clients"><h2>Spread over clients</h2>
{% if page.spread_table %}{{ table(page.spread_table) }}
<div class="figures wide" style="margin-top:1rem">{% for figure in page.spread %}<figure>
<figcaption>{{ figure.title }}</figcaption>
{% for chart in figure.charts.values() %}{{ chart }}{% endfor %}</figure>{% endfor %}</div>
<p class="notes">How many clients have which accuracy in their newest test; the dashed line is the
mean.</p>
{% if page.clients_table %}<details><summary>{{ page.clients_table.heading }}</summary>
{{ table(page.clients_table) }}</details>{% endif %}
{% else %}<p>No test of single clients is recorded.</p>{% endif %}
</section>
<section id="faults"><h2>Refused, failed and late clients</h2>
<p>{{ page.faults }}</p>
{% if page.faults_chart %}<div class="figures wide"><figure><figcaption>Replies of each round
</figcaption><ul class="legend"><li><i style="color:var(--c7)"></i>taken</li>
<li><i style="color:var(--c1)"></i>refused</li><li><i style="color:var(--c5)"></i>failed</li></ul>
{{ page.faults_chart }}</figure></div>{% endif %}
{% for given in page.fault_tables %}<h3>{{ given.heading }}</h3>{{ table(given, true) }}{% endfor %}
</section>
<section id="config"><h2>How it was run</h2>
{% for start in page.starts %}
<h3>{{ start.name }}</h3>
{% if start.command %}<div class="command"><pre><code id="command-{{ loop.index }}">
{{- start.command }}</code></pre>
<button hidden data-copies="command-{{ loop.index }}">copy</button></div>{% endif %}
<p class="faint">{{ start.facts }}</p>
{% endfor %}
{% if page.runs_table %}<h3>Runs</h3>{{ table(page.runs_table, true) }}{% endif %}
{% if page.differences %}<h3>{{ page.differences.heading }}</h3>
{{ table(page.differences, true) }}{% endif %}
{% for name, text in page.configs %}
<details><summary>Resolved config{% if page.configs|length > 1 %} of {{ name }}{% endif %}</summary>
<pre><code>{{ text }}</code></pre></details>
{% endfor %}
</section>
<footer>Made by nestfl from the record of {{ page.runs }} run{{ 's' if page.runs != 1 }}.</footer>
</main>
<div id="tip"></div>
<script>{{ script }}</script>
</body>
</html>
"""
