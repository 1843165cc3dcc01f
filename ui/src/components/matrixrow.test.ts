import { expect, test, vi } from 'vitest'
import { CellReady } from '../api'
import type { Cells, View } from '../matrix'

vi.stubGlobal('window', { location: { hash: '', pathname: '/', search: '' }, addEventListener: () => undefined })
const { GridRow } = await import('./matrixrow')

const images = ['ubuntu 1', 'ubuntu 2', 'win 1', 'win 2'].map((source) => ({ source }))
const cells = { seq: '1', images, clusters: [{ cluster: 'bergen', state: 'Ready' }], labels: [''], bytes: new Uint8Array(4).fill(CellReady) } as unknown as Cells

function viewOf(...of: number[]): View {
  return { rows: [], columns: of.map((image, i) => ({ image, first: i === 0 })), clusters: 1 }
}

function propsOf(view: View, row: { kind: 'cluster' } | { kind: 'group'; closed: boolean }) {
  return {
    index: 0,
    row: row.kind === 'cluster' ? { ...row, cluster: 0, name: 'bergen' } : { ...row, name: 'nordics', members: [0] },
    top: 0,
    height: 24,
    zoom: 18,
    items: view.columns.map((_, index) => ({ index, start: 24 * index, size: 24 })),
    itemsKey: '0-2',
    activeColumn: undefined,
    counts: {},
    cells,
    view,
  } as unknown as InstanceType<typeof GridRow>['props']
}

test.each([[{ kind: 'cluster' as const }], [{ kind: 'group' as const, closed: true }]])('a row of %j is drawn anew for other images with the same states, whose names its cells have', (row) => {
  const drawn = propsOf(viewOf(0, 1), row)
  const component = new GridRow(drawn)
  component.props = drawn
  component.render(drawn)
  expect(component.shouldComponentUpdate(propsOf(viewOf(0, 1), row))).toBe(false)
  expect(component.shouldComponentUpdate(propsOf(viewOf(2, 3), row))).toBe(true)
})
