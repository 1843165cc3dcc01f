import { readdirSync, readFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import type { BlastRadius } from './api'
import { apply, effective, formatDraft, parseDraft, withValue } from './policydraft'
import { formatClock } from './format'
import { configMapYAML, diffCommand, diffMarkdown, longerWait, mergePatchOf, patchCommand, pullRequestText, windowsText } from './policytext'

// The command line's golden files: the same answer, and the Markdown that it prints of it.
const folder = new URL('../../cli/fleetpolicy/testdata/', import.meta.url)
const golden = readdirSync(folder)
  .filter((name) => /^diff-.*\.json$/.test(name))
  .map((name) => {
    const answer = JSON.parse(readFileSync(new URL(name, folder), 'utf8')) as BlastRadius & { observedAt: string; serverAnswer?: string }
    const screens = readFileSync(new URL(name.replace(/json$/, 'golden'), folder), 'utf8')
    return { name, answer, want: screens.slice(screens.indexOf('--- markdown\n') + '--- markdown\n'.length) }
  })

test('there are golden files', () => expect(golden.length).toBeGreaterThan(5))

test.each(golden)('the Markdown of $name is that of kubectl ot policy diff', ({ answer, want }) => {
  const got = diffMarkdown(answer, Date.parse(answer.observedAt))
  // What the hub writes to a preview, and where an answer was not read, is of the command line alone.
  expect(want.startsWith(got) || got === want, `want\n${want}\ngot\n${got}`).toBe(true)
  if (!answer.serverAnswer) expect(got).toBe(want)
})

test('rows beyond what is shown are counted', () => {
  const row = { member: 'a', now: 1, then: 2, from: 'fleet default' }
  const radius: BlastRadius = { members: 900, changed: 900, gain: 900, lose: 0, concurrencyNow: 900, concurrencyThen: 1800, rows: Array.from({ length: 60 }, () => row), omitted: 840 }
  const lines = diffMarkdown(radius, 0).split('\n')
  expect(lines.filter((l) => l.startsWith('| a |'))).toHaveLength(50)
  expect(lines).toContain('| and 850 more |  |  |  |  |  |  |  |  |')
})

test('texts of clusters are shown as they are', () => {
  const got = diffMarkdown({ refused: ['a: "<b>|`x`\u202e"'], members: 1, changed: 0, gain: 0, lose: 0, concurrencyNow: 0, concurrencyThen: 0, rows: [] }, 0)
  expect(got).toContain('a: "&lt;b&gt;\\|\\`x\\`�"')
})

test('a ConfigMap as YAML', () => {
  const overrides = '- selector: {matchLabels: {edge: "true"}}\n  concurrency: "1"\n\n- cluster: a\n'
  expect(configMapYAML('ns', 'p', { overrides, concurrency: '3', off: 'x' })).toBe(
    `apiVersion: v1
kind: ConfigMap
metadata:
  name: p
  namespace: ns
data:
  concurrency: "3"
  "off": "x"
  overrides: |
    - selector: {matchLabels: {edge: "true"}}
      concurrency: "1"

    - cluster: a
`,
  )
  expect(configMapYAML('ns', 'p', { a: '- x\n- y' })).toContain('  a: |-\n    - x\n    - y\n')
  // What a block would change is quoted.
  for (const odd of ['  - x\n- y\n', 'a\n\n', '\n', 'a\tb\nc', 'a\r\nb', '']) expect(configMapYAML('ns', 'p', { a: odd })).toContain(`  a: ${JSON.stringify(odd)}\n`)
  expect(configMapYAML('ns', 'p', {})).toContain('data:\n  {}\n')
})

test('patches and commands', () => {
  const changes = { concurrency: '4', retryLimit: null }
  expect(mergePatchOf(changes, '7')).toEqual({ metadata: { resourceVersion: '7' }, data: changes })
  expect(patchCommand('ns', 'p', { a: "it's" })).toBe(`kubectl -n ns patch configmap p --type=merge --patch='{"data":{"a":"it'\\''s"}}'`)
  expect(diffCommand('sync-operator', 'sync-operator-policy', {})).toBe('kubectl ot policy show')
  expect(diffCommand('ns', 'p', changes)).toBe('kubectl ot policy diff --set concurrency=4 --set retryLimit= --policy ns/p')
  expect(diffCommand('ns', 'p', { preflightAllow: '10.0.0.0/8, *.x' })).toBe("kubectl ot policy diff --set 'preflightAllow=10.0.0.0/8, *.x' --policy ns/p")
  expect(diffCommand('sync-operator', 'sync-operator-policy', { overrides: 'a\nb' })).toBe('kubectl ot policy diff -f policy.yaml')
})

test('the text of a pull request', () => {
  const radius = golden.find((g) => g.name === 'diff-overrides.json')!
  const text = pullRequestText({ concurrency: '3', retryLimit: '3' }, { concurrency: '4', retryLimit: null, overrides: '- {cluster: a}\n- {cluster: b}\n' }, radius.answer, Date.parse(radius.answer.observedAt))
  expect(text).toContain('| concurrency | 3 | 4 |\n| overrides | not set | several lines |\n| retryLimit | 3 | not set |')
  expect(text).toContain('```yaml\ndata:\n  overrides: |\n    - {cluster: a}\n    - {cluster: b}\n```')
  expect(text.endsWith(radius.want)).toBe(true)
})

test('who waits longer', () => {
  const row = { member: 'a', then: 1, from: '' }
  expect(longerWait({ ...row, waitNow: { at: '2026-01-01T00:00:00Z' }, waitThen: { at: '2026-01-01T00:01:00Z' } })).toBe(60_000)
  expect(longerWait({ ...row, waitNow: { at: '2026-01-01T00:00:00Z' }, waitThen: { reason: 'TooFewSamples' } })).toBeUndefined()
  expect(longerWait(row)).toBeUndefined()
})

test('changes that people try out', () => {
  const base = { concurrency: '3', retryLimit: '3' }
  expect(parseDraft('{"concurrency":"4","retryLimit":null,"x":5}')).toEqual({ concurrency: '4', retryLimit: null })
  for (const text of ['', 'x', '[]', 'null', '5', `{"a":"${'x'.repeat(40_000)}"}`]) expect(parseDraft(text)).toEqual({})
  expect(Object.getPrototypeOf(parseDraft('{"__proto__":"1"}'))).toBe(Object.prototype)
  expect(effective(base, { concurrency: '3', retryLimit: null, x: null, y: '1' })).toEqual({ retryLimit: null, y: '1' })
  expect(apply(base, { concurrency: '4', retryLimit: null })).toEqual({ concurrency: '4' })
  expect(withValue(base, { retryLimit: '9' }, 'retryLimit', '3')).toEqual({})
  expect(withValue(base, {}, 'retryLimit', '')).toEqual({ retryLimit: null })
  expect(withValue(base, {}, 'absent', '')).toEqual({})
  expect(formatDraft({})).toBeUndefined()
  expect(parseDraft(formatDraft({ b: '1', a: null })!)).toEqual({ a: null, b: '1' })
})

test('what windows put into force, and when that changes', () => {
  const changesAt = '2026-06-01T20:00:00Z'
  const edge = Date.parse(changesAt)
  const w = { now: { concurrency: 0, fleetConcurrency: 10 }, changesAt, then: { concurrency: 8, fleetConcurrency: 40 } }
  expect(windowsText(w, edge - 1)).toBe(`Now concurrency 0 and fleetConcurrency 10; from ${formatClock(changesAt)} on concurrency 8 and fleetConcurrency 40.`)
  expect(windowsText(w, edge)).toBe(`Now concurrency 8 and fleetConcurrency 40, since ${formatClock(changesAt)}.`)
  expect(windowsText({ now: { concurrency: 2 } }, edge)).toBe('Now concurrency 2.')
})
