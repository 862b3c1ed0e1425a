// Panels that Grafana draws in its application and does not export: state timeline, status history, heatmap, bar chart,
// histogram. Drawn plainly here, with the colours and texts that Grafana's own field display gives; not its pixels.
import { FieldType, formattedValueToString, getFieldDisplayName, getValueFormat } from '@grafana/data';
import { useEffect, useRef } from 'react';

const FONT = '11px Inter, Helvetica, Arial, sans-serif';

function useCanvas(width, height, draw) {
  const ref = useRef(null);
  useEffect(() => {
    const context = ref.current.getContext('2d');
    context.clearRect(0, 0, width, height);
    context.font = FONT;
    context.textBaseline = 'middle';
    draw(context);
  });
  return <canvas ref={ref} width={Math.max(1, Math.floor(width))} height={Math.max(1, Math.floor(height))} />;
}

function rowsOf(frames) {
  return frames.flatMap((frame) => {
    const time = frame.fields.find((field) => field.type === FieldType.time);
    if (!time) return [];
    return frame.fields
      .filter((field) => field !== time && field.type !== FieldType.time)
      .map((field) => ({ name: getFieldDisplayName(field, frame, frames), field, times: time.values }));
  });
}

function fitted(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let length = text.length;
  while (length > 1 && context.measureText(`${text.slice(0, length)}…`).width > width) length--;
  return `${text.slice(0, length)}…`;
}

function timeAxis(context, theme, from, to, left, right, y) {
  context.fillStyle = theme.colors.text.secondary;
  context.textAlign = 'center';
  const count = Math.max(2, Math.floor((right - left) / 110));
  for (let i = 0; i <= count; i++) {
    const time = new Date(from + ((to - from) * i) / count);
    const text = to - from > 86400e3 * 2 ? time.toISOString().slice(5, 16).replace('T', ' ') : time.toISOString().slice(11, 16);
    context.fillText(text, Math.min(right - 14, Math.max(left + 14, left + ((right - left) * i) / count)), y);
  }
}

/** State timeline and status history: a line for each series, its values as coloured pieces. */
export function States({ frames, width, height, theme, from, to, step, showValue }) {
  const rows = rowsOf(frames);
  return useCanvas(width, height, (context) => {
    const widest = Math.max(...rows.map(({ name }) => context.measureText(name).width));
    const left = Math.min(width * 0.35, widest + 12);
    const rowHeight = (height - 18) / rows.length;
    rows.forEach(({ name, field, times }, i) => {
      const top = i * rowHeight;
      if (rowHeight >= 9 || i % Math.ceil(9 / rowHeight) === 0) {
        context.fillStyle = theme.colors.text.primary;
        context.textAlign = 'right';
        context.fillText(fitted(context, name, left - 10), left - 6, top + rowHeight / 2);
      }
      const x = (time) => left + ((Math.min(to, Math.max(from, time)) - from) / (to - from)) * (width - left);
      let k = 0;
      while (k < times.length) {
        const shown = field.display(field.values[k]);
        const text = formattedValueToString(shown);
        let end = k;
        while (end + 1 < times.length && times[end + 1] - times[end] <= step * 1.5 && formattedValueToString(field.display(field.values[end + 1])) === text) end++;
        if (field.values[k] !== null && field.values[k] !== undefined) {
          const [a, b] = [x(times[k]), Math.max(x(times[k]) + 1, x(times[end] + step))];
          context.fillStyle = shown.color ?? theme.colors.text.disabled;
          context.fillRect(a, top + rowHeight * 0.08, b - a, rowHeight * 0.84);
          if (showValue !== 'never' && rowHeight > 12 && context.measureText(text).width < b - a - 6) {
            context.fillStyle = theme.colors.getContrastText(shown.color ?? '#888888');
            context.textAlign = 'left';
            context.fillText(text, a + 4, top + rowHeight / 2);
          }
        }
        k = end + 1;
      }
    });
    timeAxis(context, theme, from, to, left, width, height - 8);
  });
}

