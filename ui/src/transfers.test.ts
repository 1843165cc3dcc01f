import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import type { History, Transfer, TransferBudget } from './api'
import { now as clock } from './format'
import { describeExpectation, describeHolders, describePast, describeProgress, describeQueueOrder, describeSince, describeSlots, describeUnlisted, describeWaiting, formatSpan, historyQuery, parseSpan, sayWithin } from './transfers'

const now = Date.parse('2026-11-26T12:00:00Z')
clock.value = now
const budget = (over: Partial<TransferBudget>): TransferBudget => ({ used: 4, waiting: 0, waitingMembers: 0, ...over })
const transfer = (over: Partial<Transfer>): Transfer => ({ cluster: 'a', namespace: 'farm', name: 'ubuntu', ...over })

it.each([
  ['5m', 'in 5m'],
  ['≤ 5m', 'in at most 5m'],
  ['any moment', 'at any moment'],
  [undefined, ''],
])('%s is %s', (left, want) => expect(sayWithin(left)).toBe(want))

describe('describeSlots', () => {
  it.each<[string, Partial<TransferBudget>, string, number | undefined, string[]]>([
    ['has a limit', { limit: 8 }, '4 of 8 slots', 4, ['4 free']],
    ['holds more than is used', { limit: 8, held: 7 }, '7 of 8 slots', 1, ['4 in use', '1 free']],
    ['holds what silent clusters may use', { limit: 8, held: 8, reserved: 2 }, '8 of 8 slots', 0, ['4 in use', 'none is free', '2 reserved for silent clusters']],
    ['holds less than is used, for a moment', { limit: 8, held: 3 }, '4 of 8 slots', 4, ['4 free']],
    ['is overdrawn', { limit: 2 }, '4 of 2 slots', 0, ['none is free']],
    ['has no limit', {}, '4 imports, no limit', undefined, []],
    ['is not known in full', { limit: 8, usedAtLeast: true }, 'at least 4 of 8 slots', 4, ['4 free']],
    ['is not known in full, and holds more', { limit: 8, usedAtLeast: true, held: 7 }, '7 of 8 slots', 1, ['at least 4 in use', '1 free']],
  ])('%s', (_, over, text, free, notes) => {
    const said = describeSlots(budget(over))
    expect([said.text, said.free, said.notes]).toEqual([text, free, notes])
  })
  it('is what each page says of slots', () => {
    for (const page of ['fleet', 'transfers']) {
      const text = readFileSync(join(import.meta.dirname, 'pages', `${page}.tsx`), 'utf8')
      expect(text).toContain('<FleetSlots ')
      expect(text).not.toMatch(/fleet\.(held|used)\b/)
    }
  })
})

describe('describeWaiting', () => {
  it.each<[Partial<TransferBudget>, string]>([
    [{}, 'nothing waits'],
    [{ waiting: 1, waitingMembers: 1 }, '1 image waits in 1 cluster'],
    [{ waiting: 9, waitingMembers: 4, waitingAtLeast: true }, 'at least 9 images wait in 4 clusters'],
    [{ waitingAtLeast: true }, 'at least 0 images wait in 0 clusters'],
  ])('%j', (over, want) => expect(describeWaiting(budget(over))).toBe(want))
})

describe('describeSince', () => {
  it('says that a failover forgot what was before', () => {
    expect(describeSince('2026-11-26T11:00:00Z', undefined, now).long).toMatch(/^since \d\d:\d\d, when this replica was elected$/)
    expect(describeSince('2026-11-25T12:00:00Z', undefined, now).short).toBe('in 24 h')
  })
  it('knows what Prometheus had', () => {
    expect(describeSince('2026-11-26T11:00:00Z', { from: '2026-11-25T12:10:00Z' }, now).short).toBe('in 24 h')
    expect(describeSince('2026-11-26T11:00:00Z', { from: '2026-11-26T09:00:00Z' }, now).long).toMatch(/as Prometheus has it$/)
    expect(describeSince('2026-11-26T11:00:00Z', { problem: 'refused' }, now).long).toMatch(/elected$/)
  })
})

describe('describePast', () => {
  const history: History = { by: 'source', since: '2026-11-26T11:00:00Z', start: '', stepSeconds: 60, lines: [], total: 0 }
  const elected = Date.parse(history.since) / 1000
  const hour = 3600
  it('says nothing where all that is shown is remembered', () => expect(describePast(history, elected + 60)).toEqual({ notes: [] }))
  it('says that what was before an election is unknown', () => {
    const past = describePast(history, elected - hour)
    expect(past.unknownBefore).toBe(elected)
    expect(past.notes[0]).toMatch(/^Shown since \d\d:\d\d, when this replica was elected: what was before is unknown, not zero\.$/)
  })
  it('says what is from Prometheus, and what it lacks', () => {
    const full = describePast({ ...history, prometheus: { from: '2026-11-26T08:00:00Z' } }, elected - hour)
    expect(full.unknownBefore).toBeUndefined()
    expect(full.notes).toEqual([expect.stringMatching(/is from Prometheus\.$/)])
    const part = describePast({ ...history, prometheus: { from: '2026-11-26T10:30:00Z' } }, elected - hour)
    expect(part.unknownBefore).toBe(elected - hour / 2)
    expect(part.notes[1]).toMatch(/unknown, not zero/)
  })
  it('says why Prometheus does not answer', () => {
    const past = describePast({ ...history, prometheus: { problem: 'connection refused' } }, elected - hour)
    expect(past.unknownBefore).toBe(elected)
    expect(past.notes).toContain('Prometheus does not answer: connection refused')
  })
})

