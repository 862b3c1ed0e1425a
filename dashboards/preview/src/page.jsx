// Draws a whole dashboard: /?dashboard=URL&prometheus=URL&now=MS[&from=..&to=..][&width=PX][&var-NAME=VALUE...]. When all is
// drawn, `window.drawn` has what each panel shows, for the tests.
import './grafana.js';
import {
  applyFieldOverrides,
  createTheme,
  dateTime,
  FieldType,
  formattedValueToString,
  getDisplayValueAlignmentFactors,
  getFieldDisplayName,
  getFieldDisplayValues,
  renderMarkdown,
  ThemeContext,
  transformDataFrame,
  VizOrientation,
  EventBusSrv,
} from '@grafana/data';
import { BarGauge, BigValue, GlobalStyles, PanelChrome, PanelContextProvider, Table, TimeSeries, VizRepeater } from '@grafana/ui';
import { Component, useEffect, useState } from 'react';
import { createRoot } from 'react-dom/client';
import { BrowserRouter } from 'react-router-dom';
import { lastValueFrom } from 'rxjs';
import { framesOf } from './frames.js';
import { registryFor, replacer } from './grafana.js';
import { annotationStep, builtins, GRID, interpolate, panelsOf, queriesOf, range, resolve, run, timeOf } from './model.js';
import { Bars, Heatmap, States } from './plain.jsx';

const theme = createTheme({ colors: { mode: 'dark' } });
const ZONE = 'utc';
const address = new URLSearchParams(location.search);

async function dataOf(panel, { variables, prometheus, from, to, width }) {
  const queries = queriesOf(panel, variables, from, to, width);
  const answers = await Promise.all(
    queries.map(async (query) => {
      try {
        return { query, data: await run(prometheus, query) };
      } catch (error) {
        return { query, error: String(error.message ?? error) };
      }
    }),
  );
  const failed = answers.find(({ error }) => error);
  if (failed) throw new Error(`${failed.query.refId}: ${failed.error}\n${failed.query.expr}`);
  const replace = replacer(interpolate, variables, builtins(from, to, queries[0]?.step ?? 15000));
  let frames = answers.flatMap(({ data, query }) => framesOf(data, query, queries.length === 1));
  const transformations = (panel.transformations ?? []).filter(({ disabled }) => !disabled);
  if (transformations.length) {
    frames = await lastValueFrom(transformDataFrame(transformations, frames, { interpolate: (text) => replace(text) }));
  }
  frames = applyFieldOverrides({
    data: frames,
    fieldConfig: panel.fieldConfig ?? { defaults: {}, overrides: [] },
    replaceVariables: replace,
    theme,
    timeZone: ZONE,
    fieldConfigRegistry: registryFor(panel),
  });
  return { frames, replace, queries, counts: answers.map(({ data, query }) => ({ refId: query.refId, expr: query.expr, count: data.result?.length ?? 0 })) };
}

const hasNumbers = (frames) => frames.some((frame) => frame.fields.some((field) => field.type !== FieldType.time && frame.length > 0));

function NoData({ panel }) {
  return (
    <div data-nodata style={{ display: 'grid', placeItems: 'center', height: '100%', color: theme.colors.text.secondary, textAlign: 'center' }}>
      {panel.fieldConfig?.defaults?.noValue ?? 'No data'}
    </div>
  );
}

