import { defineConfig } from 'vite';

const proxy = { '/prom': { target: process.env.PROMETHEUS, rewrite: (path) => path.replace(/^\/prom/, '') } };

export default defineConfig({
  base: './',
  build: { chunkSizeWarningLimit: 8000, rollupOptions: { onwarn: () => {} } },
  define: { 'process.env.NODE_ENV': '"production"', 'process.env': '{}' },
  oxc: { jsx: { runtime: 'automatic' } },
  server: { fs: { allow: ['..'] } },
  preview: { host: '127.0.0.1', port: Number(process.env.PORT ?? 4173), strictPort: true, proxy },
});
