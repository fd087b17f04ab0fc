import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vite';

const proxy = { '/prom': { target: process.env.PROMETHEUS, rewrite: (path) => path.replace(/^\/prom/, '') } };

export default defineConfig({
  base: './',
  build: { chunkSizeWarningLimit: 8000, rollupOptions: { onwarn: () => {} } },
  define: { 'process.env.NODE_ENV': '"production"', 'process.env': '{}' },
  // A CommonJS package that its importers take for a module with a default export.
  resolve: { alias: { 'react-custom-scrollbars-2': fileURLToPath(new URL('scrollbars.jsx', import.meta.url)) } },
  oxc: { jsx: { runtime: 'automatic' } },
  server: { fs: { allow: ['..'] } },
  preview: { host: '127.0.0.1', port: Number(process.env.PORT ?? 4173), strictPort: true, proxy },
});
