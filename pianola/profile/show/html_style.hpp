#pragma once
#include <string_view>

namespace pianola::profiling {

/// The style sheet of the page, without its colours: see html_palette.hpp.
inline constexpr std::string_view kStyleSheet = R"css(
*{box-sizing:border-box}
html{background:var(--page);color:var(--text);-webkit-text-size-adjust:100%;
 font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;
 font-variant-numeric:tabular-nums}
body{margin:0 auto;max-width:1160px;padding:32px 32px 48px}
h1,h2,h3,p,ul,ol,dl,dd,figure{margin:0;padding:0}
h1{font-size:1.7rem;line-height:1.25;font-weight:600;letter-spacing:-.012em;max-width:46em;text-wrap:balance}
h2{font-size:1.1rem;line-height:1.3;font-weight:600;margin-bottom:12px}
h3{font-size:1rem;font-weight:600;margin-bottom:6px}
section,footer{border-top:1px solid var(--line);margin-top:32px;padding-top:24px}
main>:first-child{border-top:0;margin-top:0}
code,pre{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace;font-size:.86em}
code{overflow-wrap:anywhere}
a,summary{color:var(--accent)}
:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
i{font-style:normal}
.muted,.note,.title,caption,dt,.legend,figcaption{color:var(--muted)}
.note{max-width:72em;margin-bottom:12px;font-size:.93rem}
.columns{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26em),1fr));gap:20px 48px}
.columns>*{min-width:0}

/* GraphVerdict and key numbers */
.title{margin-bottom:10px;overflow-wrap:anywhere}
.mark{display:inline-block;padding:2px 10px;margin:0 0 10px;border-radius:3px;background:var(--c);color:var(--on-mark);
 font-weight:600;font-size:.87rem}
.good{--c:var(--good)}.caution{--c:var(--caution)}.neutral{--c:var(--neutral)}.done{--c:var(--accent)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(158px,1fr));gap:1px;background:var(--line);
 border:solid var(--line);border-width:1px 0;margin-top:24px}
.tiles>div{background:var(--page);padding:12px 16px 12px 0}
.tiles>div+div{padding-left:16px}
.tiles dt{font-size:.87rem}
.tiles dd{font-size:1.45rem;line-height:1.3;font-weight:600;letter-spacing:-.01em;white-space:nowrap}
.tiles dd+dd{font-size:.87rem;font-weight:400;letter-spacing:0;color:var(--muted);white-space:normal}

/* Lists of sentences */
.sentences{list-style:none;max-width:62em}
.sentences li{position:relative;padding-left:18px;margin-bottom:6px;overflow-wrap:anywhere}
.sentences li::before{content:"";position:absolute;left:0;top:.62em;width:6px;height:6px;background:var(--muted)}
.hindering li::before{background:var(--caution)}

/* Tables */
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;margin-top:12px}
caption{text-align:left;font-size:.87rem;padding-bottom:4px}
th,td{padding:5px 16px 5px 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}
th:last-child,td:last-child{padding-right:0}
thead th{font-size:.87rem;font-weight:500;color:var(--muted);vertical-align:bottom;white-space:nowrap}
tbody th,tfoot th{font-weight:400}
.sum th,.sum td{font-weight:600}
.cut{max-width:30em;min-width:12em;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.cut code{overflow-wrap:normal}
.n{text-align:right;white-space:nowrap}
.key{white-space:nowrap}
.narrow{display:none}
tr.best th,tr.best .n{font-weight:600}
th button{all:unset;cursor:pointer;color:inherit}
th button:focus-visible{outline:2px solid var(--accent)}
th[aria-sort] button{color:var(--text)}
th[aria-sort=descending] button::after{content:" \2193"}
th[aria-sort=ascending] button::after{content:" \2191"}
.share{position:relative;min-width:7.5em}
.share i{position:absolute;left:8px;bottom:2px;height:3px;background:var(--launch);right:0;transform-origin:right}
details{margin-top:12px}
summary{cursor:pointer;width:fit-content}

/* Marks: a class of one letter sets the colour */
.k{--c:var(--kernel)}.m{--c:var(--memset)}.c{--c:var(--copy)}.l{--c:var(--launch)}.g{--c:var(--graph)}
.s{--c:var(--synchronization)}.d{--c:var(--data)}.w{--c:var(--device)}.r{--c:var(--range)}
rect{fill:var(--c)}
svg,.bar span,.key i,.legend i{forced-color-adjust:none}
.legend i,.key i{display:inline-block;width:10px;height:10px;margin-right:6px;background:var(--c)}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:2px 28px;font-size:.87rem;margin-top:8px}
.legend span{white-space:nowrap;margin-left:8px}

/* Timeline */
.tracks{position:relative;padding-left:92px;font-size:12px}
.lanes span{position:absolute;left:0;width:86px;overflow:hidden;text-overflow:ellipsis;white-space:nowrap;
 color:var(--muted)}
