import { describe, expect, it } from 'vitest'
import type { History } from '../api'
import { clockTicks, cropDrawing, drawingOf, formatRateTick, isCurrent, lastOf, missingIn, othersOf, stackLines, tableRows } from './series'

const line = (...values: (number | null)[]) => ({ name: 'a', values })

describe('stackLines', () => {
  it('stands each line on those before it', () => {
    expect(stackLines([line(1, 2), line(10, 20), line(0, 5)])).toEqual([
      [1, 2],
      [11, 22],
      [11, 27],
    ])
  })
  it('has a gap where a line is unknown, and stands the others on what is known', () => {
    expect(stackLines([line(1, null, 1), line(2, 2, null), line(3, 3, null)])).toEqual([
      [1, null, 1],
      [3, 2, null],
      [6, 5, null],
    ])
  })
  it('has nothing of nothing', () => expect(stackLines([])).toEqual([]))
})

describe('othersOf', () => {
  it('is what the sum has beyond the lines, and unknown where the sum is', () => {
    expect(othersOf([10, null, 4, 3], [line(4, 1, null, 5), line(1, 1, 1, 0)])).toEqual([5, null, 3, 0])
  })
})

describe('drawingOf', () => {
  const history = { by: 'source', since: '', start: '2026-11-26T12:00:00Z', stepSeconds: 60, total: 1, lines: [{ name: '', values: { bytes: [1, null, 3] } }] } as History
  it('gives each point its time', () => {
    const at = Date.parse(history.start) / 1000
    expect(drawingOf(history, 'bytes', () => 'fleet')).toEqual({ times: [at, at + 60, at + 120], lines: [{ name: 'fleet', values: [1, null, 3] }] })
  })
  it('is empty for a series that the answer lacks', () => expect(drawingOf(history, 'slots', String).times).toEqual([]))
})

describe('cropDrawing', () => {
  const drawing = { times: [0, 60, 120, 180, 240], lines: [line(0, 1, 2, 3, 4)] }
  it.each([
    [70, 130, [60, 120, 180]],
    [60, 120, [0, 60, 120, 180]],
    [0, 240, [0, 60, 120, 180, 240]],
    [200, 999, [180, 240]],
  ])('%d to %d', (from, to, want) => {
    const got = cropDrawing(drawing, from, to)
    expect(got.times).toEqual(want)
    expect(got.lines[0]!.values).toHaveLength(want.length)
  })
})

describe('tableRows', () => {
  it('has means of what is known, in no more rows than asked for', () => {
    const rows = tableRows({ times: [0, 1, 2, 3, 4], lines: [line(1, 3, null, null, 5), line(null, 2, 4, 6, 8)] }, 3)
    expect(rows).toEqual([
      { at: 0, values: [2, 2] },
      { at: 2, values: [null, 5] },
      { at: 4, values: [5, 8] },
    ])
  })
})

describe('lastOf', () => {
  it.each([
    [[1, 2], 2],
    [[1, null], 1],
    [[1, null, null], null],
    [[], null],
  ])('%j is %s', (values, want) => expect(lastOf(values)).toBe(want))
})

describe('clockTicks', () => {
  it('names the day where it changes', () => {
    const evening = new Date(2026, 10, 25, 22).getTime() / 1000
    expect(clockTicks([evening, evening + 7200, evening + 14400])).toEqual(['22:00', 'Thu 00:00', '02:00'])
    expect(clockTicks([])).toEqual([])
  })
})

describe('missingIn', () => {
  const history = { by: 'source', since: '2026-11-26T12:00:00Z', start: '2026-11-26T11:59:00Z', stepSeconds: 60, total: 2 } as History
  it('leaves out the first points after an election', () => {
    expect(missingIn({ ...history, lines: [{ values: {}, unknownMembers: [0, 42, 42, 42, 3, 1] }, { values: {} }] })).toEqual({ most: 3, now: 1 })
  })
  it('is nothing where nothing is said', () => expect(missingIn({ ...history, lines: [] })).toEqual({ most: 0, now: 0 }))
})

describe('formatRateTick', () => {
  it.each([
    [0, '0 B/s'],
    [512, '512 B/s'],
    [2 ** 20, '1 MiB/s'],
    [1.25 * 2 ** 30, '1.25 GiB/s'],
    [768 * 2 ** 20, '768 MiB/s'],
  ])('%d is %s', (n, want) => expect(formatRateTick(n)).toBe(want))
})

describe('isCurrent', () => {
  it('is not of a span before', () => {
    expect(isCurrent({ times: [0, 60, 120], lines: [] }, 200)).toBe(true)
    expect(isCurrent({ times: [0, 60, 120], lines: [] }, 400)).toBe(false)
    expect(isCurrent({ times: [], lines: [] }, 0)).toBe(false)
  })
})
