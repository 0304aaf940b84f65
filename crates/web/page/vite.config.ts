import { defineConfig } from 'vite';

// Names without hashes: the program serves each file anew (no-store), and its table stays short.
export default defineConfig({
  base: '/',
  build: {
    target: 'es2022',
    assetsDir: '',
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
    rollupOptions: {
      output: {
        entryFileNames: 'page.js',
        chunkFileNames: 'page-[name].js',
        assetFileNames: 'page.[ext]',
      },
    },
  },
});
