import { defineConfig } from 'vite';

// The code editor comes along with Grafana's components, is most of the bundle, and is in no panel.
const noEditor = {
  name: 'no-editor',
  enforce: 'pre',
  resolveId: (id) => (/^(monaco-editor|@monaco-editor\/react)(\/|$)/.test(id) ? '\0nothing' : null),
  load: (id) => (id === '\0nothing' ? { code: 'export default {};', syntheticNamedExports: true } : null),
};

export default defineConfig({
  plugins: [noEditor],
  esbuild: { jsx: 'automatic' },
  // Some of Grafana's dependencies look at Node's process.
  define: { 'process.env': {} },
  build: { outDir: 'dist', chunkSizeWarningLimit: 20000, minify: false, sourcemap: false, reportCompressedSize: false },
});