describe('describeExpectation', () => {
  it('has a range where there is one', () => {
    const said = describeExpectation({ at: '2026-11-26T12:21:00Z', earliest: '2026-11-26T12:16:00Z', latest: '2026-11-26T12:34:00Z' }, now)
    expect(said.left).toBe('21m')
    expect(said.range).toMatch(/^\d\d:\d\d–\d\d:\d\d$/)
    expect(said.why).toBeUndefined()
  })
  it('has none for the same minute', () => {
    expect(describeExpectation({ at: '2026-11-26T12:21:10Z', earliest: '2026-11-26T12:21:00Z', latest: '2026-11-26T12:21:30Z' }, now).range).toBeUndefined()
  })
  it('says what is at most', () => {
    const said = describeExpectation({ at: '2026-11-26T12:21:00Z', atMost: true }, now)
    expect(said.at).toMatch(/^by /)
    expect(said.left).toBe('≤ 21m')
  })
  it('is due', () => expect(describeExpectation({ at: '2026-11-26T11:59:00Z' }, now).left).toBe('any moment'))
  it('says why there is none', () => {
    expect(describeExpectation({ reason: 'TooFewSamples', message: 'fewer than 3 samples' }, now)).toEqual({ why: 'fewer than 3 samples' })
    expect(describeExpectation(undefined, now).why).not.toBe('')
  })
})

describe('describeProgress', () => {
  it.each<[Partial<Transfer>, { share?: number; text: string }]>([
    [{ bytesDone: 2 ** 30, bytes: 4 * 2 ** 30 }, { share: 0.25, text: '25% of 4 GiB' }],
    [{ bytesDone: 5 * 2 ** 30, bytes: 4 * 2 ** 30 }, { share: 1, text: '100% of 4 GiB' }],
    [{ bytesDone: 2 ** 30, bytes: 4 * 2 ** 30, atMost: true }, { text: '1 GiB of at most 4 GiB' }],
    [{ bytesDone: 0 }, { text: '0 B of an unknown size' }],
    [{}, { text: 'unknown' }],
  ])('%j', (over, want) => expect(describeProgress(transfer(over))).toEqual(want))
})

describe('describeHolders', () => {
  it.each([
    [2, '2 machines wait'],
    [1, '1 machine waits'],
    [0, undefined],
    [undefined, undefined],
  ])('%s', (references, want) => expect(describeHolders(transfer({ references }))).toBe(want))
})

describe('describeUnlisted', () => {
  it.each([
    [1, false, '1 more image waits behind these'],
    [1200, false, '1,200 more images wait behind these'],
    [1, true, 'Up to 1 more image, of unknown sources and names'],
    [9, true, 'Up to 9 more images, of unknown sources and names'],
  ])('%d, filtered: %s', (n, isFiltered, want) => expect(describeUnlisted(n, isFiltered)).toContain(want))
})

describe('spans', () => {
  const seconds = now / 1000
  it('reads what it writes', () => {
    const { from, to } = formatSpan(seconds - 7190, seconds - 3590)
    expect(parseSpan(from, to, now)).toEqual({ from: seconds - 7200, to: seconds - 3540 })
  })
  it('widens what is too short to show', () => {
    const { from, to } = formatSpan(seconds - 3600, seconds - 3590)
    expect(parseSpan(from, to, now)).toEqual({ from: seconds - 3600, to: seconds - 3300 })
  })
  it.each([
    ['', ''],
    ['x', String(seconds)],
    [String(seconds - 90_000), String(seconds)],
    [String(seconds), String(seconds + 3600)],
    [String(seconds - 3600), String(seconds - 3599)],
    [String(seconds - 3600), 'Infinity'],
  ])('refuses %s to %s', (from, to) => expect(parseSpan(from, to, now)).toBeUndefined())
  it('asks for what reaches back to the span, in points that show it', () => {
    expect(historyQuery(24, undefined, now)).toEqual({ window: '24h', points: 144 })
    expect(historyQuery(24, { from: seconds - 3600, to: seconds }, now)).toEqual({ window: '60m', points: 60 })
    expect(historyQuery(24, { from: seconds - 86_000, to: seconds - 80_000 }, now)).toEqual({ window: '1440m', points: 1440 })
  })
  it('asks for clusters, and for the sum beyond them, by five minutes', () => {
    expect(historyQuery(6, undefined, now, 'fiveMinutes')).toEqual({ window: '6h', points: 72 })
    expect(historyQuery(6, { from: seconds - 7000, to: seconds }, now, 'fiveMinutes')).toEqual({ window: '120m', points: 24 })
  })
  it('stays the same for a quarter of an hour', () => {
    const span = { from: seconds - 3000, to: seconds - 600 }
    expect(historyQuery(24, span, now + 500_000)).toEqual(historyQuery(24, span, now))
  })
})

describe('describeQueueOrder', () => {
  it.each([
    ['', 'by when they are expected to be ready'],
    ['expected', 'by when they are expected to be ready'],
    ['oldest', 'by how long they have waited'],
    ['rate', 'by cluster'],
    ['cluster', 'by cluster'],
    ['image', 'by image'],
  ])('says it of %j', (sort, want) => expect(describeQueueOrder(sort)).toBe(want))
})