function Body({ panel, loaded, context, width, height }) {
  const { frames, replace, queries } = loaded;
  const { annotations } = context;
  const options = panel.options ?? {};
  const step = queries[0]?.step ?? 15000;
  const [from, to] = [queries[0]?.from ?? context.from, context.to];
  const timeRange = { from: dateTime(from), to: dateTime(to), raw: { from: dateTime(from), to: dateTime(to) } };
  const shown = { frames, width, height, theme, from, to, step, options, showValue: options.showValue };

  if (panel.type === 'text') {
    const text = replace(options.content ?? '');
    return <div className="markdown-html" dangerouslySetInnerHTML={{ __html: options.mode === 'html' ? text : renderMarkdown(text) }} />;
  }
  if (panel.type === 'stat' || panel.type === 'bargauge') {
    const values = getFieldDisplayValues({
      fieldConfig: panel.fieldConfig,
      reduceOptions: options.reduceOptions ?? { calcs: ['lastNotNull'] },
      replaceVariables: replace,
      theme,
      data: frames,
      sparkline: panel.type === 'stat' && options.graphMode !== 'none',
      timeZone: ZONE,
    });
    const wide = options.orientation === 'horizontal' ? VizOrientation.Horizontal : options.orientation === 'vertical' ? VizOrientation.Vertical : VizOrientation.Auto;
    const one = ({ value, width: w, height: h, alignmentFactors, orientation, count }) =>
      panel.type === 'stat' ? (
        <BigValue
          value={value.display} width={w} height={h} theme={theme} sparkline={value.sparkline} alignmentFactors={alignmentFactors}
          colorMode={options.colorMode ?? 'value'} graphMode={options.graphMode ?? 'none'} justifyMode={options.justifyMode ?? 'auto'}
          textMode={options.textMode ?? 'auto'} text={options.text} count={count} wideLayout={options.wideLayout}
        />
      ) : (
        <BarGauge
          value={count === 1 && !panel.fieldConfig.defaults.displayName ? { ...value.display, title: undefined } : value.display} field={value.field} display={value.view?.getFieldDisplayProcessor?.(value.colIndex)} width={w} height={h}
          orientation={orientation} theme={theme} displayMode={options.displayMode ?? 'gradient'} showUnfilled={options.showUnfilled ?? true}
          valueDisplayMode={options.valueMode} namePlacement={options.namePlacement} text={options.text} alignmentFactors={alignmentFactors}
          itemSpacing={8} lcdCellWidth={12} isOverflow={false}
        />
      );
    return (
      <VizRepeater
        getValues={() => values} renderValue={one} width={width} height={height} source={frames} renderCounter={0} orientation={wide}
        getAlignmentFactors={getDisplayValueAlignmentFactors} itemSpacing={8}
        minVizHeight={panel.type === 'bargauge' ? (options.minVizHeight ?? 16) : undefined} autoGrid={panel.type === 'stat'}
      />
    );
  }
  if (!hasNumbers(frames)) return <NoData panel={panel} />;
  switch (panel.type) {
    case 'table':
      return <Table data={frames[0]} width={width} height={height} cellHeight={options.cellHeight} showTypeIcons={false} initialSortBy={options.sortBy} timeRange={timeRange} />;
    case 'timeseries':
      return (
        <TimeSeries frames={frames} timeRange={timeRange} timeZone={ZONE} width={width} height={height} legend={options.legend ?? { showLegend: true, displayMode: 'list', placement: 'bottom', calcs: [] }}>
          {(config) => {
            if (!config.marked) {
              config.marked = true;
              config.addHook('draw', (u) => mark(u, annotations));
            }
            return null;
          }}
        </TimeSeries>
      );
    case 'state-timeline':
    case 'status-history':
      return <States {...shown} />;
    case 'heatmap':
      return <Heatmap {...shown} />;
    case 'barchart':
    case 'histogram':
      return <Bars {...shown} />;
    default:
      throw new Error(`panel type that the preview does not know: ${panel.type}`);
  }
}

