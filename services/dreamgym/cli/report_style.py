"""The style sheet of the HTML report: light and dark, readable from phone to desk, and on paper."""

STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#5b6470;--line:#dfe3e8;--back:#f6f7f9;--card:#fff;
--dream:#6d4de0;--real:#0a7d62;--good:#0a7d3c;--bad:#c0262d;--warning:#96600a;--code:#eef0f3}
@media (prefers-color-scheme:dark){:root{--ink:#e7eaee;--soft:#9aa4b0;--line:#323942;--back:#14171b;--card:#1c2026;
--dream:#a792ff;--real:#3fcfa9;--good:#4fd08a;--bad:#ff7b7b;--warning:#e5ae4d;--code:#262c34}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1200px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:25px;margin:0 0 4px}h2{font-size:18px;margin:34px 0 10px}h3{font-size:15px;margin:18px 0 6px}
p{margin:6px 0}.soft{color:var(--soft)}.small{font-size:13px}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:14px 18px;overflow-x:auto}
.numbers{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin:18px 0}
.numbers .card{padding:12px 16px}.numbers b{display:block;white-space:nowrap;font-size:21px;line-height:1.25}
.numbers .real b{color:var(--real)}.numbers .dream b{color:var(--dream)}
table{border-collapse:collapse;width:100%;font-size:14px}
th{text-align:left;font-weight:600;color:var(--soft);font-size:12.5px;white-space:nowrap}
th,td{padding:6px 14px 6px 0;border-bottom:1px solid var(--line);vertical-align:top}
tr:last-child td{border-bottom:0}.right{text-align:right;white-space:nowrap}td.rate{white-space:nowrap}
td:first-child{min-width:140px}table.stages td:first-child{min-width:220px}
table.stages th,table.stages td{padding-right:10px}
td.real{color:var(--real);font-weight:600}td.dream{color:var(--dream)}
.helped,.state-succeeded{color:var(--good)}.harmed,.state-failed{color:var(--bad)}
.unclear,.state-skipped{color:var(--warning)}
ul.findings{list-style:none;margin:0;padding:0}
ul.findings li{padding:7px 0 7px 28px;position:relative;border-bottom:1px solid var(--line)}
ul.findings li:last-child{border-bottom:0}
ul.findings li::before{position:absolute;left:4px;font-weight:700}
li.good::before{content:"✓";color:var(--good)}li.bad::before{content:"✗";color:var(--bad)}
li.warning::before{content:"~";color:var(--warning)}li.neutral::before{content:"·";color:var(--soft)}
.plots{display:flex;flex-wrap:wrap;gap:10px 26px}.plots svg{flex:1 1 300px}
svg{width:100%;height:auto;display:block;font:12px system-ui,sans-serif}svg.wide{min-width:680px}
.grid{stroke:var(--line);stroke-width:1}.tick{fill:var(--soft);font-size:11px}.label,.value{fill:var(--ink)}
.title{fill:var(--ink);font-weight:600}.bar{stroke-width:3;stroke-linecap:round;opacity:.55}
.line{fill:none;stroke-width:2}.bar.dream,.line.dream{stroke:var(--dream)}.bar.real,.line.real{stroke:var(--real)}
.dot.dream{fill:var(--dream)}.dot.real{fill:var(--real)}.line.soft{stroke:var(--soft)}.dot.soft{fill:var(--soft)}
.line.ideal{stroke:var(--soft);stroke-dasharray:4 4}
.key{font-size:13px;color:var(--soft);margin:0 0 6px}.key i{display:inline-block;width:10px;height:10px;
border-radius:50%;margin:0 6px 0 14px}.key i:first-child{margin-left:0}
i.dream{background:var(--dream)}i.real{background:var(--real)}
.mistake{border-bottom:1px solid var(--line);padding:10px 0}.mistake:last-child{border-bottom:0}
.mistake dl{display:grid;grid-template-columns:90px 1fr;gap:2px 10px;margin:4px 0}.mistake dt{color:var(--soft)}
.mistake dd{margin:0;overflow-wrap:anywhere}.mistake dd.dream{color:var(--dream)}.mistake dd.real{color:var(--real)}
code{background:var(--code);border-radius:5px;padding:1px 5px;font:13px ui-monospace,Menlo,Consolas,monospace;
overflow-wrap:anywhere}
@media (max-width:600px){main{padding:18px 12px 40px}.card{padding:10px 12px}.mistake dl{grid-template-columns:1fr}}
@media print{body{background:#fff}.card{break-inside:avoid}}
"""
