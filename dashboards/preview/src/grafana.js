// What the Grafana application sets up around its components before panels can be drawn.
import {
  createFieldConfigRegistry,
  standardFieldConfigEditorRegistry,
  standardTransformers,
  standardTransformersRegistry,
  locationUtil,
} from '@grafana/data';

const STANDARD = [
  'unit', 'min', 'max', 'decimals', 'displayName', 'color', 'thresholds', 'mappings', 'links', 'actions', 'noValue',
  'filterable', 'fieldMinMax', 'description',
];

const property = (id, path) => ({
  id,
  path,
  name: id,
  description: '',
  editor: () => null,
  override: () => null,
  process: (value) => value,
  shouldApply: () => true,
  settings: {},
});

standardFieldConfigEditorRegistry.setInit(() => STANDARD.map((id) => property(id, id)));
standardTransformersRegistry.setInit(() =>
  Object.values(standardTransformers)
    .filter((transformation, i, all) => all.findIndex(({ id }) => id === transformation.id) === i)
    .map((transformation) => ({ id: transformation.id, name: transformation.name, transformation })),
);
locationUtil.initialize({
  config: { appSubUrl: '' },
  getVariablesUrlParams: () => ({}),
  getTimeRangeForUrl: () => ({ from: 'now-1h', to: 'now' }),
});

/** A registry with the custom properties that this panel's defaults and overrides name. */
export function registryFor(panel) {
  const registry = createFieldConfigRegistry({}, panel.type);
  const custom = new Set(Object.keys(panel.fieldConfig?.defaults?.custom ?? {}));
  for (const { properties } of panel.fieldConfig?.overrides ?? []) {
    for (const { id } of properties) {
      if (id.startsWith('custom.')) custom.add(id.slice('custom.'.length).split('.')[0]);
      else if (!STANDARD.includes(id)) throw new Error(`override of a property that Grafana has not: ${id}`);
    }
  }
  for (const path of custom) registry.register({ ...property(`custom.${path}`, path), isCustom: true });
  return registry;
}

// A value out of a data link's surroundings, as `__field.labels.gpu` or `__data.fields.instance`.
function fromContext(name, context) {
  const { frame, field, rowIndex = 0 } = context;
  const [root, ...rest] = name.split('.');
  const key = rest.join('.').replace(/^(fields|labels)[.[]?["']?/, '').replace(/["']?\]?$/, '');
  if (root === '__field' && rest[0] === 'labels') return field.labels?.[key];
  if (root === '__field') return field.state?.displayName ?? field.config.displayNameFromDS ?? field.name;
  if (root === '__series') return frame.name ?? '';
  if (root === '__value') return rest[0] === 'time' ? frame.fields.find((f) => f.type === 'time')?.values[rowIndex] : field.values[rowIndex];
  if (root === '__data') {
    const column = frame.fields.find((f) => f.name === key || f.config.displayName === key || f.state?.displayName === key);
    return column?.values[rowIndex] ?? (column ? '' : undefined);
  }
  return undefined;
}

/** Replaces variables, and in data links the fields of the value clicked. */
export function replacer(interpolate, variables, builtins) {
  return (text, scoped, format) => {
    if (typeof text !== 'string') return text;
    const context = scoped?.__dataContext?.value;
    const withContext = text.replace(/\$\{(__(?:field|data|value|series)[^}:]*)(?::([^}]+))?\}/g, (whole, name, how) => {
      const value = context && fromContext(name, context);
      if (value === undefined) return whole;
      return how === 'raw' || format !== 'uriencode' ? String(value) : encodeURIComponent(String(value));
    });
    const range = `from=${builtins.__from}&to=${builtins.__to}`;
    const all = Object.values(variables).map((v) => (v.all ? `var-${v.name}=$__all` : v.values.map((x) => `var-${v.name}=${encodeURIComponent(x)}`).join('&')));
    const done = withContext
      .replace(/\$\{__url_time_range\}|\$__url_time_range/g, range)
      .replace(/\$\{__all_variables\}|\$__all_variables/g, all.join('&'));
    return interpolate(done, variables, builtins);
  };
}