/** Heatmap: a line for each bucket, a cell for each step, the brighter the more, and the scale below. */
export function Heatmap({ frames, width, height, theme, from, to, step, options }) {
  const rows = rowsOf(frames);
  const written = (unit, value) => formattedValueToString(getValueFormat(unit ?? 'short')(value));
  const named = (name) => (options.yAxis?.unit && Number.isFinite(Number(name)) && /[.e]/.test(name) ? written(options.yAxis.unit, Number(name)) : name);
  const colored = (share) => `hsl(${24 - share * 10} 90% ${8 + share * 54}%)`;
  return useCanvas(width, height, (context) => {
    const left = Math.min(width * 0.3, Math.max(...rows.map(({ name }) => context.measureText(named(name)).width)) + 12);
    const most = options.color?.max ?? Math.max(...rows.flatMap(({ field }) => field.values.filter(Number.isFinite)), Number.MIN_VALUE);
    const bottom = height - 22;
    const rowHeight = (bottom - 18) / rows.length;
    rows.forEach(({ name, field, times }, i) => {
      const top = (rows.length - 1 - i) * rowHeight;
      context.fillStyle = theme.colors.text.primary;
      context.textAlign = 'right';
      context.fillText(fitted(context, named(name), left - 10), left - 6, top + rowHeight / 2);
      const cell = ((width - left) * step) / (to - from);
      times.forEach((time, k) => {
        const share = Math.min(1, field.values[k] / most);
        if (!(share > 0)) return;
        context.fillStyle = colored(share);
        const x = left + ((time - from) / (to - from)) * (width - left);
        context.fillRect(Math.max(left, x), top + 0.5, Math.max(1, Math.min(cell, width - x) - (cell > 8 ? 1 : 0)), Math.max(1, rowHeight - 1));
      });
    });
    timeAxis(context, theme, from, to, left, width, bottom - 8);
    for (let i = 0; i < 100; i++) {
      context.fillStyle = colored(i / 100);
      context.fillRect(left + 2 * i, bottom + 4, 2, 10);
    }
    context.fillStyle = theme.colors.text.secondary;
    context.textAlign = 'right';
    context.fillText(written(options.cellValues?.unit, 0), left - 6, bottom + 9);
    context.textAlign = 'left';
    context.fillText(written(options.cellValues?.unit, most), left + 206, bottom + 9);
  });
}

/** Bar chart and histogram: a bar for each value, its name under it; of several series a legend on top. */
export function Bars({ frames, width, height, theme }) {
  const bars = frames.flatMap((frame) => {
    const text = frame.fields.find((field) => field.type === FieldType.string);
    const numbers = frame.fields.filter((field) => field.type === FieldType.number);
    // Bars of the same name stand side by side.
    return Array.from({ length: frame.length }, (_, k) => numbers.map((field, i) => ({
      name: text ? (i ? '' : text.values[k]) : getFieldDisplayName(field, frame, frames),
      value: field.values[k],
      shown: field.display(field.values[k]),
    }))).flat();
  });
  const series = frames.flatMap((frame) => frame.fields.filter((field) => field.type === FieldType.number)
    .map((field) => ({ name: getFieldDisplayName(field, frame, frames), color: field.display(field.values[0]).color })));
  return useCanvas(width, height, (context) => {
    const most = Math.max(...bars.map(({ value }) => value).filter(Number.isFinite), Number.MIN_VALUE);
    const each = width / bars.length;
    bars.forEach(({ name, value, shown }, i) => {
      const tall = Math.max(0, (value / most) * (height - 40));
      context.fillStyle = shown.color ?? theme.visualization.palette[0];
      context.fillRect(i * each + each * 0.1, height - 20 - tall, each * 0.8, tall);
      context.textAlign = 'center';
      context.fillStyle = theme.colors.text.primary;
      if (each > 24) context.fillText(fitted(context, formattedValueToString(shown), each), (i + 0.5) * each, height - 28 - tall);
      if (each > 14) context.fillText(fitted(context, String(name), each), (i + 0.5) * each, height - 10);
    });
    if (series.length < 2) return;
    context.textAlign = 'left';
    series.forEach(({ name, color }, i) => {
      context.fillStyle = color ?? theme.visualization.palette[0];
      context.fillRect(8 + 90 * i, 6, 12, 3);
      context.fillStyle = theme.colors.text.primary;
      context.fillText(name, 26 + 90 * i, 8);
    });
  });
}