.plot{position:relative;height:100%;overflow:hidden;touch-action:pan-y;border-left:1px solid var(--line);cursor:default}
.js .plot{cursor:crosshair}
.plot svg{position:absolute;display:block;width:100%;z-index:1}
.plot .c,.plot .m,.plot .s{stroke:var(--c);stroke-width:.5;vector-effect:non-scaling-stroke}
.row .r:nth-child(even){fill-opacity:.6}
.row .k:nth-child(even){fill-opacity:.86}
.plot rect:hover{fill:var(--text);fill-opacity:1}
.plot .r:hover{fill:var(--line)}
.over span{position:absolute;white-space:nowrap;overflow:hidden}
.tick{top:0;bottom:0;border-left:1px solid var(--line);padding-left:4px;color:var(--muted);line-height:16px}
.name{z-index:2;padding:0 5px;line-height:18px;text-overflow:ellipsis;pointer-events:none}
.picked{position:absolute;z-index:3;top:0;bottom:0;background:var(--accent);opacity:.22;pointer-events:none}
.tools{display:flex;flex-wrap:wrap;align-items:center;gap:6px;margin-bottom:10px}
.tools span{color:var(--muted);font-size:.87rem;margin-left:8px}
.button{font:inherit;font-size:.87rem;line-height:1.4;padding:2px 9px;border:1px solid var(--line);border-radius:3px;
 background:var(--raised);color:var(--text);cursor:pointer}
.button:hover{border-color:var(--muted)}
.readout{min-height:3em;font-size:.87rem;margin-top:6px;overflow-wrap:anywhere;white-space:pre-line}

/* Charts */
.bar{display:flex;height:28px;gap:1px}
.bar span{background:var(--c);min-width:2px}
.histogram{position:relative;height:190px;margin:18px 0 26px;border-bottom:1px solid var(--muted)}
.histogram svg{position:absolute;inset:0;width:100%;height:100%}
.histogram span{position:absolute;font-size:12px;white-space:nowrap;color:var(--muted);line-height:16px}
.histogram .value{background:var(--page);padding:0 2px;transform:translateX(-50%);color:var(--text)}
.histogram .edge{top:100%;padding-top:4px;transform:translateX(-50%)}
.histogram .limit{top:-18px;bottom:0;border-left:1px dashed var(--text);padding-left:5px;color:var(--text)}
.histogram .limit.end{border:0;border-right:1px dashed var(--text);padding:0 5px 0 0;transform:translateX(-100%)}
.scopes{position:relative;margin:4px 0 20px}
.scope{display:grid;grid-template-columns:15em 1fr 11em;gap:0 16px;align-items:center}
.scope .value{text-align:right;white-space:nowrap}
.scope .track{position:relative;height:36px}
.scope .track svg{position:absolute;inset:0;width:100%;height:100%;overflow:visible}
.scope .now{position:absolute;top:0;bottom:0;border-left:1px dashed var(--text)}
.scope.best .what,.scope.best .value{font-weight:600}
.scope.head .track{height:20px}
.scope.head .track span{position:absolute;right:0;font-size:12px;line-height:18px;white-space:nowrap;color:var(--text)}
.expected{fill:var(--kernel);fill-opacity:.55}.best .expected{fill-opacity:1}
.hindered .expected{fill:var(--device);fill-opacity:1}
.interval,.halo{stroke:var(--text);stroke-width:1.5;vector-effect:non-scaling-stroke}
.halo{stroke:var(--page);stroke-width:4.5}
.code{position:relative;margin-bottom:14px}
.code>div{display:flex;justify-content:space-between;align-items:end;min-height:26px;margin-bottom:4px;
 color:var(--muted);font-size:.87rem}
pre{margin:0;padding:12px 14px;background:var(--raised);border-radius:3px;overflow-x:auto;line-height:1.5;tab-size:4}
pre code{overflow-wrap:normal;font-size:1em}
.call{margin-top:20px}

/* Foot */
.facts{display:grid;grid-template-columns:max-content 1fr;gap:3px 24px;font-size:.93rem}
.facts dd{overflow-wrap:anywhere}
footer p{margin-top:16px;font-size:.87rem;color:var(--muted)}

@media (max-width:760px){
 body{padding:20px 16px 32px}
 h1{font-size:1.35rem}
 .tiles{grid-template-columns:1fr 1fr}
 .tiles>div:nth-child(odd){padding-left:0}
 .tiles>div:nth-child(even){padding-left:16px}
 .tiles dd{font-size:1.25rem}
 .tracks{padding-left:62px;font-size:11px}
 .lanes span{width:58px}
 .scope{grid-template-columns:1fr auto;margin-bottom:4px}
 .scope .track{grid-column:1/-1;grid-row:2;height:26px}
 .scope.head .track{grid-row:1;height:18px}
 .facts{grid-template-columns:1fr}
 .facts dd{margin-bottom:6px}
 .histogram .odd,.wide{display:none}
 .histogram .value{font-size:10px;background:none}
 .narrow{display:block;color:var(--muted);font-size:.87rem;white-space:normal}
}
@media (hover:none){.tools span{display:none}}
@media print{
 *{print-color-adjust:exact;-webkit-print-color-adjust:exact}
 html{font-size:12px}
 body{max-width:none;padding:0}
 .tools,.button,.readout{display:none}
 figure,tr,.code,.tiles>div,li{break-inside:avoid}
 h2,h3,caption,thead{break-after:avoid}
 .scroll{overflow:visible}
 pre{white-space:pre-wrap}
}
)css";

}  // namespace pianola::profiling
