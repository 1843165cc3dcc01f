import { defineConfig } from 'vitest/config'

// A hub or `kubectl ot dashboard` that `npm run dev` shows: OT_FLEET_URL=http://127.0.0.1:8080.
const target = process.env.OT_FLEET_URL ?? 'http://127.0.0.1:8080'

export default defineConfig({
  build: {
    target: 'es2022',
    // The Content-Security-Policy allows no script and no style that is not a file of its own.
    assetsInlineLimit: 0,
    // The licences of the packages that are built in, which ask for their notice.
    license: { fileName: 'licenses.md' },
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
  server: { proxy: { '/fleet': target, '/auth': target, '/k8s': target } },
  test: { environment: 'node', include: ['src/**/*.test.ts'] },
})
