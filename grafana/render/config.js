// The parts of Grafana's standard registries that its packages leave to the application.
import {
  FieldConfigOptionsRegistry, applyFieldOverrides, standardTransformers, standardTransformersRegistry, transformDataFrame,
} from '@grafana/data';
import { lastValueFrom } from 'rxjs';

const STANDARD = ['unit', 'min', 'max', 'decimals', 'displayName', 'color', 'thresholds', 'mappings', 'noValue', 'links'];
const CUSTOM = [
  'drawStyle', 'lineInterpolation', 'lineWidth', 'lineStyle', 'fillOpacity', 'gradientMode', 'spanNulls', 'insertNulls',
  'showPoints', 'pointSize', 'stacking', 'axisPlacement', 'axisLabel', 'axisSoftMin', 'axisSoftMax', 'axisGridShow',
  'axisColorMode', 'axisCenteredZero', 'axisBorderShow', 'barAlignment', 'barWidthFactor', 'thresholdsStyle', 'hideFrom',
  'scaleDistribution', 'width', 'align', 'cellOptions', 'hidden', 'inspect', 'filterable',
];
const option = (path, isCustom) => ({
  id: isCustom ? `custom.${path}` : path,
  path,
  name: path,
  isCustom,
  process: (value) => value,
  shouldApply: (field) => !isCustom || field.type !== 'time',
});
const registry = new FieldConfigOptionsRegistry(() => [
  ...STANDARD.map((path) => option(path, false)),
  ...CUSTOM.map((path) => option(path, true)),
]);

standardTransformersRegistry.setInit(() =>
  [
    standardTransformers.mergeTransformer,
    standardTransformers.filterFieldsByNameTransformer,
    standardTransformers.organizeFieldsTransformer,
    standardTransformers.orderFieldsTransformer,
    standardTransformers.renameFieldsTransformer,
    standardTransformers.filterFieldsTransformer,
  ].map((transformer) => ({ id: transformer.id, name: transformer.name, transformation: async () => transformer }))
);

const TIME_SERIES_DEFAULTS = {
  drawStyle: 'line', lineInterpolation: 'linear', lineWidth: 1, fillOpacity: 0, gradientMode: 'none', spanNulls: false,
  showPoints: 'auto', pointSize: 5, stacking: { mode: 'none', group: 'A' }, axisPlacement: 'auto', axisLabel: '',
  axisColorMode: 'text', scaleDistribution: { type: 'linear' }, hideFrom: { legend: false, tooltip: false, viz: false },
  thresholdsStyle: { mode: 'off' }, axisCenteredZero: false, barAlignment: 0, insertNulls: false,
};

// Transform and style frames as a panel says.
export async function styled(panel, frames, theme, replace) {
  const transformed = panel.transformations?.length
    ? await lastValueFrom(transformDataFrame(panel.transformations, frames))
    : frames;
  const { defaults, overrides } = panel.fieldConfig;
  const custom = panel.type === 'timeseries' ? { ...TIME_SERIES_DEFAULTS, ...defaults.custom } : { ...defaults.custom };
  return applyFieldOverrides({
    data: transformed,
    fieldConfig: { defaults: { ...defaults, custom }, overrides },
    replaceVariables: replace,
    fieldConfigRegistry: registry,
    theme,
    timeZone: 'utc',
  });
}
