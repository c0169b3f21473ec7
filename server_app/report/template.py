"""The page, as a Jinja template with a macro for each kind of block: all texts are escaped."""

TEMPLATE = """
{%- macro table(given) -%}
{% if given.heading %}<h3>{{ given.heading }}</h3>{% endif %}
<div class="scroll{% if given.rows|length > 16 %} tall{% endif %}">
<table{% if given.style %} class="{{ given.style }}"{% endif %}>
{% set prose = given.prose %}
{% if given.columns|join %}
<thead><tr>{% for column in given.columns %}{{ cell('th', column, prose[loop.index0]) }}{% endfor %}
</tr></thead>
{% endif %}
<tbody>{% for row in given.rows %}
<tr>{% for each in row %}{{ cell('td', each, prose[loop.index0]) }}{% endfor %}</tr>{% endfor %}
</tbody></table></div>
{{ notes(given.notes) }}
{%- endmacro -%}
{%- macro cell(tag, text, prose) -%}
{% if text.style is defined %}<{{ tag }} class="{{ text.style }}"
{%- if text.values and text.style == 'share' %} style="{{ text.values }}">
{%- elif text.values %}><b style="{{ text.values }}"></b>{% else %}>{% endif %}
{% elif prose %}<{{ tag }} class="prose">{% else %}<{{ tag }}>{% endif %}{{ text }}</{{ tag }}>
{%- endmacro -%}
{%- macro notes(given) %}
{% for note in given %}<p class="notes">{{ note }}</p>{% endfor %}
{% endmacro -%}
{%- macro legend(entries) -%}
{% if entries %}<ul class="legend">{% for colour, name in entries %}
<li><i class="{{ tint(colour, dashes=True) }}"></i>{{ name }}</li>{% endfor %}</ul>{% endif %}
{%- endmacro -%}
{%- macro figures(given) -%}
{% for over in given.overs or () %}
<input class="pick" type="radio" name="over" id="over-{{ over }}"{% if loop.first %} checked
{%- endif %}>{% endfor %}
{% if given.overs %}<div class="choice">{% for over, text in given.overs.items() %}
<label for="over-{{ over }}">{{ text }}</label>{% endfor %}</div>{{ legend(given.shared_legend) }}
{% endif %}
<div class="figures{% if not given.overs %} wide{% endif %}">{% for figure in given.figures %}
<figure{% if given.overs %} class="over"{% endif %}><figcaption>{{ figure.title }}</figcaption>
{% if not (given.overs and given.shared_legend) %}{{ legend(figure.legend) }}{% endif %}
{% for over, chart in figure.charts.items() %}<div class="over-{{ over }}">{{ chart }}</div>
{%- endfor %}</figure>{% endfor %}</div>
{{ notes(given.notes) }}
{%- endmacro -%}
{%- macro cards(given) -%}
<dl class="cards">{% for name, value, note in given.cards %}<div><dt>{{ name }}</dt>
<dd>{{ value }}<small>{{ note }}</small></dd></div>{% endfor %}</dl>
{%- endmacro -%}
{%- macro tiles(given) -%}
{{ legend(given.legend) }}
<div class="tiles">{% for tile in given.tiles %}<span title="{{ tile.text }}"
 {% if tile.attacks %}class="attacks"{% endif %}
 style="--tint:var(--{{ tint(tile.colour) }});--often:{{ '%.2f'|format(tile.strength) }}">
{{- tile.number }}</span>{% endfor %}</div>
{%- endmacro -%}
{%- macro code(given, name) -%}
{% if given.command %}<div class="command"><pre><code id="{{ name }}">{{ given.text }}</code></pre>
<button hidden data-copies="{{ name }}">copy</button></div>
{% else %}<pre><code>{{ given.text }}</code></pre>{% endif %}
{%- endmacro -%}
{%- macro shown(blocks) -%}
{% for block in blocks %}{% set kind = block.kind %}
{% if kind == 'table' %}{{ table(block) }}
{% elif kind == 'figures' %}{{ figures(block) }}
{% elif kind == 'text' %}
<{{ block.tag }}{% if block.style %} class="{{ block.style }}"{% endif %}>{{ block.text }}
</{{ block.tag }}>
{% elif kind == 'cards' %}{{ cards(block) }}
{% elif kind == 'tiles' %}{{ tiles(block) }}
{% elif kind == 'code' %}{{ code(block, 'command-' ~ loop.index) }}
{% elif kind == 'fold' %}<details><summary>{{ block.summary }}</summary>{{ shown(block.blocks) }}
</details>
{% endif %}{% endfor %}
{%- endmacro -%}
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>{{ title }}</title>
<style>{{ style }}</style>
</head>
<body>
<header>
<h1>{{ title }}</h1>
<p class="faint">{{ subtitle }}</p>
{% for warning in warnings %}<p class="banner">{{ warning }}</p>{% endfor %}
<nav>{% for each in sections %}<a href="#{{ each.name }}">{{ each.title }}</a>{% endfor %}
</nav>
</header>
<main>
{% for section in sections %}
<section id="{{ section.name }}"><h2>{{ section.heading }}</h2>
{{ shown(section.blocks) }}
</section>
{% endfor %}
<footer>Made by nestfl from the record of {{ runs }} run{{ 's' if runs != 1 }}.</footer>
</main>
<div id="tip"></div>
<script>{{ script }}</script>
</body>
</html>
"""
