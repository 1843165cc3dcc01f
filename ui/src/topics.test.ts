import { readdirSync, readFileSync } from 'node:fs'
import { describe, expect, it } from 'vitest'

const allTopics = ['members', 'images', 'rollouts', 'prunes', 'transfers', 'policy']

/** What each path of the read API depends on, as its reference page says. */
const topicsOf = new Map(
  readFileSync(new URL('../../docs/reference/readapi.md', import.meta.url), 'utf8')
    .split('\n')
    .map((line) => line.split('|').map((cell) => cell.trim()))
    .filter((cells) => cells.length === 5 && cells[1]!.startsWith('`'))
    .map((cells) => [cells[1]!.replaceAll('`', ''), cells[3] === 'all' ? allTopics : [...cells[3]!.matchAll(/`(\w+)`/g)].map((m) => m[1]!)]),
)

interface Use {
  file: string
  path: string
  topics: string[]
}

/** Returns each use of an answer in the sources: its path, and the topics after which it is asked for again. */
function usesOf(file: string): Use[] {
  const text = readFileSync(new URL(file, import.meta.url), 'utf8')
  return [...text.matchAll(/\buse(?:Answer|Folded)<\w+>\(/g)].map((call) => {
    const after = text.slice(call.index, call.index + 800)
    const path = [...after.matchAll(/'([a-z/]+)'/g)].find((m) => topicsOf.has(m[1]!))
    const topics = /\[((?:'[a-z]+'(?:, )?)*)\]/.exec(after.slice(path?.index))
    return { file, path: path?.[1] ?? '', topics: [...(topics?.[1] ?? '').matchAll(/'(\w+)'/g)].map((m) => m[1]!) }
  })
}

const uses = readdirSync(new URL('.', import.meta.url), { recursive: true, encoding: 'utf8' })
  .filter((file) => file.endsWith('.tsx'))
  .flatMap(usesOf)

/** Uses that show only a part of the answer, or one that does not change. */
const narrower: Record<string, string> = {
  'pages/transfers.tsx summary': 'members transfers policy',
  'pages/transfers.tsx members': 'members', // silent clusters: their times stand
  'pages/rollouts/lanes.tsx rollouts/clusters': 'rollouts', // the states of clusters alone
  // A report that is complete does not change, and each answer reads all of its pages.
  'pages/cleanup/report.tsx prunereports/groups': '',
  'pages/cleanup/approve.tsx prunereports/groups': '',
  'pages/cleanup/rows.tsx prunereports/rows': '',
}

describe('topics', () => {
  it('are those of the reference page, for each answer that a page shows', () => {
    expect(uses.length).toBeGreaterThan(25)
    for (const { file, path, topics } of uses) {
      const want = narrower[`${file} ${path}`]?.split(' ').filter(Boolean) ?? topicsOf.get(path)
      expect(topics.sort(), `${path} in ${file}`).toEqual([...(want ?? ['a path of the read API'])].sort())
    }
  })
  it('are narrower only for uses that exist', () => {
    const existing = uses.map(({ file, path }) => `${file} ${path}`)
    expect(Object.keys(narrower).filter((use) => !existing.includes(use))).toEqual([])
  })
})
