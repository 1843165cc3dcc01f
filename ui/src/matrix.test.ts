import { readFileSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import { CellBehind, CellFailed, CellMessage, CellOther, CellPlanned, CellQueued, CellReady, CellReferenced, CellStale, CellSyncing, CellUnknown, type Matrix, type MatrixColumn } from './api'
import { applyMatrix, byteOf, countLooks, describeCell, formatClosed, isShown, listNotReady, lookOf, nameOfImage, parseClosed, shows, viewOf, worstFirst, worstOf, type Cells, type Filter } from './matrix'

interface Case {
  answers: Matrix[]
  want: { refused?: boolean; seq?: string; cells?: number[]; clusters?: MatrixColumn[]; labels?: string[] }[]
}

describe('applyMatrix', () => {
  // Written by api/readapi TestMatrixCorpus.
  const corpus = JSON.parse(readFileSync(new URL('testdata/matrix.json', import.meta.url), 'utf8')) as Case[]
  it('makes of answers what Go makes of them', () => {
    let refused = 0
    for (const { answers, want } of corpus) {
      let m: Cells | undefined
      answers.forEach((answer, i) => {
        const { refused: isRefused, seq, cells = [], clusters = [], labels = [] } = want[i]!
        if (isRefused) {
          refused++
          expect(() => applyMatrix(m, answer)).toThrow()
          return
        }
        const before = m && { ...m, bytes: m.bytes.slice() }
        const next = applyMatrix(m, answer)
        if (m) expect(m).toEqual(before) // what it was is not changed
        m = next
        expect([...m.bytes]).toEqual(cells)
        expect(m.seq).toBe(seq)
        expect(m.clusters).toEqual(clusters)
        expect(m.labels).toEqual(labels)
      })
    }
    expect(refused).toBeGreaterThan(0)
  })
})

describe('lookOf', () => {
  it.each([
    [CellUnknown, 'unknown'],
    [CellReady | CellReferenced | CellBehind, 'ready'],
    [CellQueued, 'queued'],
    [CellQueued | CellMessage, 'stalled'],
    [CellSyncing | CellMessage, 'stalled'],
    [CellFailed | CellMessage, 'failed'],
    [CellOther, 'other'],
    [15, 'other'], // of a later hub
  ])('%d is %s', (cell, want) => expect(lookOf(cell)).toBe(want))

  it('knows each byte, and what is not ready is never drawn as ready', () => {
    for (let cell = 0; cell < 256; cell++) {
      expect(worstFirst).toContain(lookOf(cell))
      expect(describeCell(cell)).not.toBe('')
      expect(lookOf(byteOf(lookOf(cell)))).toBe(lookOf(cell))
      if ((cell & 0xf) !== CellReady) expect(lookOf(cell)).not.toBe('ready')
    }
  })
})

const cluster = (name: string, group?: string): MatrixColumn => ({ cluster: name, group })
const everything: Filter = { show: 'all', clusters: '', images: '', closed: new Set(), grouped: false }

/** Two images of which the first has two versions, and four clusters. */
function fleet(): Cells {
  return {
    seq: '1',
    images: [
      { image: 'ubuntu', version: '2.1', current: true, namespace: 'n', name: 'ubuntu-2.1' },
      { image: 'ubuntu', version: '2.0', namespace: 'n', name: 'ubuntu-2.0' },
      { image: 'win', version: '24', current: true, namespace: 'n', name: 'win-24' },
    ],
    clusters: [cluster('oslo', 'nordics'), cluster('lab'), cluster('bergen', 'nordics'), cluster('lyon', 'central')],
    labels: ['region'],
    bytes: Uint8Array.from([
      CellReady, CellFailed | CellMessage, CellSyncing, CellReady,
      CellReady, CellReady, CellReady | CellBehind, CellReady,
      CellReady, CellUnknown, CellPlanned, CellReady | CellStale,
    ]),
  }
}

const namesOf = (m: Cells, filter: Partial<Filter>) => {
  const v = viewOf(m, { ...everything, ...filter })
  return { rows: v.rows.map((r) => (r.kind === 'group' ? `${r.name}:${r.members.length}` : r.name)), columns: v.columns.map((c) => nameOfImage(m.images[c.image]!)) }
}

describe('viewOf', () => {
  it.each([
    ['all', ['oslo', 'lab', 'bergen', 'lyon'], ['ubuntu 2.1', 'ubuntu 2.0', 'win 24']],
    ['failing', ['lab'], ['ubuntu 2.1']],
    ['moving', ['bergen'], ['ubuntu 2.1', 'win 24']],
    ['behind', ['bergen'], ['ubuntu 2.0']],
    ['unknown', ['lab', 'lyon'], ['win 24']],
  ] as const)('shows %s', (show, rows, columns) => expect(namesOf(fleet(), { show })).toEqual({ rows, columns }))

  it('filters by parts of names', () => {
    expect(namesOf(fleet(), { clusters: ' O L ', images: 'UBUNTU 2.0' })).toEqual({ rows: ['oslo', 'lyon'], columns: ['ubuntu 2.0'] })
    expect(namesOf(fleet(), { clusters: 'nowhere' }).rows).toEqual([])
  })

  it('groups, those without the label last, and collapses', () => {
    expect(namesOf(fleet(), { grouped: true }).rows).toEqual(['central:1', 'lyon', 'nordics:2', 'oslo', 'bergen', ':1', 'lab'])
    expect(namesOf(fleet(), { grouped: true, closed: new Set(['nordics']) }).rows).toEqual(['central:1', 'lyon', 'nordics:2', ':1', 'lab'])
    expect(viewOf(fleet(), { ...everything, grouped: true, closed: new Set(['nordics']) }).clusters).toBe(4)
  })

  it('marks where another image begins', () => {
    expect(viewOf(fleet(), everything).columns.map((c) => c.first)).toEqual([false, false, true])
    expect(viewOf(fleet(), { ...everything, images: 'win' }).columns.map((c) => c.first)).toEqual([false])
  })

  it('shows a cell in each row and column that a filter leaves', () => {
    for (const show of shows) {
      const m = fleet()
      const v = viewOf(m, { ...everything, show })
      for (const r of v.rows) expect(v.columns.some((c) => r.kind === 'cluster' && isShown(m.bytes[c.image * 4 + r.cluster]!, show))).toBe(true)
    }
  })
})

describe('closed groups', () => {
  it('are none without the parameter: the group without the label is open', () => {
    expect(namesOf(fleet(), { grouped: true, closed: parseClosed('') }).rows).toContain('lab')
  })
  it.each([[[]], [['']], [['nordics']], [['', 'nordics', 'central']]])('%j are read as they are written', (names) => {
    expect([...parseClosed(formatClosed(new Set(names)))]).toEqual(names)
  })
  it('have the one without the label in the address', () => {
    expect(formatClosed(new Set(['']))).not.toBe('')
    expect(namesOf(fleet(), { grouped: true, closed: parseClosed(formatClosed(new Set(['']))) }).rows).not.toContain('lab')
  })
})

describe('countLooks', () => {
  it('counts each cell once', () => {
    const m = fleet()
    const counts = countLooks(m, [0, 1, 2, 3], viewOf(m, everything).columns)
    expect(counts).toEqual({ ready: 8, failed: 1, syncing: 1, unknown: 1, planned: 1 })
    expect(worstOf(counts)).toEqual({ look: 'failed', count: 1 })
    expect(worstOf({})).toEqual({ look: 'absent', count: 0 })
  })
})

describe('listNotReady', () => {
  it('has the worst first, and what is behind', () => {
    const m = fleet()
    const named = listNotReady(m, viewOf(m, everything)).map((r) => [m.clusters[r.cluster]!.cluster, ...r.cells.map((c) => nameOfImage(m.images[c.image]!))])
    expect(named).toEqual([
      ['lab', 'ubuntu 2.1', 'win 24'],
      ['bergen', 'ubuntu 2.1', 'win 24', 'ubuntu 2.0'],
    ])
  })
})
