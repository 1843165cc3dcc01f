import { describe, expect, it } from 'vitest'
import { downloadText, sourceText } from './reach'

const gib = 2 ** 30

describe('downloadText', () => {
  const host = (clusters: number, bytes: number) => ({ host: 'a.example.com', clusters, bytes })
  it.each<[string, Parameters<typeof downloadText>[0], string]>([
    ['the same for all', { bytes: 6 * gib, eachBytes: 3 * gib, clusters: 9, downloads: [host(2, 6 * gib)] }, '6 GiB in 2 clusters, 3 GiB each'],
    ['the size of disks', { bytes: 3 * gib, atMostBytes: true, eachBytes: 3 * gib, clusters: 9, downloads: [host(1, 3 * gib)] }, 'at most 3 GiB in 1 cluster, at most 3 GiB each'],
    ['unlike clusters', { bytes: 5 * gib, atMostBytes: true, eachBytes: gib, clusters: 9, downloads: [host(1, 4 * gib), host(1, gib)] }, 'at most 5 GiB in 2 clusters'],
    ['a hub of an older version', { atMost: true, eachBytes: gib, clusters: 2 }, 'at most 2 GiB, at most 1 GiB each'],
    ['another Secret', { bytes: 0, eachBytes: gib, clusters: 9, downloads: [] }, 'nothing'],
  ])('%s', (_, reach, want) => expect(downloadText(reach)).toBe(want))
})

describe('sourceText', () => {
  it('names the overrides', () =>
    expect(sourceText({ digest: 'd', source: 'http https://a/b', from: ['overrides[0]', 'overrides[2]'], clusters: 2 })).toBe('2 clusters: http https://a/b, from overrides[0] and overrides[2]'))
  it('names the template', () => expect(sourceText({ digest: 'd', source: 'http https://a/b', clusters: 1 })).toBe('1 cluster: http https://a/b, from the template'))
  it('says that labels have changed', () => expect(sourceText({ digest: 'd', clusters: 0 })).toBe('source d, which no cluster has by its labels now'))
  it('prints no control characters', () => expect(sourceText({ digest: 'd', source: 'http \u001b[2J', clusters: 1 })).not.toContain('\u001b'))
})