// Annotations as Grafana has them: a dashed line at the time, of a region one at its beginning and one at its end.
function mark(u, annotations) {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.setLineDash([4, 4]);
  for (const annotation of annotations) {
    ctx.strokeStyle = theme.visualization.getColorByName(annotation.color);
    for (const time of new Set([annotation.time, annotation.end])) {
      const x = u.valToPos(time, 'x', true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      (annotation.drawn ??= {})[time] = true;
    }
  }
  ctx.restore();
}

class Caught extends Component {
  state = {};
  static getDerivedStateFromError(error) {
    return { error };
  }
  render() {
    if (!this.state.error) return this.props.children;
    return <pre data-error style={{ color: theme.colors.error.text, whiteSpace: 'pre-wrap' }}>{String(this.state.error.stack ?? this.state.error)}</pre>;
  }
}

function Thrown({ error }) {
  throw error;
}

function Panel({ panel, context, done }) {
  const [loaded, setLoaded] = useState();
  const { x, y, w, h } = panel.gridPos;
  const column = context.width / GRID.columns;
  const box = {
    left: x * column + GRID.gap / 2,
    top: y * (GRID.row + GRID.gap),
    width: w * column - GRID.gap,
    height: h * (GRID.row + GRID.gap) - GRID.gap,
  };
  useEffect(() => {
    if (panel.type === 'row') return done(panel.id, { type: 'row', title: panel.title });
    dataOf(panel, context).then(
      (data) => {
        setLoaded(data);
        done(panel.id, summary(panel, data));
      },
      (error) => {
        setLoaded({ error });
        done(panel.id, { type: panel.type, title: panel.title, error: String(error.stack ?? error) });
      },
    );
  }, []);
  const place = { position: 'absolute', ...box };
  if (panel.type === 'row') return <div style={{ ...place, fontWeight: 500, paddingTop: 6 }}>▾ {panel.title}</div>;
  const title = loaded?.replace ? loaded.replace(panel.title ?? '') : panel.title;
  return (
    <div data-panel={panel.id} style={place}>
      <PanelChrome title={title} description={panel.description} width={box.width} height={box.height} padding="md" displayMode={panel.transparent ? 'transparent' : 'default'}>
        {(width, height) => (
          <Caught>
            {!loaded ? null : loaded.error ? <Thrown error={loaded.error} /> : <Body panel={panel} loaded={loaded} context={context} width={width} height={height} />}
          </Caught>
        )}
      </PanelChrome>
    </div>
  );
}

// What can be checked of a panel's data without looking at pixels.
function summary(panel, { frames, replace, counts }) {
  const names = [];
  const links = [];
  const texts = [];
  const reds = [];
  const red = theme.visualization.getColorByName('red');
  for (const frame of frames) {
    for (const field of frame.fields) {
      if (field.type === FieldType.time && panel.type !== 'table') continue;
      names.push(getFieldDisplayName(field, frame, frames));
      const rows = Math.min(frame.length, 50);
      // What has a colour by its value; of a line that becomes one number, the newest.
      if (['stat', 'bargauge', 'table'].includes(panel.type)) {
        for (const value of panel.type === 'table' ? field.values.slice(0, rows) : field.values.slice(-1)) {
          const shown = field.display?.(value);
          if (shown?.color === red) reds.push(`${getFieldDisplayName(field, frame, frames)} ${formattedValueToString(shown)}`);
        }
      }
      for (let row = 0; row < rows; row++) {
        if (texts.length < 400 && field.display) texts.push(formattedValueToString(field.display(field.values[row])));
        if (row < 5) for (const link of field.getLinks?.({ valueRowIndex: row }) ?? []) links.push(link.href);
      }
    }
  }
  for (const link of panel.links ?? []) links.push(replace(link.url ?? ''));
  return {
    type: panel.type,
    title: replace(panel.title ?? ''),
    counts,
    names: [...new Set(names)].slice(0, 200),
    texts: [...new Set(texts)].slice(0, 100),
    links: [...new Set(links)],
    reds: [...new Set(reds)],
    rows: frames.reduce((sum, frame) => sum + frame.length, 0),
    empty: !hasNumbers(frames),
    noValue: panel.fieldConfig?.defaults?.noValue ?? null,
  };
}

async function annotationsOf(dashboard, prometheus, variables, from, to) {
  const found = [];
  const step = annotationStep(from, to);
  for (const { name, expr, iconColor, enable = true, target, useValueForTime } of dashboard.annotations?.list ?? []) {
    const query = expr ?? target?.expr;
    if (!query || !enable) continue;
    const { result } = await range(prometheus, interpolate(query, variables, builtins(from, to, step), true), from, to, step);
    for (const { values } of result) {
      // Points that follow each other are one region. Where the value is the time, that of the point says nothing.
      let region;
      for (const [at, value] of values) {
        const time = useValueForTime ? Math.floor(Number(value)) : at * 1000;
        if (!(Number(value) > 0)) continue;
        if (region && time <= region.end + step) region.end = time;
        else found.push((region = { name, time, end: time, color: iconColor }));
      }
    }
  }
  return found;
}

function Dashboard({ dashboard, context }) {
  const panels = panelsOf(dashboard);
  const [state] = useState({ panels: {}, left: panels.length });
  const done = (id, what) => {
    state.panels[id] = what;
    state.left -= 1;
    // Two frames later all canvases have their pixels.
    if (state.left === 0) requestAnimationFrame(() => setTimeout(() => { window.drawn = { panels: state.panels, variables: context.variables, annotations: context.annotations, from: context.from, to: context.to }; }, 600));
  };
  const bottom = Math.max(...panels.map(({ gridPos }) => gridPos.y + gridPos.h));
  const chosen = Object.values(context.variables).filter((v) => v.type !== 'datasource');
  return (
    <div style={{ width: context.width, background: theme.colors.background.canvas, color: theme.colors.text.primary, fontFamily: theme.typography.fontFamily, fontSize: 14 }}>
      <div style={{ padding: '10px 8px', display: 'flex', gap: 16, flexWrap: 'wrap', alignItems: 'baseline' }}>
        <b style={{ fontSize: 18 }}>{dashboard.title}</b>
        {chosen.map((v) => <span key={v.name} style={{ color: theme.colors.text.secondary }}>{v.name}: <b>{v.all ? 'All' : v.values.join(' + ')}</b></span>)}
        <span style={{ color: theme.colors.text.secondary }}>{new Date(context.from).toISOString().slice(0, 16)} – {new Date(context.to).toISOString().slice(0, 16)}</span>
      </div>
      <div style={{ position: 'relative', height: bottom * (GRID.row + GRID.gap) + 8 }}>
        {panels.map((panel) => <Panel key={panel.id} panel={panel} context={context} done={done} />)}
      </div>
    </div>
  );
}

async function main() {
  const dashboard = await (await fetch(address.get('dashboard'))).json();
  const prometheus = address.get('prometheus');
  const now = Number(address.get('now'));
  const from = timeOf(address.get('from') ?? dashboard.time?.from ?? 'now-6h', now);
  const to = timeOf(address.get('to') ?? dashboard.time?.to ?? 'now', now);
  const width = Number(address.get('width') ?? 1600);
  const wanted = {};
  for (const [key, value] of address) if (key.startsWith('var-')) (wanted[key.slice(4)] ??= []).push(value);
  const variables = await resolve(dashboard, prometheus, wanted, from, to);
  const annotations = await annotationsOf(dashboard, prometheus, variables, from, to);
  const context = { prometheus, variables, annotations, from, to, width };
  createRoot(document.getElementById('root')).render(
    <BrowserRouter>
      <ThemeContext.Provider value={theme}>
        <GlobalStyles />
        <PanelContextProvider value={{ eventsScope: 'dashboard', eventBus: new EventBusSrv() }}>
          <Dashboard dashboard={dashboard} context={context} />
        </PanelContextProvider>
      </ThemeContext.Provider>
    </BrowserRouter>,
  );
}

main().catch((error) => {
  document.body.textContent = String(error.stack ?? error);
  window.drawn = { error: String(error.stack ?? error) };
});
