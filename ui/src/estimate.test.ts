import { beforeEach, describe, expect, it } from 'vitest'
import type { Why } from './api'
import { sayExpected, sayLeft, splitTimes } from './estimate'
import { formatClock, now } from './format'
import { rowsOfQueue, toneOfVerdict } from './whyqueue'

const at = (minutes: number): string => new Date(Date.UTC(2026, 2, 2, 16, 20 + minutes)).toISOString()
beforeEach(() => {
  now.value = Date.parse(at(0))
})

describe('sayExpected', () => {
  it('says a time with its range', () => expect(sayExpected({ at: at(21), earliest: at(17), latest: at(35) })).toBe(`Expected at ${formatClock(at(21))} (in 21m; ${formatClock(at(17))}–${formatClock(at(35))}).`))
  it('says at most where a size is unknown', () => expect(sayExpected({ at: at(21), earliest: at(1), latest: at(35), atMost: true })).toBe(`Expected by ${formatClock(at(21))} at the latest (in 21m).`))
  it('says why there is none', () => expect(sayExpected({ reason: 'FewSamples', message: 'fewer than 3 samples' })).toBe('No estimate: fewer than 3 samples.'))
  it('says nothing of nothing', () => expect(sayExpected(undefined)).toBe(''))
  it('is never in the past', () => expect(sayExpected({ at: at(-5) })).toContain('(in 0s)'))
})

describe('sayLeft', () => {
  it.each([
    [undefined, '–'],
    [{ message: 'x' }, '–'],
    [{ at: at(5) }, '5m'],
  ])('of %j is %s', (e, want) => expect(sayLeft(e)).toBe(want))
})

describe('splitTimes', () => {
  it.each([
    ['', []],
    ['no time', [{ text: 'no time' }]],
    ['until 2026-03-02T16:31:00Z, after', [{ text: 'until ' }, { text: '2026-03-02T16:31:00Z', at: '2026-03-02T16:31:00Z' }, { text: ', after' }]],
    ['2026-03-02T16:31:00.5+01:00', [{ text: '2026-03-02T16:31:00.5+01:00', at: '2026-03-02T16:31:00.5+01:00' }]],
    ['2026-99-02T16:31:00Z', [{ text: '2026-99-02T16:31:00Z' }]],
  ])('of %j', (text, want) => expect(splitTimes(text)).toEqual(want))
  it('loses nothing', () => {
    const text = 'a 2026-03-02T16:31:00Z b 2026-99-99T00:00:00Z c 2026-03-02T16:31:00Z'
    expect(splitTimes(text).map((p) => p.text).join('')).toBe(text)
  })
})

describe('rowsOfQueue', () => {
  const queued = (name: string) => ({ namespace: 'n', name, queuedAt: at(0), note: name === 'q1' ? 'backs off' : undefined })
  const why = (name: string, more: Partial<Why> = {}): Why => ({
    cluster: 'c', namespace: 'n', name, planned: true, budget: { acknowledged: true },
    activity: { observedAt: at(0), active: [{ namespace: 'n', name: 'a', startedAt: at(0) }], head: Array.from({ length: 20 }, (_, i) => queued(`q${i}`)), queued: 30 },
    ...more,
  })
  it('has the head and what is right ahead of the image', () => {
    const { rows, behind } = rowsOfQueue(why('q12'))
    expect(rows.map((r) => r.place)).toEqual([undefined, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13])
    expect(rows.filter((r) => r.isThis).map((r) => r.entry.name)).toEqual(['q12'])
    expect(rows[2]?.note).toBe('backs off')
    expect(behind).toBe(30 - 11)
  })
  it('has no queue for what is ready', () => expect(rowsOfQueue(why('q1', { explanation: { verdict: 'Ready', state: 'Succeeded' } })).rows).toEqual([]))
  it('has none where none is known', () => expect(rowsOfQueue(why('q1', { activity: undefined })).rows).toEqual([]))
})

describe('toneOfVerdict', () => {
  it.each([
    ['Ready', false, 'good'],
    ['Failed', false, 'bad'],
    ['WaitsForPerson', false, 'attention'],
    ['Waits', true, 'moving'],
    ['Waits', false, 'waiting'],
    ['Unknown', true, 'unknown'],
    [undefined, false, 'unknown'],
    ['OfALaterHub', false, 'unknown'],
  ])('of %s is %s', (verdict, active, want) => expect(toneOfVerdict(verdict as never, active)).toBe(want))
})
