import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { formatAge, formatBytes, formatCount, formatDoing, formatDuration, formatNumber, formatPercent, now, plainText } from './format'

describe('formatBytes', () => {
  it.each([
    [0, '0 B'],
    [1023, '1023 B'],
    [1024, '1 KiB'],
    [1536, '1.5 KiB'],
    [1024 * 1024 - 1, '1 MiB'],
    [24 * 2 ** 30, '24 GiB'],
    [9.95 * 2 ** 30, '10 GiB'],
    [2.6 * 2 ** 40, '2.6 TiB'],
  ])('%d is %s', (n, want) => expect(formatBytes(n)).toBe(want))
})

describe('formatDuration', () => {
  it.each([
    [0, '0s'],
    [119_000, '119s'],
    [120_000, '2m'],
    [125_000, '2m5s'],
    [600_000, '10m'],
    [179 * 60_000, '179m'],
    [180 * 60_000, '3h'],
    [185 * 60_000, '3h5m'],
    [47 * 3_600_000, '47h'],
    [50 * 3_600_000, '2d2h'],
    [400 * 86_400_000, '400d'],
    [800 * 86_400_000, '2y70d'],
  ])('%d is %s', (ms, want) => expect(formatDuration(ms)).toBe(want))
})

describe('formatPercent', () => {
  it.each([
    [0, '0%'],
    [0.001, '1%'],
    [0.5, '50%'],
    [0.999, '99%'],
    [1, '100%'],
  ])('%d is %s', (share, want) => expect(formatPercent(share)).toBe(want))
})

describe('formatNumber', () => {
  it('formats as api/numbers does', () => {
    const corpus = JSON.parse(readFileSync(join(import.meta.dirname, 'testdata/numbers.json'), 'utf8')) as { n: number; text: string }[]
    expect(corpus.length).toBeGreaterThan(50)
    for (const { n, text } of corpus) expect(formatNumber(n)).toBe(text)
  })
})

describe('others', () => {
  it('never shows a negative age', () => {
    now.value = Date.parse('2026-11-26T12:00:00Z')
    expect(formatAge('2026-11-26T12:00:30Z')).toBe('0s')
    expect(formatAge('2026-11-26T11:46:00Z')).toBe('14m')
  })
  it('has nouns', () => {
    expect(formatCount(1, 'image')).toBe('1 image')
    expect(formatCount(1200, 'image')).toBe('1,200 images')
    expect(formatDoing(1, 'cluster', 'begins', 'begin')).toBe('1 cluster begins')
    expect(formatDoing(1, 'more cluster', ', which changes', ', which change')).toBe('1 more cluster, which changes')
    expect(formatDoing(2, 'more cluster', ', which changes', ', which change')).toBe('2 more clusters, which change')
  })
  it('shows what is not seen', () => {
    expect(plainText('a\u202eb\u001b[31m')).toBe('a�b�[31m')
    expect(plainText('x'.repeat(500)).length).toBe(400)
  })
})

// 1 cluster, 2 clusters: formatCount has both. A limit of several is always of several.
it('no plural stands beside a bare number', () => {
  const found = readdirSync(import.meta.dirname, { recursive: true, encoding: 'utf8' })
    .filter((f) => /\.tsx?$/.test(f) && !f.endsWith('.test.ts'))
    .flatMap((f) => [...readFileSync(join(import.meta.dirname, f), 'utf8').matchAll(/formatNumber\((?!maxNames|perDot)[^`\n]*?\)\} (more )?(are|have|others|clusters|images|machines|names|slots)\b/g)].map(([text]) => `${f}: ${text}`))
  expect(found).toEqual([])
})
